#include "grammar/schema/json_syntax.h"

#include <algorithm>

#include "grammar/automata/lexeme.h"

namespace espalier::grammar {
namespace {

ExprId range(Ir& ir, char low, char high) {
  return ir.chars({{static_cast<uint32_t>(low), static_cast<uint32_t>(high)}});
}

// One hexadecimal digit of low..high, upper or lower case.
ExprId hex_digits(Ir& ir, uint32_t low, uint32_t high) {
  constexpr std::string_view kLower = "0123456789abcdef", kUpper = "0123456789ABCDEF";
  ByteSet set;
  for (uint32_t d = low; d <= high; ++d) {
    set.set(static_cast<uint8_t>(kLower[d]));
    set.set(static_cast<uint8_t>(kUpper[d]));
  }
  return ir.bytes(set);
}

// Hexadecimal digits of low..high; leading digits whose remaining digits are unrestricted are
// merged.
ExprId hex_range(Ir& ir, uint32_t low, uint32_t high, int digits) {
  if (digits == 0) return ir.empty();
  const int shift = 4 * (digits - 1);
  const uint32_t mask = (1u << shift) - 1;
  uint32_t first = low >> shift, last = high >> shift;
  const auto part = [&](uint32_t from_digit, uint32_t to_digit, uint32_t from, uint32_t to) {
    return ir.sequence({hex_digits(ir, from_digit, to_digit), hex_range(ir, from, to, digits - 1)});
  };
  if (first == last) return part(first, first, low & mask, high & mask);
  std::vector<ExprId> parts;
  if ((low & mask) != 0) {
    parts.push_back(part(first, first, low & mask, mask));
    ++first;
  }
  if ((high & mask) != mask) {
    parts.push_back(part(last, last, 0, high & mask));
    --last;
  }
  if (first <= last) parts.push_back(part(first, last, 0, mask));
  return ir.choice(parts);
}

// \uXXXX, or a surrogate pair beyond the basic plane.
ExprId unicode_escape(Ir& ir, uint32_t low, uint32_t high) {
  std::vector<ExprId> parts;
  if (low <= 0xffff) {
    parts.push_back(
        ir.sequence({ir.literal("\\u"), hex_range(ir, low, std::min(high, 0xffffu), 4)}));
  }
  for (uint32_t from = std::max(low, 0x10000u); from <= high;) {
    // Code points from `from` on that share a leading surrogate, or whole blocks of them.
    const uint32_t lead = 0xd800 + ((from - 0x10000) >> 10);
    const uint32_t first = 0xdc00 + ((from - 0x10000) & 0x3ff);
    uint32_t to = std::min(high, from | 0x3ff);
    uint32_t last_lead = lead;
    if (first == 0xdc00) {
      while (to < high && high - to >= 0x400) to += 0x400, ++last_lead;
    }
    const uint32_t last = 0xdc00 + ((to - 0x10000) & 0x3ff);
    parts.push_back(ir.sequence({ir.literal("\\u"), hex_range(ir, lead, last_lead, 4),
                                 ir.literal("\\u"), hex_range(ir, first, last, 4)}));
    from = to + 1;
  }
  return ir.choice(parts);
}

}  // namespace

ExprId JsonSyntax::string_char(const std::vector<CodeRange>& ranges) {
  struct Short {
    uint32_t code_point;
    const char* escape;
  };
  constexpr Short kShort[] = {{'"', "\\\""}, {'\\', "\\\\"}, {'/', "\\/"},  {'\b', "\\b"},
                              {'\f', "\\f"}, {'\n', "\\n"},  {'\r', "\\r"}, {'\t', "\\t"}};
  std::vector<ExprId> parts;
  std::vector<CodeRange> plain;
  for (const CodeRange& r : normalized(ranges)) {
    for (const Short& s : kShort) {
      if (r.low <= s.code_point && s.code_point <= r.high) parts.push_back(ir_.literal(s.escape));
    }
    parts.push_back(unicode_escape(ir_, r.low, r.high));
    uint32_t from = std::max(r.low, 0x20u);
    for (uint32_t special : {uint32_t{'"'}, uint32_t{'\\'}}) {
      if (from <= special && special <= r.high) {
        if (special > from) plain.push_back({from, special - 1});
        from = special + 1;
      }
    }
    if (from <= r.high) plain.push_back({from, r.high});
  }
  parts.push_back(ir_.chars(std::move(plain)));
  return ir_.choice(parts);
}

ExprId JsonSyntax::string_char() { return string_char({{0, kMaxCodePoint}}); }

ExprId JsonSyntax::string() {
  if (!has_string_) {
    has_string_ = true;
    string_rule_ = ir_.rules().add("json string");
    ir_.rules().set_body(string_rule_, lexeme(ir_, Lexeme::kString));
  }
  return ir_.rule(string_rule_);
}

ExprId JsonSyntax::integer() {
  return ir_.sequence(
      {ir_.optional(ir_.literal("-")),
       ir_.choice({ir_.literal("0"),
                   ir_.sequence({range(ir_, '1', '9'), ir_.star(range(ir_, '0', '9'))})})});
}

ExprId JsonSyntax::number() {
  const ExprId digits = ir_.repeat(range(ir_, '0', '9'), 1, kUnbounded);
  const ExprId sign = ir_.optional(ir_.choice({ir_.literal("+"), ir_.literal("-")}));
  const ExprId mark = ir_.choice({ir_.literal("e"), ir_.literal("E")});
  // No double needs a longer exponent, and readers reject numbers that overflow.
  const ExprId exponent = ir_.repeat(range(ir_, '0', '9'), 1, 3);
  return ir_.sequence({integer(), ir_.optional(ir_.sequence({ir_.literal("."), digits})),
                       ir_.optional(ir_.sequence({mark, sign, exponent}))});
}

ExprId JsonSyntax::boolean() { return ir_.choice({ir_.literal("true"), ir_.literal("false")}); }
ExprId JsonSyntax::null() { return ir_.literal("null"); }

ExprId JsonSyntax::space_after_mark() {
  switch (whitespace_) {
    case Whitespace::kCompact:
      return ir_.empty();
    case Whitespace::kBounded: {
      const ExprId indent = ir_.sequence({ir_.literal("\n"), ir_.repeat(ir_.literal(" "), 0, 20)});
      return ir_.choice({ir_.optional(ir_.literal(" ")), indent});
    }
    case Whitespace::kAny:
      break;
  }
  return space_inside();
}

ExprId JsonSyntax::space_inside() {
  switch (whitespace_) {
    case Whitespace::kCompact:
      return ir_.empty();
    case Whitespace::kBounded:
      return space_after_mark();
    case Whitespace::kAny:
      break;
  }
  return made_once(any_space_, [&] {
    return ir_.star(ir_.chars({{' ', ' '}, {'\t', '\n'}, {'\r', '\r'}}));
  });
}

ExprId JsonSyntax::mark(std::string_view text) {
  const ExprId before = whitespace_ == Whitespace::kAny ? space_inside() : ir_.empty();
  return ir_.sequence({before, ir_.literal(text), space_after_mark()});
}

ExprId JsonSyntax::value() {
  if (!has_value_) {
    has_value_ = true;
    value_rule_ = ir_.rules().add("json value");
    object_rule_ = ir_.rules().add("json object");
    array_rule_ = ir_.rules().add("json array");
    const auto list = [&](const char* open, ExprId item, const char* close) {
      const ExprId more = ir_.star(ir_.sequence({comma(), item}));
      return ir_.sequence(
          {ir_.literal(open),
           ir_.choice({space_inside(), ir_.sequence({space_inside(), item, more, space_inside()})}),
           ir_.literal(close)});
    };
    const ExprId any = ir_.rule(value_rule_);
    ir_.rules().set_body(object_rule_, list("{", ir_.sequence({string(), colon(), any}), "}"));
    ir_.rules().set_body(array_rule_, list("[", any, "]"));
    ir_.rules().set_body(value_rule_, ir_.choice({string(), number(), boolean(), null(),
                                                  ir_.rule(object_rule_), ir_.rule(array_rule_)}));
  }
  return ir_.rule(value_rule_);
}

ExprId JsonSyntax::object() { return value(), ir_.rule(object_rule_); }
ExprId JsonSyntax::array() { return value(), ir_.rule(array_rule_); }

}  // namespace espalier::grammar
