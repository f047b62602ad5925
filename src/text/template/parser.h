// Recursive descent over a template's tokens: expressions here, statements in parser.cc.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/template/ast.h"
#include "text/template/lexer.h"

namespace espalier::jinja {

// Jinja's grammar of expressions (jinja2/parser.py), which binds looser to tighter: conditional,
// or, and, not, comparison, + -, ~, * / // %, **, sign, postfix and filters.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  const Token& current() const { return tokens_[position_]; }
  const Token& peek() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  void advance() { position_ += position_ + 1 < tokens_.size() ? 1 : 0; }
  bool skip_operator(std::string_view op);
  bool skip_name(std::string_view name);
  Status expect_operator(std::string_view op);
  Result<std::string> expect_name();
  Status wrong(std::string_view what) const;
  Status unexpected(std::string_view wanted) const;

  Result<ExpressionPtr> parse_expression(bool with_conditional = true);
  // a, b: a tuple where there is a comma. Stops at `stop_name`.
  Result<ExpressionPtr> parse_tuple(bool with_conditional = true, bool parenthesised = false,
                                    std::string_view stop_name = {});
  Result<ExpressionPtr> parse_primary();
  Result<Call> parse_call_arguments();
  Result<ExpressionPtr> parse_filters(ExpressionPtr node, bool first_without_pipe);
  ExpressionPtr make(ExpressionKind kind) const;

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
  Result<ExpressionPtr> parse_postfix(ExpressionPtr node);
  Result<ExpressionPtr> parse_subscript(ExpressionPtr node);
  Result<ExpressionPtr> parse_slice_or_item();
  Result<ExpressionPtr> parse_list();
  Result<ExpressionPtr> parse_dict();
  Result<ExpressionPtr> parse_number();
  Result<ExpressionPtr> parse_test(ExpressionPtr node);
  Result<ExpressionPtr> parse_filter_expression(ExpressionPtr node);
  ExpressionPtr binary(std::string_view op, ExpressionPtr left, ExpressionPtr right) const;
  bool at_tuple_end(std::string_view stop_name) const;

  std::vector<Token> tokens_;
  size_t position_ = 0;

 protected:
  // Brackets and statements within each other; beyond it the stack would be at risk.
  static constexpr int kNestingMax = 100;
  int nesting_ = 0;
};

}  // namespace espalier::jinja
