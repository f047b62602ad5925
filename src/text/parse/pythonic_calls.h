// Calls written as a Python list: [f(a=1, b="x"), g()]. Pure; thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace espalier {

// Converts the keyword arguments between a call's parentheses to a JSON object. Returns nothing
// when they are not keyword arguments of literals (numbers, strings, True, False, None, lists,
// tuples, dictionaries).
std::optional<std::string> python_arguments_to_json(std::string_view text);

}  // namespace espalier
