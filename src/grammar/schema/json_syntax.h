// JSON's own pieces: what "any JSON" is, and what JSON Schema is built from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/ir.h"

namespace espalier::grammar {

// White space between JSON's tokens. Unbounded white space is what models loop in, so it is bounded
// unless asked for.
enum class Whitespace {
  kCompact,  // none
  kBounded,  // after ':' and ',' an optional space; inside brackets line breaks with at most 20
             // blanks of indentation
  kAny,      // as RFC 8259
};

// Expressions of one Ir, made as they are asked for. Borrowed: the Ir outlives it.
class JsonSyntax {
 public:
  JsonSyntax(Ir& ir, Whitespace whitespace) : ir_(ir), whitespace_(whitespace) {}

  Ir& ir() { return ir_; }
  Whitespace whitespace() const { return whitespace_; }

  ExprId string();       // any string: RFC 8259, lone \u surrogates excepted
  ExprId string_char();  // one character of a string, escapes included
  // One character out of `ranges` as it may stand in a string: itself where that is allowed, or any
  // of its escapes.
  ExprId string_char(const std::vector<CodeRange>& ranges);
  ExprId number();   // as RFC 8259, with at most three digits of exponent
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
