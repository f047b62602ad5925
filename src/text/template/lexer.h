// Template source to tokens, with Jinja's white space control (trim_blocks and lstrip_blocks on).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier::jinja {

enum class TokenKind {
  kData,  // text outside tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // of strings: the value, escapes decoded
  int line = 1;

  bool is_operator(std::string_view op) const { return kind == TokenKind::kOperator && text == op; }
  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
};

// Ends with kEnd. kInvalidArgument names the line.
Result<std::vector<Token>> tokenize_template(std::string_view source);

}  // namespace espalier::jinja
