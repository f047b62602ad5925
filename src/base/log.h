// Logging: one structured line per event, to standard error, none inside per-token loops.
//   log_info("engine started model={} tokens={}", name, max_total_num_tokens);
// Thread-safe. The level is set once, at start. No call waits for the reader of standard error: up
// to 1 MiB of lines that a full pipe does not take wait for a later line, further ones are dropped
// and counted in the log itself.
#pragma once

#include <fmt/core.h>

#include <string_view>

#include "base/status.h"

namespace espalier {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

Result<LogLevel> parse_log_level(std::string_view name);  // debug, info, warning, error, critical
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void log_line(LogLevel level, std::string_view line);

template <typename... Args>
void log_at(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kWarning, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace espalier
