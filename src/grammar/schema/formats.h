// The string formats that JSON Schema names, as regular expressions.
#pragma once

#include <optional>
#include <string_view>

namespace espalier::grammar {

// An anchored pattern for `format`, or nothing when the format is unknown (then it only annotates,
// as the specification says). Dates check the day against the month; 29 February is allowed in
// every year.
std::optional<std::string_view> format_pattern(std::string_view format);

}  // namespace espalier::grammar
