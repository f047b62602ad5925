// ESP_CHECK: what only a programmer's error can break. Prints the condition, the place and the
// message, then aborts. A user's input never reaches one: that is what Status is for.
#pragma once

#include <fmt/core.h>

#include <string>

namespace espalier::internal {

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

inline std::string check_message() { return {}; }
template <typename... Args>
std::string check_message(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format(format, std::forward<Args>(args)...);
}

}  // namespace espalier::internal

#define ESP_CHECK(condition, ...)                                                     \
  do {                                                                                \
    if (!(condition)) [[unlikely]]                                                    \
      ::espalier::internal::check_failed(__FILE__, __LINE__, #condition,              \
                                         ::espalier::internal::check_message(__VA_ARGS__)); \
  } while (false)

// The same, left out of release builds: for inner loops.
#ifdef NDEBUG
#define ESP_DCHECK(condition, ...) \
  do {                             \
    (void)sizeof(condition);       \
  } while (false)
#else
#define ESP_DCHECK(condition, ...) ESP_CHECK(condition, __VA_ARGS__)
#endif
