#include "apps/command_line.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "apps/sglang_flags.h"

namespace espalier::apps {
namespace {

std::string flag_spelling(const Setting& row) {
  std::string out = "--" + row.name;
  for (const std::string& alias : row.aliases) out += ",--" + alias;
  return out;
}

// The texts of each flag, in the order of the rows' names.
using GivenFlags = std::map<const Setting*, std::vector<std::string>>;

void add_option(CLI::App& app, const Setting& row, GivenFlags& given) {
  std::string help = row.help;
  CLI::Option* option = nullptr;
  if (row.is_switch()) {
    option = app.add_flag_function(
        flag_spelling(row),
        [&given, &row](int64_t count) { given[&row].push_back(count > 0 ? "true" : "false"); },
        help);
  } else {
    if (!row.default_text.empty()) help += fmt::format(" [{}]", row.default_text);
    option = app.add_option(
        flag_spelling(row),
        [&given, &row](const CLI::results_t& texts) {
          given[&row] = texts.empty() ? CLI::results_t{""} : texts;
          return true;
        },
        help);
    option->type_name(row.value_name)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    constexpr int kValuesMax = 65536;
    option->type_size(1)
        ->expected(row.value_may_lack ? 0 : 1, row.takes_several ? kValuesMax : 1)
        ->allow_extra_args(row.takes_several);
  }
  option->group(row.group.empty() ? "Options" : row.group);
}

Status unknown_flag(const SettingTable& table, const SettingTable& known_elsewhere,
                    const CommandLine& command, const std::string& word) {
  const std::string name =
      word.substr(0, word.find('=')).substr(std::min(word.find_first_not_of('-'), word.size()));
  // In capitals both.
  if (!command.positional.empty() && environment_name(name) == environment_name(command.positional))
    return invalid_argument("{} stands without a flag: {} {}", command.positional, command.name,
                            command.positional);
  if (known_elsewhere.find(name) != nullptr)
    return invalid_argument("{} is a flag of another command, not of {} (--help lists its flags)",
                            word, command.name);
  const std::string near = table.nearest_name(name);
  return invalid_argument("there is no flag {}{} (--help lists them)", word,
                          near.empty() ? "" : fmt::format("; did you mean --{}?", near));
}

Status stray(const SettingTable& table, const CommandLine& command, const std::string& word) {
  std::error_code ignored;
  if (table.find("model-path") != nullptr && std::filesystem::exists(word, ignored))
    return invalid_argument("'{}' stands alone; a model is named by --model-path {}", word, word);
  return invalid_argument("'{}' stands alone; {} takes flags only (--help lists them)", word,
                          command.name);
}

Status apply_flags(const GivenFlags& given, SettingTable& table) {
  for (Setting& row : table.rows()) {
    const auto found = given.find(&row);
    if (found == given.end()) continue;
    ESP_RETURN_IF_ERROR(assign(row, found->second, "--" + row.name));
  }
  return {};
}

// Takes "--switch=value" out of `args`: CLI11 would throw something of the standard library's at a
// value that it does not know, and take any number for true.
std::vector<std::string> without_stated_switches(const SettingTable& table,
                                                 const std::vector<std::string>& args,
                                                 GivenFlags& given) {
  std::vector<std::string> rest;
  for (auto word = args.begin(); word != args.end(); ++word) {
    if (*word == "--") {
      rest.insert(rest.end(), word, args.end());
      break;
    }
    const size_t equals = word->find('=');
    const Setting* row = word->starts_with("--") && equals != std::string::npos
                             ? table.find(word->substr(2, equals - 2))
                             : nullptr;
    if (row != nullptr && row->is_switch() && row->name == word->substr(2, equals - 2)) {
      given[row].push_back(word->substr(equals + 1));
    } else {
      rest.push_back(*word);
    }
  }
  return rest;
}

Status parse(CLI::App& app, CommandLine& command, SettingTable& table,
             const SettingTable& known_elsewhere, const std::vector<std::string>& args) {
  // CLI11 takes its arguments from the back.
  std::vector<std::string> reversed(args.rbegin(), args.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    throw;
  } catch (const CLI::ArgumentMismatch& problem) {  // "--port: 1 required N missing"
    const std::string_view what = problem.what();
    return invalid_argument("{} needs a value (--help lists the flags)",
                            what.substr(0, what.find(':')));
  } catch (const CLI::Error& problem) {
    return invalid_argument("{} (--help lists the flags)", problem.what());
  }
  for (const std::string& word : app.remaining()) {
    if (word.size() > 1 && word.front() == '-')
      return unknown_flag(table, known_elsewhere, command, word);
    return stray(table, command, word);
  }
  return {};
}

}  // namespace

namespace {
DescriptionScope::See& description_sink() {
  static DescriptionScope::See sink;
  return sink;
}
}  // namespace

DescriptionScope::DescriptionScope(See see) { description_sink() = std::move(see); }
DescriptionScope::~DescriptionScope() { description_sink() = nullptr; }
bool being_described() { return description_sink() != nullptr; }

void note(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stderr); }

Status write_file(const std::filesystem::path& path, std::string_view text, WriteMode mode) {
  errno = 0;
  std::ofstream out(
      path, std::ios::binary | (mode == WriteMode::kAppend ? std::ios::app : std::ios::trunc));
  out << text;
  out.close();
  if (out) return {};
  return error(StatusCode::kUnavailable, "{} could not be written: {}", path.string(),
               std::strerror(errno != 0 ? errno : EIO));
}

int report(const Status& status, int exit_code) {
  note(fmt::format("error: {}\n", status.message()));
  return exit_code;
}

std::optional<int> parse_command_line(CommandLine& command, SettingTable& table,
                                      const SettingTable& known_elsewhere,
                                      const std::vector<std::string>& args) {
  std::filesystem::path config_path;
  table.group("Configuration");
  table.path("config", config_path, "JSON or TOML file of settings, by the flags' names");
  if (description_sink() != nullptr) {
    description_sink()(command, table);
    return kExitOk;
  }
  CLI::App app(command.description, command.name);
  app.allow_extras();
  app.footer(command.footer);
  app.set_help_flag("-h,--help", "print this text");
  GivenFlags given;
  std::vector<std::string> notes;
  for (const Setting& row : table.rows()) add_option(app, row, given);
  if (!command.positional.empty()) app.add_option(command.positional, command.words, "");

  try {
    std::vector<std::string> own = args;
    if (command.takes_sglang_flags) {
      auto taken = take_sglang_flags(args, table);
      if (!taken) return report(taken.error(), kExitUsage);
      own = std::move(taken->rest);
      notes = std::move(taken->notes);
    }
    const std::vector<std::string> words = without_stated_switches(table, own, given);
    if (Status status = parse(app, command, table, known_elsewhere, words); !status.ok())
      return report(status, kExitUsage);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return kExitOk;
  }

  // The file is named by a flag or by the environment, and both win over what it says: so it is
  // read first, the environment next, the flags last.
  Setting& config = *table.find("config");
  const char* from_environment = std::getenv("ESPALIER_CONFIG");
  if (const auto found = given.find(&config); found != given.end())
    config_path = found->second.back();
  else if (from_environment != nullptr)
    config_path = from_environment;
  if (!config_path.empty())
    if (Status status = apply_config_file(table, config_path, known_elsewhere); !status.ok())
      return report(status, kExitUsage);
  if (Status status = apply_environment(table, known_elsewhere); !status.ok())
    return report(status, kExitUsage);
  if (Status status = apply_flags(given, table); !status.ok()) return report(status, kExitUsage);
  for (const std::string& text : notes) note(fmt::format("note: {}\n", text));
  return std::nullopt;
}

}  // namespace espalier::apps
