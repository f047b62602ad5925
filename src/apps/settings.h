// The settings of a command, each stated once: a row binds a name to a variable, and flags,
// configuration files, environment variables, --help and docs/flags.md are all made from the rows.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace espalier::apps {

struct Setting {
  // "model-path": the flag --model-path, the file's key model-path or model_path, the environment
  // variable ESPALIER_MODEL_PATH.
  std::string name;
  std::string value_name;       // "PATH" in the help; empty for a switch
  bool takes_several = false;   // several values may stand behind the flag
  bool value_may_lack = false;  // the flag may stand alone, which sets ""
  // An empty environment variable sets "", where it is the same as none for other settings.
  bool empty_is_a_value = false;
  std::string help;
  std::string group;         // heading in the help
  std::string default_text;  // what it is when nobody sets it, as the help says it
  std::vector<std::string> aliases;

  std::function<Status(std::string_view)> set;  // kInvalidArgument says what would be right
  std::function<void()> clear;                  // of a list, whose set() adds; null otherwise
  std::string set_by;  // "--port", "ESPALIER_PORT", "port in FILE"; empty: the default holds

  bool is_switch() const { return value_name.empty(); }
  bool given() const { return !set_by.empty(); }
};

// Binds rows to variables, which outlive the table. Not thread-safe.
class SettingTable {
 public:
  // Rows added from here on stand under this heading.
  void group(std::string heading) { group_ = std::move(heading); }

  Setting& text(std::string name, std::string& target, std::string value_name, std::string help);
  Setting& path(std::string name, std::filesystem::path& target, std::string help);
  // Of a file that is written when the work is done: that its folder is there and may be written
  // to is seen before.
  Setting& result_file(std::string name, std::filesystem::path& target, std::string help);
  // Of a result that is printed as JSON where the flag stands alone (`printed`), else written to
  // the file that it names.
  Setting& result(std::string name, bool& printed, std::filesystem::path& file, std::string help);
  Setting& choice(std::string name, std::string& target, std::vector<std::string> choices,
                  std::string help);
  Setting& toggle(std::string name, bool& target, std::string help);
  Setting& number(std::string name, double& target, double min, double max, std::string help);
  Setting& seconds(std::string name, Duration& target, std::string help);
  // Each use of the flag adds an item; in a file it may be an array.
  Setting& list(std::string name, std::vector<std::string>& target, std::string value_name,
                std::string help);
  template <typename Int>
  Setting& integer(std::string name, Int& target, int64_t min, int64_t max, std::string help) {
    return whole_number(std::move(name), static_cast<int64_t>(target), min, max, std::move(help),
                        [&target](int64_t value) { target = static_cast<Int>(value); });
  }

  // A row whose text is read by `set`.
  Setting& custom(std::string name, std::string value_name, std::string help,
                  std::string default_text, std::function<Status(std::string_view)> set);

  // By name or alias; '_' counts as '-'. Null when there is none.
  Setting* find(std::string_view name);
  const Setting* find(std::string_view name) const;
  std::deque<Setting>& rows() { return rows_; }
  const std::deque<Setting>& rows() const { return rows_; }

  // The name or alias nearest to one that is not in the table; "" when none is near.
  std::string nearest_name(std::string_view name) const;

 private:
  Setting& whole_number(std::string name, int64_t initial, int64_t min, int64_t max,
                        std::string help, std::function<void(int64_t)> assign);

  std::string group_;
  std::deque<Setting> rows_;  // references stay valid
};

// Makes "" an error of a setting that is a key, from the environment too: a script whose variable
// is not set would open the server.
void refuse_empty_key(Setting& key);

// Gives a setting the values that one source has for it: a list is replaced by them, any other
// setting needs them to be equal. A failure names `origin`.
Status assign(Setting& setting, const std::vector<std::string>& values, std::string_view origin);

// Sets what the entries of a JSON or TOML file (by its extension) name. A key that is not in the
// table is an error that suggests the nearest one, unless it is in `known_elsewhere` (settings of
// other commands, so that one file serves all).
Status apply_config_file(SettingTable& table, const std::filesystem::path& path,
                         const SettingTable& known_elsewhere);

// Sets what environment variables name: ESPALIER_ and the setting's name in capitals. A variable
// that looks like a mistyped setting of either table is an error; others with that prefix are left
// alone.
Status apply_environment(SettingTable& table, const SettingTable& known_elsewhere);
std::string environment_name(std::string_view setting);  // "ESPALIER_MODEL_PATH"

// The nearest of `candidates` by edits (insert, delete, replace, swap of neighbours). Where every
// one is more than a third of its length away: the shortest that has `word` as a part
// ("mem-fraction" of "mem-fraction-static"), or "".
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace espalier::apps
