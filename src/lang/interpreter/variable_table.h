// The variables of a prompt state by name, as its program declares them. Internal to the room.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "lang/expr.h"
#include "lang/interpreter/variable.h"

namespace espalier::lang {

// Not thread-safe: the stream's monitor guards it. Shares the variables with operations, branches
// and readers.
class VariableTable {
 public:
  // A later variable of the same name replaces an earlier one. A variable without a name is filled
  // and read by nobody else.
  VariablePtr declare(const std::string& name);
  // What the primitive will fill.
  struct Outputs {
    VariablePtr target, reasoning;
  };
  Outputs declare_outputs(const Node& node);

  VariablePtr find(std::string_view name) const;  // null: there is none
  std::vector<std::string> names() const;
  // kNotFound, with the names that there are.
  Status unknown(std::string_view name) const;
  // Not ok for what only the reader itself can complete, so that waiting would not end: an open
  // scope and, with `defers_messages`, a gen of an open message.
  Status check_readable(std::string_view name, bool defers_messages) const;

  void inherit(const VariableTable& parent);                       // of a branch, at its fork
  std::vector<std::pair<std::string, VariablePtr>> added() const;  // since then, changed ones too
  void fail_added(const Status& why, Location where) const;

 private:
  using Variables = std::map<std::string, VariablePtr, std::less<>>;

  Variables variables_, inherited_;
  // In the order of the program's appends, which is ahead of what was computed.
  std::vector<std::string> open_scopes_, open_message_gens_;
  bool is_message_open_ = false;
};

}  // namespace espalier::lang
