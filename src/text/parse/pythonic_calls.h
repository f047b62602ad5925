// Calls written as a Python list: [f(a=1, b="x"), g()]. Internal to the folder; thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/parse/tool_call_parser.h"

namespace espalier {

// Converts the keyword arguments between a call's parentheses to a JSON object. Returns nothing
// when they are not keyword arguments of literals (numbers, strings, True, False, None, lists,
// tuples, dictionaries).
std::optional<std::string> python_arguments_to_json(std::string_view text);

// The list is the whole answer, or stands between the marks `begin` and `end` where they are not
// empty. Without marks a call is one of `tool_names`.
std::unique_ptr<ToolCallParser> make_pythonic_calls(std::string begin, std::string end,
                                                    std::vector<std::string> tool_names);

}  // namespace espalier
