// Arguments of a tool call written one by one, strings without quotes: the content of structural
// tags of type qwen_xml_parameter, and of those with a style other than JSON.
#pragma once

#include <boost/json/fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"
#include "grammar/schema/json_syntax.h"

namespace espalier::grammar {

// How one argument is written: BEFORE key BEHIND value END.
struct ParameterStyle {
  std::string_view name;
  std::string_view before;
  std::string_view behind_text;  // before a string value
  std::string_view behind_json;  // before any other value
  std::string_view value_end;    // no string value contains it
  std::string_view after;        // behind value_end
  bool own_lines = false;        // the value stands on lines of its own
};
// "qwen_xml", "minimax_xml", "deepseek_xml" or "glm_xml"; null for any other. Thread-safe.
const ParameterStyle* find_parameter_style(std::string_view name);

// For each property of the schema, in declared order, with properties that are not required
// optional, an argument in the style; in qwen_xml:
//   <parameter=KEY>\nVALUE\n</parameter>\n
// A string value is free text without the style's value_end, restricted by enum, const, pattern,
// format and lengths; any other value is JSON. Undeclared parameters follow where
// additionalProperties allows them or nothing is declared. Other keywords of an object are refused
// by name.
Result<ExprId> parameter_format(Ir& ir, const boost::json::value& schema, const std::string& where,
                                const ParameterStyle& style, Whitespace whitespace,
                                const GrammarLimits& limits);

}  // namespace espalier::grammar
