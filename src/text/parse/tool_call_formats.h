// The formats of tool calls, as data. Internal to the folder. Thread-safe: the table is constant
// and lives as long as the process.
#pragma once

#include <string>
#include <string_view>

namespace espalier {

struct ToolCallFormat {
  enum class Kind { kJson, kDeepSeek, kPythonic, kParameters };
  std::string name;
  Kind kind = Kind::kJson;
  std::string begin, end;               // marks around a call, or around all of them
  bool bare = false;                    // a call at the answer's start needs no mark
  bool names_outside = false;           // name[ARGS]{...} is understood too
  std::string arguments = "arguments";  // the name of the member that has the arguments
  std::string sign;                     // a chat template that contains it has this format
};

const ToolCallFormat* find_tool_call_format(std::string_view name);  // null: there is none

inline constexpr const char* kDeepSeekCallsBegin = "<｜tool▁calls▁begin｜>";
inline constexpr const char* kDeepSeekCallsEnd = "<｜tool▁calls▁end｜>";
inline constexpr const char* kDeepSeekCallBegin = "<｜tool▁call▁begin｜>";
inline constexpr const char* kDeepSeekCallEnd = "<｜tool▁call▁end｜>";
inline constexpr const char* kDeepSeekSep = "<｜tool▁sep｜>";

}  // namespace espalier
