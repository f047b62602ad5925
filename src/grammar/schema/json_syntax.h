// The grammar of JSON itself, on which any-JSON and JSON Schema are built.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/ir.h"

namespace espalier::grammar {

// White space between JSON's tokens. Models tend to loop in unbounded white space, so it is bounded
// by default.
enum class Whitespace {
  kCompact,  // none
  // an optional space after ':' and ','; inside brackets, line breaks with at most 20 blanks of
  // indentation
  kBounded,
  kAny,  // as in RFC 8259
};

// Expressions of one Ir, made on first use. Borrows the Ir. Not thread-safe.
class JsonSyntax {
 public:
  JsonSyntax(Ir& ir, Whitespace whitespace) : ir_(ir), whitespace_(whitespace) {}

  Ir& ir() { return ir_; }
  Whitespace whitespace() const { return whitespace_; }

  ExprId string();       // any string: RFC 8259 without lone \u surrogates
  ExprId string_char();  // one character of a string, escapes included
  // Returns one character out of `ranges` as it may stand in a string: unescaped where that is
  // allowed, or as any of its escapes.
  ExprId string_char(const std::vector<CodeRange>& ranges);
  ExprId number();   // RFC 8259 with at most three digits of exponent
  ExprId integer();  // no fraction, no exponent
  ExprId boolean();
  ExprId null();
  ExprId value();  // any JSON value (a recursive rule)
  ExprId object();
  ExprId array();

  ExprId space_after_mark();  // after a colon or a comma
  ExprId space_inside();      // after an opening and before a closing bracket
  ExprId colon() {
    return made_once(colon_, [&] { return mark(":"); });
  }
  ExprId comma() {
    return made_once(comma_, [&] { return mark(","); });
  }

 private:
  ExprId mark(std::string_view text);  // with its white space
  template <typename Make>
  static ExprId made_once(std::optional<ExprId>& piece, Make make) {
    if (!piece) piece = make();
    return *piece;
  }

  Ir& ir_;
  Whitespace whitespace_;
  bool has_value_ = false, has_string_ = false;
  std::optional<ExprId> colon_, comma_, any_space_;
  RuleId string_rule_ = 0, value_rule_ = 0, object_rule_ = 0, array_rule_ = 0;
};

}  // namespace espalier::grammar
