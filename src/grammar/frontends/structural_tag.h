// Structural tags: free text in which certain beginnings open a structured part, and formats
// composed of texts, schemas, expressions and tags.
#pragma once

#include <string_view>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"
#include "grammar/schema/json_syntax.h"

namespace espalier::grammar {

// `source` is JSON, in either of two forms, with or without "type": "structural_tag":
//   {"structures": [{"begin": "<f>", "schema": {...}, "end": "</f>"}], "triggers": ["<f"],
//    "at_least_one": false}
//   {"format": F}, where F is an object with a type:
//     const_string {value}              json_schema {json_schema}      regex {pattern}
//     grammar {grammar}                 any_text {excludes}            sequence, or {elements}
//     optional, star, plus {content}    repeat {content, min, max}     tag {begin, content, end}
//     triggered_tags {triggers, tags, at_least_one, stop_after_first, excludes}
//     tags_with_separator {tags, separator, at_least_one, stop_after_first, max}
// With at_least_one the text begins with a tag; a max of -1 is no maximum. Where a trigger
// has been written one of the tags that begin with it must follow; a tag's end may be a list of
// strings; any text inside a tag lasts until the first of its ends. kInvalidArgument names the
// member that is wrong, kUnimplemented a type or member that is not known.
Result<ExprId> parse_structural_tag(Ir& ir, std::string_view source, Whitespace whitespace,
                                    const GrammarLimits& limits);

}  // namespace espalier::grammar
