#include "grammar/schema/scalars.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "grammar/automata/lexeme.h"
#include "grammar/automata/regular_algebra.h"
#include "grammar/frontends/regex.h"
#include "grammar/schema/json_values.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr int64_t kEscapedLengthMax = 200;  // longer bounded strings take short escapes only
constexpr int64_t kLengthMax = 300;         // of strings that are written out
constexpr int32_t kRepeatMax = 64;          // repetitions in patterns that are written out

// The ticks of every match, where all have as many.
std::optional<int64_t> even_ticks(const Ir& ir, ExprId expr) {
  const Ir::Node& node = ir.node(expr);
  switch (node.op) {
    case Ir::Op::kEmpty:
    case Ir::Op::kBytes:
    case Ir::Op::kEnough:
      return 0;
    case Ir::Op::kTick:
      return 1;
    case Ir::Op::kSequence: {
      int64_t sum = 0;
      for (ExprId child : ir.children(expr)) {
        const auto ticks = even_ticks(ir, child);
        if (!ticks) return std::nullopt;
        sum += *ticks;
      }
      return sum;
    }
    case Ir::Op::kChoice: {
      std::optional<int64_t> all;
      for (ExprId child : ir.children(expr)) {
        const auto ticks = even_ticks(ir, child);
        if (!ticks || (all && *all != *ticks)) return std::nullopt;
        all = ticks;
      }
      return all;
    }
    case Ir::Op::kRepeat: {
      const auto ticks = even_ticks(ir, ir.children(expr)[0]);
      if (!ticks || (*ticks > 0 && node.min != node.max)) return std::nullopt;
      return *ticks * node.min;
    }
    case Ir::Op::kNever:
    case Ir::Op::kRule:
    case Ir::Op::kGraph:
      break;
  }
  return std::nullopt;
}

// A sequence with one long repetition of single ticks, all else in it of even ticks, says no more
// than how many ticks there are in all: the same with any number of repetitions, and those bounds.
struct Loosened {
  ExprId expr = 0;
  int64_t least = 0, most = kUnbounded;
};
std::optional<Loosened> loosened(Ir& ir, ExprId expr) {
  std::vector<ExprId> parts = {expr};
  if (ir.node(expr).op == Ir::Op::kSequence) {
    parts.assign(ir.children(expr).begin(), ir.children(expr).end());
  }
  std::optional<Loosened> found;
  int64_t others = 0;
  for (ExprId& part : parts) {
    const Ir::Node node = ir.node(part);
    const bool is_long = node.op == Ir::Op::kRepeat && std::max(node.min, node.max) > kRepeatMax &&
                         even_ticks(ir, ir.children(part)[0]) == 1;
    if (is_long && found) return std::nullopt;
    if (is_long) {
      found = {.least = node.min, .most = node.max};
      part = ir.star(ir.children(part)[0]);
      continue;
    }
    const auto ticks = even_ticks(ir, part);
    if (!ticks) return std::nullopt;
    others += *ticks;
  }
  if (!found) return std::nullopt;
  found->expr = ir.sequence(parts);
  found->least += others;
  if (found->most != kUnbounded) found->most += others;
  return found;
}

}  // namespace

// A value written once: as serialisers would, with the white space that the policy allows.
ExprId ScalarCompiler::literal(const json::value& value) {
  if (is_number(value)) {
    const std::string text = number_text(value);
    return text.empty() ? ir_.never() : ir_.literal(text);
  }
  if (!value.is_structured()) return ir_.literal(json::serialize(value));
  std::vector<ExprId> parts;
  const bool is_object = value.is_object();
  const size_t size = is_object ? value.get_object().size() : value.get_array().size();
  parts.push_back(ir_.literal(is_object ? "{" : "["));
  parts.push_back(syntax_.space_inside());
  const auto between = [&] {
    if (parts.size() > 2) parts.push_back(compiler_.comma());
  };
  if (is_object) {
    for (const auto& [key, member_value] : value.get_object()) {
      between();
      parts.push_back(ir_.sequence({quoted(ir_, key), syntax_.colon(), literal(member_value)}));
    }
  } else {
    for (const json::value& item : value.get_array()) {
      between();
      parts.push_back(literal(item));
    }
  }
  if (size > 0) parts.push_back(syntax_.space_inside());
  parts.push_back(ir_.literal(is_object ? "}" : "]"));
  return ir_.sequence(parts);
}

// Also with a point and zeros, where these are integers.
ExprId ScalarCompiler::with_whole_fraction(ExprId integer) {
  const ExprId zeros = ir_.repeat(ir_.literal("0"), 1, kUnbounded);
  return ir_.sequence({integer, ir_.optional(ir_.sequence({ir_.literal("."), zeros}))});
}

Result<ExprId> ScalarCompiler::number(const Constraints& constraints) {
  const bool integers_only = (constraints.types & kNumber) == kInteger;
  std::vector<std::string> excluded;
  for (const json::value* list : constraints.not_enums) {
    for (const json::value& v : list->get_array()) {
      const auto decimal = Decimal::of(v);
      if (!decimal) continue;
      excluded.push_back((decimal->negative && !decimal->zero() ? "-" : "") +
                         (decimal->whole.empty() ? "0" : decimal->whole) +
                         (decimal->fraction.empty() ? "" : "." + decimal->fraction));
    }
  }
  const bool fractions_only = (constraints.types & kNumber) == kFraction;
  const bool with_zeros = integers_only && options_.whole_fractions;
  if (!constraints.bounds.any() && constraints.divisors.empty() &&
      constraints.not_divisors.empty() && excluded.empty() && !fractions_only) {
    if (!integers_only) return syntax_.number();
    return with_zeros ? with_whole_fraction(syntax_.integer()) : syntax_.integer();
  }
  ESP_ASSIGN_OR_RETURN(ExprId expr,
                       bounded_number(ir_, constraints.bounds, integers_only, limits_));
  const bool only_bounds = constraints.divisors.empty() && constraints.not_divisors.empty() &&
                           excluded.empty() && !fractions_only;
  if (only_bounds && !integers_only)
    return ir_.sequence({expr, exponent_within(ir_, constraints.bounds)});
  for (const Decimal& divisor : constraints.divisors) {
    ESP_ASSIGN_OR_RETURN(const ExprId multiples, multiple_of(ir_, divisor));
    ESP_ASSIGN_OR_RETURN(expr, intersection(ir_, expr, multiples, limits_));
  }
  for (const Decimal& divisor : constraints.not_divisors) {
    ESP_ASSIGN_OR_RETURN(const ExprId multiples, multiple_of(ir_, divisor));
    ESP_ASSIGN_OR_RETURN(expr, difference(ir_, expr, multiples, limits_));
  }
  if (fractions_only) {
    ESP_ASSIGN_OR_RETURN(const ExprId fraction, parse_regex(ir_, "-?[0-9]+\\.[0-9]*[1-9][0-9]*"));
    ESP_ASSIGN_OR_RETURN(expr, intersection(ir_, expr, fraction, limits_));
  }
  if (!excluded.empty()) {
    // Every way to write them: zeros after the point, a minus before 0.
    std::vector<ExprId> alternatives;
    const ExprId zeros = ir_.star(ir_.literal("0"));
    for (const std::string& text : excluded) {
      const ExprId tail = text.find('.') == std::string::npos
                              ? ir_.optional(ir_.sequence({ir_.literal(".0"), zeros}))
                              : zeros;
      alternatives.push_back(ir_.sequence({ir_.literal(text), tail}));
      if (text == "0") alternatives.push_back(ir_.sequence({ir_.literal("-0"), tail}));
    }
    ESP_ASSIGN_OR_RETURN(expr, difference(ir_, expr, ir_.choice(alternatives), limits_));
  }
  return with_zeros ? with_whole_fraction(expr) : expr;
}

// Strings whose length a counter bounds; nothing where the patterns leave only some lengths.
Result<std::optional<ExprId>> ScalarCompiler::counted_string(const Constraints& constraints) {
  using Counted = std::optional<ExprId>;
  constexpr int64_t kMost = 1 << 30;
  const bool plain = constraints.patterns.empty() && constraints.not_patterns.empty();
  std::optional<ExprId> expr;
  if (constraints.patterns.empty()) {
    const ExprId quote = ir_.literal("\"");
    const ExprId one = plain ? ir_.empty() : serialised_char(ir_, {{0, 0x10ffff}});
    expr =
        plain
            ? grammar::counted_string(ir_)
            : ir_.sequence({quote, ir_.star(ir_.sequence({ir_.tick(), one})), ir_.enough(), quote});
  }
  int64_t least = constraints.length_min, most = constraints.length_max;
  for (const std::string& pattern : constraints.patterns) {
    ESP_ASSIGN_OR_RETURN(ExprId matched, compiler_.patterns().quoted_strings(pattern, true));
    if (const auto loose = loosened(ir_, matched)) {
      matched = loose->expr;
      least = std::max(least, loose->least);
      if (loose->most != kUnbounded) {
        most = most == kUnbounded ? loose->most : std::min(most, loose->most);
      }
    }
    if (expr) {
      ESP_ASSIGN_OR_RETURN(expr, intersection(ir_, *expr, matched, limits_));
    } else {
      expr = matched;
    }
  }
  for (const std::string& pattern : constraints.not_patterns) {
    ESP_ASSIGN_OR_RETURN(const ExprId matched, compiler_.patterns().quoted_strings(pattern, true));
    ESP_ASSIGN_OR_RETURN(expr, difference(ir_, *expr, matched, limits_));
  }
  if (*expr == ir_.never()) return Counted(ir_.never());
  if (most != kUnbounded && most < least) return Counted(ir_.never());
  IrRules::Counter counter{.min = static_cast<uint32_t>(std::min(least, kMost)),
                           .max = IrRules::kNoMax};
  if (most != kUnbounded && most < kMost) counter.max = static_cast<uint32_t>(most);
  if (!plain) {
    ESP_ASSIGN_OR_RETURN(const TickProfile profile, tick_profile(ir_, *expr, limits_));
    const bool too_short = profile.most && *profile.most < counter.min;
    if (too_short || profile.least > counter.max) return Counted(ir_.never());
    if (profile.least >= counter.min && profile.most && *profile.most <= counter.max) {
      counter = {.min = 0, .max = IrRules::kNoMax};  // the patterns bound it more tightly
    } else if (profile.least >= counter.min) {
      counter.min = 0;  // every match has as many; for the maximum, room to the end is enough
    } else if (!profile.even) {
      return Counted();
    }
  }
  const RuleId rule = ir_.rules().add("string of bounded length");
  ir_.rules().set_body(rule, *expr);
  ir_.rules().set_counter(rule, counter);
  return Counted(ir_.rule(rule));
}

Result<ExprId> ScalarCompiler::string(const Constraints& constraints) {
  auto exact = string_exactly(constraints);
  if (exact || !compiler_.approximating() || exact.error().code() == StatusCode::kInvalidArgument)
    return exact;
  compiler_.require_check();
  return syntax_.string();
}

Result<ExprId> ScalarCompiler::string_exactly(const Constraints& constraints) {
  std::vector<std::string> excluded;
  for (const json::value* list : constraints.not_enums) {
    for (const json::value& v : list->get_array()) {
      if (v.is_string()) excluded.push_back(json::serialize(v));
    }
  }
  if (constraints.length_max != kUnbounded && constraints.length_max < constraints.length_min)
    return ir_.never();
  const bool any_length = constraints.length_min == 0 && constraints.length_max == kUnbounded;
  const bool plain =
      constraints.patterns.empty() && constraints.not_patterns.empty() && excluded.empty();
  if (any_length && plain) return syntax_.string();
  bool counts = !any_length;
  for (const std::string& pattern : constraints.patterns) {
    if (counts) break;
    ESP_ASSIGN_OR_RETURN(const ExprId written, compiler_.patterns().quoted_strings(pattern, true));
    counts = loosened(ir_, written).has_value();
  }
  if (counts && excluded.empty() && compiler_.counters_allowed()) {
    ESP_ASSIGN_OR_RETURN(const auto counted, counted_string(constraints));
    if (counted) return *counted;
  }
  const int64_t longest = std::max(constraints.length_min, constraints.length_max);
  if (longest > kLengthMax) {
    return fail(error(StatusCode::kUnimplemented,
                      "strings are counted up to {} characters; minLength or maxLength asks for {}",
                      kLengthMax, longest));
  }
  const ExprId one = plain && longest <= kEscapedLengthMax ? syntax_.string_char()
                                                           : serialised_char(ir_, {{0, 0x10ffff}});
  const ExprId quote = ir_.literal("\"");
  std::optional<ExprId> expr;
  if (!any_length || constraints.patterns.empty()) {
    expr = ir_.sequence({quote,
                         ir_.repeat(one, static_cast<int32_t>(constraints.length_min),
                                    static_cast<int32_t>(constraints.length_max)),
                         quote});
  }
  for (const std::string& pattern : constraints.patterns) {
    ESP_ASSIGN_OR_RETURN(const ExprId matched, compiler_.patterns().quoted_strings(pattern));
    if (expr) {
      ESP_ASSIGN_OR_RETURN(expr, intersection(ir_, *expr, matched, limits_));
    } else {
      expr = matched;
    }
  }
  for (const std::string& pattern : constraints.not_patterns) {
    ESP_ASSIGN_OR_RETURN(const ExprId matched, compiler_.patterns().quoted_strings(pattern));
    ESP_ASSIGN_OR_RETURN(expr, difference(ir_, *expr, matched, limits_));
  }
  if (!excluded.empty()) {
    ESP_ASSIGN_OR_RETURN(expr, difference(ir_, *expr, ir_.literals(std::move(excluded)), limits_));
  }
  return *expr;
}

}  // namespace espalier::grammar
