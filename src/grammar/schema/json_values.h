// Comparison of JSON values as JSON Schema defines it. Pure and thread-safe.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

namespace espalier::grammar {

// Numbers that a double would round are kept as they are written, as an object of one internal
// member (json_text.h). These functions see through it; other code treats only is_plain_object()
// values as objects.
inline constexpr std::string_view kExactNumber = "\x01number";
bool is_number(const boost::json::value& v);
bool is_plain_object(const boost::json::value& v);
bool is_plain_structure(const boost::json::value& v);  // an array or a plain object

// Returns a number as JSON: as written where it is exact, else the shortest text of the double.
std::string number_text(const boost::json::value& number);

// Returns whether two values are equal: 1 and 1.0 are, and the order of members does not matter.
bool equal_values(const boost::json::value& a, const boost::json::value& b);

// Returns a text that is equal exactly for equal values.
std::string canonical_text(const boost::json::value& v);

}  // namespace espalier::grammar
