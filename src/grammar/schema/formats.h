// The string formats that JSON Schema names, as regular expressions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace espalier::grammar {

// Returns an anchored pattern for `format`, or nothing for unknown formats, which only annotate.
// Dates include leap years and times the leap second in every offset of half hours. Thread-safe.
std::optional<std::string_view> format_pattern(std::string_view format);

// Returns the largest number of characters that the format allows beside its pattern, if it bounds
// it.
std::optional<int64_t> format_length_max(std::string_view format);

}  // namespace espalier::grammar
