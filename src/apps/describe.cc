#include "apps/describe.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/command_line.h"

namespace espalier::apps {
namespace {

FlagDescription describe_row(const Setting& row) {
  return {.name = row.name,
          .value_name = row.value_name,
          .help = row.help,
          .group = row.group.empty() ? "Options" : row.group,
          .default_text = row.default_text,
          .aliases = row.aliases,
          .takes_several = row.takes_several,
          .value_may_lack = row.value_may_lack};
}

CommandDescription describe_command(std::string name, const Command& command) {
  CommandDescription out{.name = std::move(name), .what = command.what};
  if (command.inner.empty()) {
    const DescriptionScope scope([&out](const CommandLine& line, const SettingTable& table) {
      out.description = line.description;
      out.footer = line.footer;
      out.positional = line.positional;
      for (const Setting& row : table.rows()) out.flags.push_back(describe_row(row));
    });
    command.run({});
  }
  for (const Command& each : command.inner)
    out.inner.push_back(describe_command(out.name + " " + each.name, each));
  return out;
}

}  // namespace

std::vector<std::string> FlagDescription::choices() const {
  std::vector<std::string> out;
  if (value_name.find('|') == std::string::npos) return out;
  for (size_t begin = 0; begin <= value_name.size();) {
    const size_t end = std::min(value_name.find('|', begin), value_name.size());
    out.push_back(value_name.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

bool FlagDescription::is_path() const {
  return std::ranges::any_of(std::vector<std::string_view>{"PATH", "FILE", "FOLDER"},
                             [&](auto word) { return value_name.find(word) != std::string::npos; });
}

CommandDescription describe(std::string_view program, std::string_view what,
                            const std::vector<Command>& list) {
  return describe_command(
      std::string(program),
      {.name = std::string(program), .what = std::string(what), .run = nullptr, .inner = list});
}

int run_completion(const CommandDescription& program, const std::vector<std::string>& args) {
  CommandLine command{"espalier completion",
                      "Prints a script that completes command lines in a shell.",
                      "Examples:\n"
                      "  source <(espalier completion bash)\n"
                      "  espalier completion fish > ~/.config/fish/completions/espalier.fish\n"
                      "  espalier completion zsh > ~/.zfunc/_espalier   (a folder of $fpath)",
                      "bash|zsh|fish",
                      {}};
  SettingTable table, none;
  if (const auto exit_code = parse_command_line(command, table, none, args)) return *exit_code;
  if (command.words.size() != 1)
    return report(invalid_argument("name one shell: espalier completion bash, zsh or fish"),
                  kExitUsage);
  const auto script = completion_script(program, command.words[0]);
  if (!script) return report(script.error(), kExitUsage);
  fmt::print("{}", *script);
  return kExitOk;
}

int run_manual(const CommandDescription& program, std::string_view version,
               const std::vector<std::string>& args) {
  std::filesystem::path folder;
  SettingTable table, none;
  table.group("Output");
  table.path("output", folder, "write all pages into this folder");
  CommandLine command{"espalier manual",
                      "Prints manual pages.",
                      "Examples:\n"
                      "  espalier manual serve | man -l -\n"
                      "  espalier manual --output /usr/local/share/man/man1",
                      "COMMAND",
                      {}};
  if (const auto exit_code = parse_command_line(command, table, none, args)) return *exit_code;
  const std::vector<ManualPage> pages = manual_pages(program, version);
  if (!folder.empty()) {
    std::error_code problem;
    std::filesystem::create_directories(folder, problem);
    if (problem)
      return report(error(StatusCode::kUnavailable, "the folder {} could not be made: {}",
                          folder.string(), problem.message()),
                    kExitFailure);
    for (const ManualPage& page : pages)
      if (Status status = write_file(folder / page.file_name, page.text); !status.ok())
        return report(status, kExitFailure);
    return kExitOk;
  }
  std::string wanted = "espalier";
  for (const std::string& word : command.words) wanted += "-" + word;
  const auto page = std::ranges::find(pages, wanted + ".1", &ManualPage::file_name);
  if (page == pages.end())
    return report(
        invalid_argument("there is no page {}; espalier --help lists the commands", wanted),
        kExitUsage);
  fmt::print("{}", page->text);
  return kExitOk;
}

}  // namespace espalier::apps
