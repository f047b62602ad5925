#include "base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>

#include "base/line_writer.h"

namespace espalier {
namespace {

std::atomic<LogLevel> log_level_min{LogLevel::kInfo};

// Standard error, for which no thread ever waits: a full pipe costs lines, not the server's time.
class StandardErrorSink final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    writer_.write({line.data(), line.size()});
  }
  void flush_() override { writer_.flush(); }

  LineWriter writer_{STDERR_FILENO};
};

spdlog::logger& logger() {
  // Never destroyed: threads may log while the process ends.
  static spdlog::logger* const instance = [] {
    auto* made = new spdlog::logger("espalier", std::make_shared<StandardErrorSink>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
    made->set_level(spdlog::level::trace);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::info;
}

}  // namespace

Result<LogLevel> parse_log_level(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning" || name == "warn") return LogLevel::kWarning;
  if (name == "error" || name == "critical") return LogLevel::kError;
  if (name == "off") return LogLevel::kOff;
  return fail(
      invalid_argument("log level '{}' is unknown; use debug, info, warning, error or off", name));
}

void set_log_level(LogLevel level) { log_level_min.store(level, std::memory_order_relaxed); }

bool log_enabled(LogLevel level) { return level >= log_level_min.load(std::memory_order_relaxed); }

// Lines quote what clients sent, which must neither end a line nor steer a terminal.
void log_line(LogLevel level, std::string_view line) {
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::ranges::none_of(line, is_control)) return logger().log(to_spdlog(level), line);
  std::string escaped;
  for (const char c : line) {
    if (c == '\n') {
      escaped += "\\n";
    } else if (is_control(c)) {
      fmt::format_to(std::back_inserter(escaped), "\\x{:02x}", static_cast<unsigned>(c));
    } else {
      escaped += c;
    }
  }
  logger().log(to_spdlog(level), escaped);
}

}  // namespace espalier
