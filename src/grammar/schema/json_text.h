// Parsing of JSON that a client sent, with bounded depth and errors that name the position.
// Thread-safe.
#pragma once

#include <boost/json/fwd.hpp>
#include <string_view>

#include "base/status.h"

namespace espalier::grammar {

// The deepest nesting of values, since callers may recurse over them.
inline constexpr size_t kJsonDepthMax = 500;

// `what` names the text in messages ("the schema"). kInvalidArgument: not JSON, or nested deeper
// than kJsonDepthMax, with the offset of the error.
Result<boost::json::value> parse_json_text(std::string_view text, std::string_view what);

// The same, with numbers that a double would round kept as they are written: see json_values.h.
Result<boost::json::value> parse_exact_json_text(std::string_view text, std::string_view what);

}  // namespace espalier::grammar
