// Calls whose arguments are written one by one, strings without quotes (Qwen3-Coder):
//   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>
// Each parser is used by one thread and shares `tools`, because answers that stream in parallel
// read the schemas of the same request.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>

#include "text/parse/tool_call_parser.h"

namespace espalier {

// The tool's schema decides what a value becomes: a string where the schema allows one; otherwise,
// or where the schema states no type, the JSON that the text spells, and a string if it spells
// none. An undeclared parameter follows additionalProperties, and without it is a string. `tools`:
// a checked list, or null.
std::unique_ptr<ToolCallParser> make_parameter_calls(
    std::shared_ptr<const boost::json::value> tools);

}  // namespace espalier
