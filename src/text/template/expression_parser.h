// Parses a template's expressions by recursive descent. parser.cc parses the statements around
// them.
#pragma once

#include <string_view>

#include "text/template/ast.h"
#include "text/template/token_cursor.h"

namespace espalier::jinja {

// A node of this kind at the current token's line.
ExpressionPtr make_expression(ExpressionKind kind, const TokenCursor& tokens);

// Jinja's grammar of expressions (jinja2/parser.py), from the loosest binding to the tightest:
// conditional, or, and, not, comparison, + -, ~, * / // %, **, sign, postfix and filters.
// Each method begins at the cursor's current token and leaves the cursor behind what it parsed.
// Errors are kInvalidArgument and name the line. Not thread-safe; the cursor outlives the parser.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenCursor& tokens) : tokens_(tokens) {}

  Result<ExpressionPtr> parse_expression(bool with_conditional = true);
  // An expression, or a tuple where a comma follows it (a, b). Stops at the name `stop_name`.
  // `parenthesised`: an empty tuple is allowed.
  Result<ExpressionPtr> parse_tuple(bool with_conditional = true, bool parenthesised = false,
                                    std::string_view stop_name = {});
  // The chain of filters behind `node`, which is null where the filters apply to a block's text.
  // `first_without_pipe`: the first filter's name is the current token.
  Result<ExpressionPtr> parse_filters(ExpressionPtr node, bool first_without_pipe);

 private:
  Result<ExpressionPtr> parse_conditional();
  Result<ExpressionPtr> parse_or();
  Result<ExpressionPtr> parse_and();
  Result<ExpressionPtr> parse_not();
  Result<ExpressionPtr> parse_compare();
  Result<ExpressionPtr> parse_sum();
  Result<ExpressionPtr> parse_concatenate();
  Result<ExpressionPtr> parse_product();
  Result<ExpressionPtr> parse_power();
  Result<ExpressionPtr> parse_unary(bool with_filter = true);
  Result<ExpressionPtr> parse_primary();
  Result<ExpressionPtr> parse_postfix(ExpressionPtr node);
  Result<ExpressionPtr> parse_subscript(ExpressionPtr node);
  Result<ExpressionPtr> parse_slice_or_item();
  Result<ExpressionPtr> parse_list();
  Result<ExpressionPtr> parse_dict();
  Result<ExpressionPtr> parse_number();
  Result<ExpressionPtr> parse_test(ExpressionPtr node);
  Result<ExpressionPtr> parse_filter_expression(ExpressionPtr node);
  Result<Call> parse_call_arguments();
  ExpressionPtr make(ExpressionKind kind) const { return make_expression(kind, tokens_); }
  ExpressionPtr binary(std::string_view op, ExpressionPtr left, ExpressionPtr right) const;
  bool at_tuple_end(std::string_view stop_name) const;

  TokenCursor& tokens_;
};

}  // namespace espalier::jinja
