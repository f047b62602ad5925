// Parses the names that statements bind: targets of assignments and loops, parameters of macros.
// The functions read at the cursor and keep no state. Errors are kInvalidArgument with the line.
#pragma once

#include <string_view>
#include <vector>

#include "text/template/ast.h"
#include "text/template/expression_parser.h"
#include "text/template/token_cursor.h"

namespace espalier::jinja {

// What can be assigned to: a, or a, b, or (a, b), or ns.a. Stops before the name or operator `stop`
// ("" for none), so that a trailing comma is allowed.
Result<ExpressionPtr> parse_targets(TokenCursor& tokens, std::string_view stop);

// The parameters of a macro or of a call block, with their brackets: (a, b=1). Appends them to
// `parameters`.
Status parse_parameters(TokenCursor& tokens, ExpressionParser& expressions,
                        std::vector<Parameter>& parameters);

}  // namespace espalier::jinja
