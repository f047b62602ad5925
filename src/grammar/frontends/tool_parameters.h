// Arguments of a tool call written one by one, strings without quotes: the content of structural
// tags of type qwen_xml_parameter.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"
#include "grammar/schema/json_syntax.h"

namespace espalier::grammar {

// For each property of the schema, in declared order, with properties that are not required
// optional:
//   <parameter=KEY>\nVALUE\n</parameter>\n
// A string value is free text without "</parameter>", restricted by enum, const, pattern, format
// and lengths; any other value is JSON. Undeclared parameters follow where additionalProperties
// allows them or nothing is declared. Other keywords of an object are refused by name.
Result<ExprId> parameter_format(Ir& ir, const boost::json::value& schema, const std::string& where,
                                Whitespace whitespace, const GrammarLimits& limits);

}  // namespace espalier::grammar
