// From facts to expressions: values, numbers and strings.
#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "grammar/automata/lexeme.h"
#include "grammar/automata/regular_algebra.h"
#include "grammar/frontends/regex.h"
#include "grammar/schema/compiler.h"

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

ExprId SchemaCompiler::quoted(std::string_view text) {
  return ir_.literal(json::serialize(json::string(text)));
}

// A value written once: as serialisers would, with the white space that the policy allows.
ExprId SchemaCompiler::literal_value(const json::value& value) {
  if (value.is_double()) {
    char text[64];
    const auto [end, failed] = std::to_chars(text, text + sizeof(text), value.get_double());
    return failed == std::errc() ? ir_.literal({text, static_cast<size_t>(end - text)})
                                 : ir_.never();
  }
  if (!value.is_structured()) return ir_.literal(json::serialize(value));
  std::vector<ExprId> parts;
  const bool is_object = value.is_object();
  const size_t size = is_object ? value.get_object().size() : value.get_array().size();
  parts.push_back(ir_.literal(is_object ? "{" : "["));
  parts.push_back(syntax_.space_inside());
  const auto between = [&] {
    if (parts.size() > 2) parts.push_back(syntax_.comma());
  };
  if (is_object) {
    for (const auto& [key, member_value] : value.get_object()) {
      between();
      parts.push_back(ir_.sequence({quoted(key), syntax_.colon(), literal_value(member_value)}));
    }
  } else {
    for (const json::value& item : value.get_array()) {
      between();
      parts.push_back(literal_value(item));
    }
  }
  if (size > 0) parts.push_back(syntax_.space_inside());
  parts.push_back(ir_.literal(is_object ? "}" : "]"));
  return ir_.sequence(parts);
}

Result<ExprId> SchemaCompiler::lower_facts(const Conjunction& elements, const Facts& facts) {
  if (const auto values = allowed_values(facts)) return lower_values(elements, *values, facts);
  const bool free =
      facts.types == kAllTypes && !facts.array_facts && !facts.object_facts && !facts.any_facts;
  if (free) return syntax_.value();
  std::vector<ExprId> alternatives;
  const auto excluded = [&](const json::value& wanted) {
    return std::ranges::any_of(facts.not_enums, [&](const json::value* list) {
      const auto& values = list->get_array();
      return std::ranges::find(values, wanted) != values.end();
    });
  };
  if ((facts.types & kNull) && !excluded(nullptr)) alternatives.push_back(syntax_.null());
  if (facts.types & kBoolean) {
    if (!excluded(true)) alternatives.push_back(ir_.literal("true"));
    if (!excluded(false)) alternatives.push_back(ir_.literal("false"));
  }
  if (facts.types & kNumber) {
    ESP_ASSIGN_OR_RETURN(const ExprId number, lower_number(facts));
    alternatives.push_back(number);
  }
  if (facts.types & kString) {
    ESP_ASSIGN_OR_RETURN(const ExprId string, lower_string(facts));
    alternatives.push_back(string);
  }
  bool structured_excluded = std::ranges::any_of(facts.not_enums, [](const json::value* list) {
    return std::ranges::any_of(list->get_array(),
                               [](const json::value& v) { return v.is_structured(); });
  });
  if (rough_ && structured_excluded) {
    left_out_ = true;
    structured_excluded = false;
  }
  if (structured_excluded && (facts.types & (kArray | kObject))) {
    return fail(error(StatusCode::kUnimplemented,
                      "{}: excluding arrays or objects by value is not supported",
                      document_.pointer_of(elements[0].schema)));
  }
  if (facts.types & kArray) {
    if (facts.array_error && !rough_) return fail(*facts.array_error);
    left_out_ |= facts.array_error.has_value();
    ESP_ASSIGN_OR_RETURN(const ExprId array, lower_array(elements, facts));
    alternatives.push_back(array);
  }
  if (facts.types & kObject) {
    if (facts.object_error && !rough_) return fail(*facts.object_error);
    left_out_ |= facts.object_error.has_value();
    ESP_ASSIGN_OR_RETURN(const ExprId object, lower_object(elements, facts));
    alternatives.push_back(object);
  }
  return ir_.choice(alternatives);
}

// Values that enums and constants leave, and that satisfy whatever else is asked.
Result<ExprId> SchemaCompiler::lower_values(const Conjunction& elements,
                                            const std::vector<const json::value*>& values,
                                            const Facts& facts) {
  const bool more_asked = facts.any_facts || facts.array_facts || facts.object_facts;
  const auto type_of = [](const json::value& v) -> uint8_t {
    if (v.is_null()) return kNull;
    if (v.is_bool()) return kBoolean;
    if (v.is_string()) return kString;
    if (v.is_array()) return kArray;
    if (v.is_object()) return kObject;
    const auto decimal = Decimal::of(v);
    return decimal && decimal->fraction.empty() ? kInteger : kFraction;
  };
  std::vector<std::string> scalars;
  std::vector<ExprId> alternatives;
  for (const json::value* v : values) {
    if (!(facts.types & type_of(*v))) continue;
    if (more_asked) {
      ESP_RETURN_IF_ERROR(limits_.check_time());
      ESP_ASSIGN_OR_RETURN(const bool fits, holds(*v, elements));
      if (!fits) continue;
    }
    if (options_.any_order && v->is_structured()) {
      // Its members may come in any order: whatever equals it, told by the check.
      left_out_ = true;
      alternatives.push_back(v->is_object() ? syntax_.object() : syntax_.array());
    } else if (v->is_structured() || v->is_double()) {
      alternatives.push_back(literal_value(*v));
    } else {
      scalars.push_back(json::serialize(*v));
    }
    const auto decimal = Decimal::of(*v);
    const bool whole = decimal && decimal->fraction.empty();
    if (whole && options_.whole_fractions)
      alternatives.push_back(with_whole_fraction(literal_value(*v)));
  }
  if (!scalars.empty()) alternatives.push_back(ir_.literals(std::move(scalars)));
  return ir_.choice(alternatives);
}

// Strings whose length a counter bounds; nothing where the patterns leave only some lengths.
Result<std::optional<ExprId>> SchemaCompiler::counted_string(const Facts& facts) {
  using Counted = std::optional<ExprId>;
  constexpr int64_t kMost = 1 << 30;
  const bool plain = facts.patterns.empty() && facts.not_patterns.empty();
  std::optional<ExprId> expr;
  if (facts.patterns.empty()) {
    const ExprId quote = ir_.literal("\"");
    const ExprId one = plain ? ir_.empty() : serialised_char(ir_, {{0, 0x10ffff}});
    expr =
        plain
            ? grammar::counted_string(ir_)
            : ir_.sequence({quote, ir_.star(ir_.sequence({ir_.tick(), one})), ir_.enough(), quote});
  }
  int64_t least = facts.length_min, most = facts.length_max;
  for (const std::string& pattern : facts.patterns) {
    ESP_ASSIGN_OR_RETURN(ExprId matched, pattern_string(pattern, true));
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
  for (const std::string& pattern : facts.not_patterns) {
    ESP_ASSIGN_OR_RETURN(const ExprId matched, pattern_string(pattern, true));
    ESP_ASSIGN_OR_RETURN(expr, difference(ir_, *expr, matched, limits_));
  }
  if (*expr == ir_.never()) return Counted(ir_.never());
  if (most != kUnbounded && most < least) return Counted(ir_.never());
  Ir::Counter counter{.min = static_cast<uint32_t>(std::min(least, kMost)), .max = Ir::kNoMax};
  if (most != kUnbounded && most < kMost) counter.max = static_cast<uint32_t>(most);
  if (!plain) {
    ESP_ASSIGN_OR_RETURN(const TickProfile profile, tick_profile(ir_, *expr, limits_));
    const bool too_short = profile.most && *profile.most < counter.min;
    if (too_short || profile.least > counter.max) return Counted(ir_.never());
    if (profile.least >= counter.min && profile.most && *profile.most <= counter.max) {
      counter = {.min = 0, .max = Ir::kNoMax};  // the patterns bound it more tightly
    } else if (profile.least >= counter.min) {
      counter.min = 0;  // every match has as many; for the maximum, room to the end is enough
    } else if (!profile.even) {
      return Counted();
    }
  }
  const RuleId rule = ir_.add_rule("string of bounded length");
  ir_.set_body(rule, *expr);
  ir_.set_counter(rule, counter);
  return Counted(ir_.rule(rule));
}

// Also with a point and zeros, where these are integers.
ExprId SchemaCompiler::with_whole_fraction(ExprId integer) {
  const ExprId zeros = ir_.repeat(ir_.literal("0"), 1, kUnbounded);
  return ir_.sequence({integer, ir_.optional(ir_.sequence({ir_.literal("."), zeros}))});
}

Result<ExprId> SchemaCompiler::lower_number(const Facts& facts) {
  const bool integers_only = (facts.types & kNumber) == kInteger;
  std::vector<std::string> excluded;
  for (const json::value* list : facts.not_enums) {
    for (const json::value& v : list->get_array()) {
      const auto decimal = Decimal::of(v);
      if (!decimal) continue;
      excluded.push_back((decimal->negative && !decimal->zero() ? "-" : "") +
                         (decimal->whole.empty() ? "0" : decimal->whole) +
                         (decimal->fraction.empty() ? "" : "." + decimal->fraction));
    }
  }
  const bool fractions_only = (facts.types & kNumber) == kFraction;
  const bool with_zeros = integers_only && options_.whole_fractions;
  if (!facts.bounds.any() && facts.divisors.empty() && facts.not_divisors.empty() &&
      excluded.empty() && !fractions_only) {
    if (!integers_only) return syntax_.number();
    return with_zeros ? with_whole_fraction(syntax_.integer()) : syntax_.integer();
  }
  ESP_ASSIGN_OR_RETURN(ExprId expr, bounded_number(ir_, facts.bounds, integers_only, limits_));
  const bool only_bounds =
      facts.divisors.empty() && facts.not_divisors.empty() && excluded.empty() && !fractions_only;
  if (only_bounds && !integers_only)
    return ir_.sequence({expr, exponent_within(ir_, facts.bounds)});
  for (const Decimal& divisor : facts.divisors) {
    ESP_ASSIGN_OR_RETURN(const ExprId multiples, multiple_of(ir_, divisor));
    ESP_ASSIGN_OR_RETURN(expr, intersection(ir_, expr, multiples, limits_));
  }
  for (const Decimal& divisor : facts.not_divisors) {
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

Result<ExprId> SchemaCompiler::pattern_string(const std::string& pattern, bool counted) {
  const auto key = std::pair(pattern, counted);
  if (const auto it = patterns_.find(key); it != patterns_.end()) return it->second;
  if (const auto parts = split_lookahead(pattern)) {
    ESP_ASSIGN_OR_RETURN(const ExprId rest, pattern_string(parts->rest, counted));
    ESP_ASSIGN_OR_RETURN(const ExprId ahead, pattern_string(parts->ahead, counted));
    ESP_ASSIGN_OR_RETURN(const ExprId both, parts->wanted ? intersection(ir_, rest, ahead, limits_)
                                                          : difference(ir_, rest, ahead, limits_));
    patterns_.emplace(key, both);
    return both;
  }
  const RegexOptions options{.search = true,
                             .encode = [this, counted](Ir&, const std::vector<CodeRange>& r) {
                               return counted ? ir_.sequence({ir_.tick(), serialised_char(ir_, r)})
                                              : serialised_char(ir_, r);
                             }};
  auto body = parse_regex(ir_, pattern, options);
  if (!body) return fail(body.error().with_context("pattern"));
  const ExprId quote = ir_.literal("\"");
  const ExprId expr = counted ? ir_.sequence({quote, *body, ir_.enough(), quote})
                              : ir_.sequence({quote, *body, quote});
  patterns_.emplace(key, expr);
  return expr;
}

Result<ExprId> SchemaCompiler::lower_string(const Facts& facts) {
  auto exact = lower_string_exactly(facts);
  if (exact || !rough_ || exact.error().code() == StatusCode::kInvalidArgument) return exact;
  left_out_ = true;
  return syntax_.string();
}

Result<ExprId> SchemaCompiler::lower_string_exactly(const Facts& facts) {
  std::vector<std::string> excluded;
  for (const json::value* list : facts.not_enums) {
    for (const json::value& v : list->get_array()) {
      if (v.is_string()) excluded.push_back(json::serialize(v));
    }
  }
  if (facts.length_max != kUnbounded && facts.length_max < facts.length_min) return ir_.never();
  const bool any_length = facts.length_min == 0 && facts.length_max == kUnbounded;
  const bool plain = facts.patterns.empty() && facts.not_patterns.empty() && excluded.empty();
  if (any_length && plain) return syntax_.string();
  bool counts = !any_length;
  for (const std::string& pattern : facts.patterns) {
    if (counts) break;
    ESP_ASSIGN_OR_RETURN(const ExprId written, pattern_string(pattern, true));
    counts = loosened(ir_, written).has_value();
  }
  if (counts && excluded.empty() && !uncounted_) {
    ESP_ASSIGN_OR_RETURN(const auto counted, counted_string(facts));
    if (counted) return *counted;
  }
  const int64_t longest = std::max(facts.length_min, facts.length_max);
  if (longest > kLengthMax) {
    return fail(error(StatusCode::kUnimplemented,
                      "strings are counted up to {} characters; minLength or maxLength asks for {}",
                      kLengthMax, longest));
  }
  const ExprId one = plain && longest <= kEscapedLengthMax ? syntax_.string_char()
                                                           : serialised_char(ir_, {{0, 0x10ffff}});
  const ExprId quote = ir_.literal("\"");
  std::optional<ExprId> expr;
  if (!any_length || facts.patterns.empty()) {
    expr = ir_.sequence({quote,
                         ir_.repeat(one, static_cast<int32_t>(facts.length_min),
                                    static_cast<int32_t>(facts.length_max)),
                         quote});
  }
  for (const std::string& pattern : facts.patterns) {
    ESP_ASSIGN_OR_RETURN(const ExprId matched, pattern_string(pattern));
    if (expr) {
      ESP_ASSIGN_OR_RETURN(expr, intersection(ir_, *expr, matched, limits_));
    } else {
      expr = matched;
    }
  }
  for (const std::string& pattern : facts.not_patterns) {
    ESP_ASSIGN_OR_RETURN(const ExprId matched, pattern_string(pattern));
    ESP_ASSIGN_OR_RETURN(expr, difference(ir_, *expr, matched, limits_));
  }
  if (!excluded.empty()) {
    ESP_ASSIGN_OR_RETURN(expr, difference(ir_, *expr, ir_.literals(std::move(excluded)), limits_));
  }
  return *expr;
}

}  // namespace espalier::grammar
