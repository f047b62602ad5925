// JSON that a caller sends, read with a bound on its depth and told where it is wrong.
#pragma once

#include <boost/json/fwd.hpp>
#include <string_view>

#include "base/status.h"

namespace espalier::grammar {

// The deepest that values may lie in values: what walks them may recurse.
inline constexpr size_t kJsonDepthMax = 500;

// `what` names the text in messages ("the schema"). kInvalidArgument: not JSON, or deeper than
// kJsonDepthMax; with the byte where it was found out.
Result<boost::json::value> parse_json_text(std::string_view text, std::string_view what);

}  // namespace espalier::grammar
