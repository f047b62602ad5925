// Turns a tool call's argument, written as plain text, into JSON. Internal to the folder.
#pragma once

#include <string>

#include "text/parse/parameter_types.h"

namespace espalier {

// One value at a time, character by character. A string is written out as it comes; any other value
// is kept until its end shows whether it is JSON. One line break at the value's start and one at
// its end are not part of it. Not thread-safe.
class ParameterValue {
 public:
  // Each method appends the JSON that is certain to `out`.
  void begin(ParameterTypes types, std::string& out);
  void take(char c, std::string& out);
  void end(std::string& out);
  // The text ended within the value: appends what was kept, without closing the value.
  void abandon(std::string& out);

 private:
  void add(char c, std::string& out);
  std::string as_json() const;

  ParameterTypes types_;
  bool is_streamed_ = false;          // the value is certain to be a string
  bool at_start_ = false;             // no character has come yet
  bool has_pending_newline_ = false;  // a line break that may be the value's last character
  std::string value_;                 // what was kept
};

}  // namespace espalier
