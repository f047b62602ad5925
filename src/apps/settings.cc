#include "apps/settings.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace espalier::apps {
namespace {

std::string with_dashes(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

Result<int64_t> parse_whole(std::string_view text, int64_t min, int64_t max) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size() || problem == std::errc::invalid_argument)
    return fail(invalid_argument("'{}' is not a whole number between {} and {}", text, min, max));
  if (problem == std::errc::result_out_of_range || value < min || value > max)
    return fail(
        invalid_argument("{} is out of range; it must be between {} and {}", text, min, max));
  return value;
}

Result<double> parse_number(std::string_view text, double min, double max) {
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  if (copy.empty() || *end != '\0' || std::isnan(value))
    return fail(invalid_argument("'{}' is not a number between {} and {}", text, min, max));
  if (value < min || value > max)
    return fail(
        invalid_argument("{} is out of range; it must be between {} and {}", text, min, max));
  return value;
}

Result<bool> parse_bool(std::string_view text) {
  for (std::string_view yes : {"true", "1", "yes", "on"})
    if (text == yes) return true;
  for (std::string_view no : {"false", "0", "no", "off"})
    if (text == no) return false;
  return fail(invalid_argument("'{}' is neither true nor false", text));
}

std::string join(const std::vector<std::string>& words, std::string_view between) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += between;
    out += word;
  }
  return out;
}

// Edits between a and b, where a swap of neighbours is one (optimal string alignment).
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> two_up, up(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) up[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({up[j] + 1, row[j - 1] + 1, up[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], two_up[j - 2] + 1);
    }
    two_up = std::exchange(up, row);
  }
  return up[b.size()];
}

// Whether `part` stands in `name` between dashes or ends.
bool has_part(std::string_view name, std::string_view part) {
  for (size_t at = 0; (at = name.find(part, at)) != std::string_view::npos; ++at) {
    const size_t end = at + part.size();
    if ((at == 0 || name[at - 1] == '-') && (end == name.size() || name[end] == '-')) return true;
  }
  return false;
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = ~size_t{0};
  for (const std::string& candidate : candidates) {
    const size_t distance = edit_distance(word, candidate);
    const size_t limit = std::max<size_t>(1, std::max(word.size(), candidate.size()) / 3);
    if (distance <= limit && distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  // "metrics" for "enable-metrics": the shortest that has it as a part.
  constexpr size_t kPartMin = 5;
  if (!best.empty() || word.size() < kPartMin) return best;
  for (const std::string& candidate : candidates)
    if (has_part(candidate, word) && (best.empty() || candidate.size() < best.size()))
      best = candidate;
  return best;
}

Setting& SettingTable::custom(std::string name, std::string value_name, std::string help,
                              std::string default_text,
                              std::function<Status(std::string_view)> set) {
  Setting& row = rows_.emplace_back();
  row.name = std::move(name);
  row.value_name = std::move(value_name);
  row.help = std::move(help);
  row.group = group_;
  row.default_text = std::move(default_text);
  row.set = std::move(set);
  return row;
}

Setting& SettingTable::text(std::string name, std::string& target, std::string value_name,
                            std::string help) {
  return custom(std::move(name), std::move(value_name), std::move(help), target,
                [&target](std::string_view value) {
                  target = value;
                  return Status();
                });
}

Setting& SettingTable::path(std::string name, std::filesystem::path& target, std::string help) {
  return custom(std::move(name), "PATH", std::move(help), target.string(),
                [&target](std::string_view value) {
                  if (value.empty()) return invalid_argument("the path is empty");
                  target = value;
                  return Status();
                });
}

Setting& SettingTable::result_file(std::string name, std::filesystem::path& target,
                                   std::string help) {
  Setting& row = path(std::move(name), target, std::move(help));
  row.set = [&target, set_path = row.set](std::string_view value) -> Status {
    ESP_RETURN_IF_ERROR(set_path(value));
    std::error_code ignored;
    if (std::filesystem::is_directory(target, ignored))
      return invalid_argument("{} is a folder; name a file", target.string());
    const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
    if (!std::filesystem::is_directory(folder, ignored))
      return invalid_argument("there is no folder {} to write a file into", folder.string());
    const bool there = std::filesystem::exists(target, ignored);
    if (::access((there ? target : folder).c_str(), W_OK) != 0)
      return invalid_argument("{} cannot be written: {}", target.string(), std::strerror(errno));
    return {};
  };
  return row;
}

Setting& SettingTable::result(std::string name, bool& printed, std::filesystem::path& file,
                              std::string help) {
  Setting& row = result_file(std::move(name), file, std::move(help));
  row.value_name = "[FILE]";
  row.value_may_lack = true;
  row.set = [&printed, &file, set_file = row.set](std::string_view value) -> Status {
    printed = value.empty() || value == "true";
    if (!printed && value != "false") return set_file(value);
    file.clear();
    return {};
  };
  return row;
}

Setting& SettingTable::choice(std::string name, std::string& target,
                              std::vector<std::string> choices, std::string help) {
  std::string value_name = join(choices, "|");
  return custom(std::move(name), value_name, std::move(help), target,
                [&target, choices = std::move(choices)](std::string_view value) -> Status {
                  if (std::find(choices.begin(), choices.end(), value) == choices.end())
                    return invalid_argument("'{}' is not one of {}", value, join(choices, ", "));
                  target = value;
                  return {};
                });
}

Setting& SettingTable::toggle(std::string name, bool& target, std::string help) {
  return custom(std::move(name), "", std::move(help), "",
                [&target](std::string_view value) -> Status {
                  ESP_ASSIGN_OR_RETURN(target, parse_bool(value));
                  return {};
                });
}

Setting& SettingTable::number(std::string name, double& target, double min, double max,
                              std::string help) {
  return custom(std::move(name), "X", std::move(help), fmt::format("{}", target),
                [&target, min, max](std::string_view value) -> Status {
                  ESP_ASSIGN_OR_RETURN(target, parse_number(value, min, max));
                  return {};
                });
}

Setting& SettingTable::seconds(std::string name, Duration& target, std::string help) {
  return custom(std::move(name), "SECONDS", std::move(help), fmt::format("{}", to_seconds(target)),
                [&target](std::string_view value) -> Status {
                  ESP_ASSIGN_OR_RETURN(const double seconds, parse_number(value, 0, 1e9));
                  target = Duration(static_cast<int64_t>(seconds * 1e9));
                  return {};
                });
}

Setting& SettingTable::list(std::string name, std::vector<std::string>& target,
                            std::string value_name, std::string help) {
  Setting& row = custom(std::move(name), std::move(value_name), std::move(help), join(target, ","),
                        [&target](std::string_view value) {
                          target.emplace_back(value);
                          return Status();
                        });
  row.clear = [&target] { target.clear(); };
  return row;
}

Setting& SettingTable::whole_number(std::string name, int64_t initial, int64_t min, int64_t max,
                                    std::string help, std::function<void(int64_t)> assign) {
  return custom(std::move(name), "N", std::move(help), fmt::format("{}", initial),
                [min, max, assign = std::move(assign)](std::string_view value) -> Status {
                  ESP_ASSIGN_OR_RETURN(const int64_t number, parse_whole(value, min, max));
                  assign(number);
                  return {};
                });
}

const Setting* SettingTable::find(std::string_view name) const {
  const std::string wanted = with_dashes(name);
  for (const Setting& row : rows_) {
    if (row.name == wanted) return &row;
    if (std::find(row.aliases.begin(), row.aliases.end(), wanted) != row.aliases.end()) return &row;
  }
  return nullptr;
}

Setting* SettingTable::find(std::string_view name) {
  return const_cast<Setting*>(std::as_const(*this).find(name));
}

std::string SettingTable::nearest_name(std::string_view name) const {
  std::vector<std::string> names;
  for (const Setting& row : rows_) {
    names.push_back(row.name);
    names.insert(names.end(), row.aliases.begin(), row.aliases.end());
  }
  return nearest(with_dashes(name), names);
}

Status assign(Setting& setting, const std::vector<std::string>& values, std::string_view origin) {
  if (setting.clear) setting.clear();
  if (!setting.clear && values.empty())
    return invalid_argument("{} is an empty list; give one value, or leave it out", origin);
  for (const std::string& value : values) {
    if (!setting.clear && value != values.front())
      return invalid_argument("{} is given twice, as '{}' and as '{}'; leave one out", origin,
                              values.front(), value);
    if (Status status = setting.set(value); !status.ok()) return status.with_context(origin);
  }
  setting.set_by = origin;
  return {};
}

void refuse_empty_key(Setting& key) {
  key.empty_is_a_value = true;
  key.set = [set = key.set](std::string_view value) -> Status {
    if (value.empty()) return invalid_argument("'' would open the server: give a key, or none");
    return set(value);
  };
}

std::string environment_name(std::string_view setting) {
  std::string out = "ESPALIER_";
  for (const char c : setting) out += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return out;
}

// Variables with this prefix that are not settings: the folder of the model that ships.
constexpr std::string_view kOtherVariables[] = {"share"};

namespace {

// Variables of SGLang that change answers, and the setting that a true value stands for.
struct SglangVariable {
  const char* name;
  std::string_view setting, value;
};
constexpr SglangVariable kSglangVariables[] = {
    {"SGLANG_RETURN_ORIGINAL_LOGPROB", "logprobs-mode", "original"}};

// SGLang's spellings of a switch, in any case.
Result<bool> read_sglang_switch(const char* name, std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* yes : {"true", "1", "yes", "y"})
    if (lower == yes) return true;
  for (const char* no : {"false", "0", "no", "n", ""})
    if (lower == no) return false;
  return fail(
      invalid_argument("the environment sets {} to '{}'; it must be true or false", name, text));
}

Status apply_sglang_environment(SettingTable& table) {
  for (const SglangVariable& each : kSglangVariables) {
    const char* value = std::getenv(each.name);
    Setting* setting = table.find(each.setting);
    if (value == nullptr || setting == nullptr) continue;
    ESP_ASSIGN_OR_RETURN(const bool set, read_sglang_switch(each.name, value));
    if (set) ESP_RETURN_IF_ERROR(assign(*setting, {std::string(each.value)}, each.name));
  }
  return {};
}

}  // namespace

// Espalier's own variables come second, and so win.
Status apply_environment(SettingTable& table, const SettingTable& known_elsewhere) {
  ESP_RETURN_IF_ERROR(apply_sglang_environment(table));
  for (Setting& row : table.rows()) {
    std::vector<std::string> names = row.aliases;  // before the name, which wins when both are set
    names.push_back(row.name);
    for (const std::string& each : names) {
      const std::string name = environment_name(each);
      const char* value = std::getenv(name.c_str());
      if (value == nullptr || (*value == '\0' && !row.empty_is_a_value)) continue;
      ESP_RETURN_IF_ERROR(assign(row, {value}, name));
    }
  }
  constexpr std::string_view kPrefix = "ESPALIER_";
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text(*variable);
    if (!text.starts_with(kPrefix)) continue;
    std::string name(text.substr(kPrefix.size(), text.find('=') - kPrefix.size()));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    if (table.find(name) != nullptr || known_elsewhere.find(name) != nullptr) continue;
    if (std::ranges::find(kOtherVariables, name) != std::end(kOtherVariables)) continue;
    for (const SettingTable* each : {&std::as_const(table), &known_elsewhere})
      if (const std::string near = each->nearest_name(name); !near.empty())
        return invalid_argument(
            "the environment sets {}{}, which is no setting; did you mean {}?", kPrefix,
            text.substr(kPrefix.size(), text.find('=') - kPrefix.size()), environment_name(near));
  }
  return {};
}

}  // namespace espalier::apps
