// Calls whose arguments are written one by one, strings without quotes (Qwen3-Coder):
//   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>

#include "text/parse/tool_call_parser.h"

namespace espalier {

// Values become what the tool's schema says of them: a string where it lets them be one; else, and
// where the parameter is declared without a type, JSON if they are. Undeclared ones are
// what additionalProperties says of them; strings where it says nothing.
// `tools`: a checked list, or null.
std::unique_ptr<ToolCallParser> make_parameter_calls(
    std::shared_ptr<const boost::json::value> tools);

}  // namespace espalier
