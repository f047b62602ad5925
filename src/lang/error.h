// Where a program went wrong. Every primitive remembers the line that wrote it, and a failure is
// reported with that line where the program uses the value that failed.
// Locations and errors are immutable values.
#pragma once

#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>

#include "base/status.h"

namespace espalier::lang {

// A line of a program. Cheap to copy; the names must live as long as the program (literals, or
// names that a binding keeps).
struct Location {
  const char* file = "";
  uint32_t line = 0;  // 0: unknown
  const char* function = "";

  constexpr Location() = default;
  constexpr Location(const char* f, uint32_t l, const char* fn) : file(f), line(l), function(fn) {}
  // NOLINTNEXTLINE: implicit, so that std::source_location::current() is a default argument.
  constexpr Location(std::source_location s)
      : file(s.file_name()), line(s.line()), function(s.function_name()) {}
};

std::string to_string(const Location& where);  // "judge.cc:12"; "" when it is unknown

// What a program meets that reads a value which will never be there. The one place where the
// project throws: a program is a plain function, and where a value is missing it has none to go on
// with. State::get and State::error give the same as a Status.
class Error : public std::runtime_error {
 public:
  Error(Status status, Location where);

  const Status& status() const { return status_; }
  const Location& where() const { return where_; }  // the primitive that failed

 private:
  Status status_;
  Location where_;
};

}  // namespace espalier::lang
