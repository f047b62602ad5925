// Arguments of a call written one by one, strings without quotes: the content of structural tags
// of type qwen_xml_parameter.
#pragma once

#include <boost/json/fwd.hpp>
#include <string>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"
#include "grammar/schema/json_syntax.h"

namespace espalier::grammar {

// For each property of the schema, in the declared order, those that are not required at will:
//   <parameter=KEY>\nVALUE\n</parameter>\n
// A value that is a string is free text without "</parameter>" (held to enum, const, pattern,
// format and lengths), any other JSON. Undeclared parameters follow where additionalProperties
// says so or nothing is declared. What else a schema of an object says is refused by name.
Result<ExprId> parameter_format(Ir& ir, const boost::json::value& schema, const std::string& where,
                                Whitespace whitespace, const GrammarLimits& limits);

}  // namespace espalier::grammar
