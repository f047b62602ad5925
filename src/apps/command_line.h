// From argv to settings: flags over environment over file over defaults. Used by the main thread
// before others start, because reading the environment is not thread-safe.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/settings.h"

namespace espalier::apps {

// Exit codes of every command.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;  // the command failed
inline constexpr int kExitUsage = 2;    // a flag, file or variable is wrong

struct CommandLine {
  std::string name;                 // "espalier serve"
  std::string description;          // one sentence
  std::string footer;               // examples, under the help
  std::string positional;           // "PROMPT" where words without a flag are taken; else empty
  std::vector<std::string> words;   // those words
  bool takes_sglang_flags = false;  // launch lines written for SGLang start too (sglang_flags.h)
};

// Adds --config to the table's rows, parses `args` (without the command's name), applies file and
// environment, and fills what the rows are bound to. Returns nothing when the command goes on,
// otherwise the exit code: help was printed, or an error was reported. Settings in
// `known_elsewhere` may stand in the file.
std::optional<int> parse_command_line(CommandLine& command, SettingTable& table,
                                      const SettingTable& known_elsewhere,
                                      const std::vector<std::string>& args);

// While one lives, parse_command_line() calls `see` instead of parsing, and returns kExitOk; so a
// command's function describes the command and does nothing else (describe.h). One at a time.
class DescriptionScope {
 public:
  using See = std::function<void(const CommandLine&, const SettingTable&)>;
  explicit DescriptionScope(See see);
  ~DescriptionScope();
  DescriptionScope(const DescriptionScope&) = delete;
  DescriptionScope& operator=(const DescriptionScope&) = delete;
};
bool being_described();  // whether one lives

// Writes text to standard error. A failure to write there is ignored (fmt::print would throw): such
// messages are optional and must not stop the work.
void note(std::string_view text);

enum class WriteMode { kReplace, kAppend };

// Writes a file that a flag names. A failure states the system's reason, for example that no space
// is left.
Status write_file(const std::filesystem::path& path, std::string_view text,
                  WriteMode mode = WriteMode::kReplace);

// "error: MESSAGE" to standard error; returns `exit_code`.
int report(const Status& status, int exit_code);

}  // namespace espalier::apps
