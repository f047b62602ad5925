// A position in a template's tokens, shared by the parsers of statements and of expressions.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/template/lexer.h"

namespace espalier::jinja {

// Reads tokens in their order and writes the errors, which name the current token's line. Not
// thread-safe. REQUIRES: the last token is kEnd, which the cursor never passes.
class TokenCursor {
 public:
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[position_]; }
  // The token behind the current one; at the end, the end itself.
  const Token& peek() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  void advance() { position_ += position_ + 1 < tokens_.size() ? 1 : 0; }

  // Passes the current token if it is this one, and returns whether it was.
  bool skip_operator(std::string_view op);
  bool skip_name(std::string_view name);

  // Passes the current token, or returns kInvalidArgument if it is another.
  Status expect_operator(std::string_view op);
  Status expect_kind(TokenKind kind, std::string_view described);
  Result<std::string> expect_name();

  // Counts brackets and statements within each other. A parser recurses for each of them, so the
  // bound protects the stack. A parse that failed is over, so its levels need no leave().
  Status enter(std::string_view construct);  // "the expression is": the error's first words
  void leave() { --nesting_; }

  Status wrong(std::string_view what) const;         // "line 3: " and `what`
  Status unexpected(std::string_view wanted) const;  // "expected `wanted`, got" the current token

 private:
  static constexpr int kNestingMax = 100;

  const std::vector<Token> tokens_;
  size_t position_ = 0;
  int nesting_ = 0;
};

}  // namespace espalier::jinja
