// Calls whose name stands before their JSON, between marks of their own: DeepSeek V3 and Kimi K2.
// Internal to the folder.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <string>

#include "text/parse/tool_call_parser.h"

namespace espalier {

struct NamedCallMarks {
  std::string calls_begin, calls_end;  // around all calls
  std::string call_begin, call_end;
  std::string separator;  // between a name or a type and what follows it
};

// CALL_BEGIN NAME SEPARATOR {...} CALL_END, or with a type: TYPE SEPARATOR NAME ```json {...}.
// A name may be written as functions.NAME:3. Where only a number is given, as Kimi K2 does at
// times, the tool that declares all arguments is called. Thread-safe. `tools`: a checked list, or
// null.
std::unique_ptr<ToolCallParser> make_named_calls(NamedCallMarks marks,
                                                 std::shared_ptr<const boost::json::value> tools);

}  // namespace espalier
