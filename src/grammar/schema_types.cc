// From facts to expressions, type by type.
#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <set>
#include <utility>

#include "grammar/machine.h"
#include "grammar/regex.h"
#include "grammar/regular.h"
#include "grammar/schema_compiler.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr int64_t kCountMax = 2000;  // items, properties or places in a list that are counted
constexpr int64_t kEscapedLengthMax = 200;  // longer bounded strings take short escapes only
constexpr int64_t kLengthMax = 300;         // of strings that are written out
constexpr int64_t kUnrolledItemsMax = 4;
constexpr size_t kPatternsMax = 5;  // patternProperties whose overlaps are worked out
constexpr size_t kGraphStatesMax = 50'000;

}  // namespace

// A character as serialisers write it: itself, or the shortest escape where it needs one.
ExprId SchemaCompiler::canonical_char(const std::vector<CodeRange>& ranges) {
  constexpr std::pair<uint32_t, const char*> kEscapes[] = {
      {'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"}, {'\f', "\\f"},
      {'\n', "\\n"}, {'\r', "\\r"},  {'\t', "\\t"}};
  std::vector<ExprId> parts;
  std::vector<CodeRange> plain;
  for (const CodeRange& r : normalized(ranges)) {
    uint32_t from = r.low;
    for (; from < 0x20 && from <= r.high; ++from) {
      constexpr char kHex[] = "0123456789abcdef";
      const auto* known =
          std::ranges::find(kEscapes, from, &std::pair<uint32_t, const char*>::first);
      if (known != std::end(kEscapes)) {
        parts.push_back(ir_.literal(known->second));
      } else {
        const std::string head = std::string("\\u00") + kHex[from >> 4];
        const char low = kHex[from & 15];
        const ExprId last = low >= 'a' ? ir_.choice({ir_.byte(static_cast<uint8_t>(low)),
                                                     ir_.byte(static_cast<uint8_t>(low - 32))})
                                       : ir_.byte(static_cast<uint8_t>(low));
        parts.push_back(ir_.sequence({ir_.literal(head), last}));
      }
    }
    for (uint32_t special : {uint32_t{'"'}, uint32_t{'\\'}}) {
      if (from > special || special > r.high) continue;
      if (special > from) plain.push_back({from, special - 1});
      parts.push_back(ir_.literal(special == '"' ? "\\\"" : "\\\\"));
      from = special + 1;
    }
    if (from <= r.high) plain.push_back({from, r.high});
  }
  parts.push_back(ir_.chars(std::move(plain)));
  return ir_.choice(parts);
}

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
  parts.push_back(pieces_.space_inside());
  const auto between = [&] {
    if (parts.size() > 2) parts.push_back(pieces_.comma());
  };
  if (is_object) {
    for (const auto& [key, member_value] : value.get_object()) {
      between();
      parts.push_back(ir_.sequence({quoted(key), pieces_.colon(), literal_value(member_value)}));
    }
  } else {
    for (const json::value& item : value.get_array()) {
      between();
      parts.push_back(literal_value(item));
    }
  }
  if (size > 0) parts.push_back(pieces_.space_inside());
  parts.push_back(ir_.literal(is_object ? "}" : "]"));
  return ir_.sequence(parts);
}

Result<ExprId> SchemaCompiler::lower_facts(const Conjunction& elements, const Facts& facts) {
  if (const auto values = allowed_values(facts)) return lower_values(elements, *values, facts);
  const bool free =
      facts.types == kAllTypes && !facts.array_facts && !facts.object_facts && !facts.any_facts;
  if (free) return pieces_.value();
  std::vector<ExprId> ways;
  const auto excluded = [&](const json::value& wanted) {
    return std::ranges::any_of(facts.not_enums, [&](const json::value* list) {
      const auto& values = list->get_array();
      return std::ranges::find(values, wanted) != values.end();
    });
  };
  if ((facts.types & kNull) && !excluded(nullptr)) ways.push_back(pieces_.null());
  if (facts.types & kBoolean) {
    if (!excluded(true)) ways.push_back(ir_.literal("true"));
    if (!excluded(false)) ways.push_back(ir_.literal("false"));
  }
  if (facts.types & kNumber) {
    ESP_ASSIGN_OR_RETURN(const ExprId number, lower_number(facts));
    ways.push_back(number);
  }
  if (facts.types & kString) {
    ESP_ASSIGN_OR_RETURN(const ExprId string, lower_string(facts));
    ways.push_back(string);
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
    ways.push_back(array);
  }
  if (facts.types & kObject) {
    if (facts.object_error && !rough_) return fail(*facts.object_error);
    left_out_ |= facts.object_error.has_value();
    ESP_ASSIGN_OR_RETURN(const ExprId object, lower_object(elements, facts));
    ways.push_back(object);
  }
  return ir_.choice(ways);
}

// Values that enums and constants leave, and that satisfy whatever else is asked.
Result<ExprId> SchemaCompiler::lower_values(const Conjunction& elements,
                                            const std::vector<const json::value*>& values,
                                            const Facts& facts) {
  const bool more_asked =
      facts.any_facts || facts.array_facts || facts.object_facts || facts.types != kAllTypes;
  std::vector<std::string> scalars;
  std::vector<ExprId> ways;
  for (const json::value* v : values) {
    if (more_asked) {
      ESP_ASSIGN_OR_RETURN(const bool fits, holds(*v, elements));
      if (!fits) continue;
    }
    if (options_.any_order && v->is_structured()) {
      // Its members may come in any order: whatever equals it, told by the check.
      left_out_ = true;
      ways.push_back(v->is_object() ? pieces_.object() : pieces_.array());
    } else if (v->is_structured() || v->is_double()) {
      ways.push_back(literal_value(*v));
    } else {
      scalars.push_back(json::serialize(*v));
    }
    const auto decimal = Decimal::of(*v);
    const bool whole = decimal && decimal->fraction.empty();
    if (whole && options_.whole_fractions) ways.push_back(with_whole_fraction(literal_value(*v)));
  }
  if (!scalars.empty()) ways.push_back(ir_.literals(std::move(scalars)));
  return ir_.choice(ways);
}

// Strings whose length a counter bounds; nothing where the patterns leave only some lengths.
Result<std::optional<ExprId>> SchemaCompiler::counted_string(const Facts& facts) {
  using Counted = std::optional<ExprId>;
  constexpr int64_t kMost = 1 << 30;
  const ExprId quote = ir_.literal("\"");
  const auto any = [&](ExprId one) {
    return ir_.sequence({quote, ir_.star(ir_.sequence({ir_.tick(), one})), ir_.enough(), quote});
  };
  const bool plain = facts.patterns.empty() && facts.not_patterns.empty();
  std::optional<ExprId> expr;
  if (facts.patterns.empty()) {
    expr = any(plain ? pieces_.string_char() : canonical_char({{0, 0x10ffff}}));
  }
  for (const std::string& pattern : facts.patterns) {
    ESP_ASSIGN_OR_RETURN(const ExprId matched, pattern_string(pattern, true));
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
  Ir::Counter counter{.min = static_cast<uint32_t>(std::min(facts.length_min, kMost)),
                      .max = Ir::kNoMax};
  if (facts.length_max != kUnbounded && facts.length_max < kMost) {
    counter.max = static_cast<uint32_t>(facts.length_max);
  }
  if (!plain) {
    ESP_ASSIGN_OR_RETURN(const TickProfile profile, tick_profile(ir_, *expr, limits_));
    const bool too_short = profile.most && *profile.most < counter.min;
    if (too_short || profile.least > counter.max) return Counted(ir_.never());
    if (profile.least >= counter.min && profile.most && *profile.most <= counter.max) {
      counter = {.min = 0, .max = Ir::kNoMax};  // the patterns bound it more tightly
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
    if (!integers_only) return pieces_.number();
    return with_zeros ? with_whole_fraction(pieces_.integer()) : pieces_.integer();
  }
  ESP_ASSIGN_OR_RETURN(ExprId expr, bounded_number(ir_, facts.bounds, integers_only, limits_));
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
    std::vector<ExprId> ways;
    const ExprId zeros = ir_.star(ir_.literal("0"));
    for (const std::string& text : excluded) {
      const ExprId tail = text.find('.') == std::string::npos
                              ? ir_.optional(ir_.sequence({ir_.literal(".0"), zeros}))
                              : zeros;
      ways.push_back(ir_.sequence({ir_.literal(text), tail}));
      if (text == "0") ways.push_back(ir_.sequence({ir_.literal("-0"), tail}));
    }
    ESP_ASSIGN_OR_RETURN(expr, difference(ir_, expr, ir_.choice(ways), limits_));
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
  const RegexOptions options{
      .search = true, .encode = [this, counted](Ir&, const std::vector<CodeRange>& r) {
        return counted ? ir_.sequence({ir_.tick(), canonical_char(r)}) : canonical_char(r);
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
  return pieces_.string();
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
  if (any_length && plain) return pieces_.string();
  if (!any_length && excluded.empty() && !uncounted_) {
    ESP_ASSIGN_OR_RETURN(const auto counted, counted_string(facts));
    if (counted) return *counted;
  }
  const int64_t longest = std::max(facts.length_min, facts.length_max);
  if (longest > kLengthMax) {
    return fail(error(StatusCode::kUnimplemented,
                      "strings are counted up to {} characters; minLength or maxLength asks for {}",
                      kLengthMax, longest));
  }
  const ExprId one = plain && longest <= kEscapedLengthMax ? pieces_.string_char()
                                                           : canonical_char({{0, 0x10ffff}});
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

size_t SchemaCompiler::prefix_length(const Conjunction& elements) const {
  size_t length = 0;
  for (const Element& element : elements) {
    for (const char* key : {"prefixItems", "items"}) {
      const json::value* list = member(element, key);
      if (list != nullptr && list->is_array()) length = std::max(length, list->get_array().size());
    }
  }
  return length;
}

SchemaCompiler::Conjunction SchemaCompiler::item_conjunction(const Conjunction& elements,
                                                             size_t index) {
  Conjunction out;
  for (const Element& element : elements) {
    const json::value* items = member(element, "items");
    const json::value* prefix = member(element, "prefixItems");
    const json::value* rest = items;
    if (rest == nullptr && elements.size() == 1 && evaluates_alone(element)) {
      rest = member(element, "unevaluatedItems");
    }
    if (items != nullptr && items->is_array()) {
      prefix = items;
      rest = member(element, "additionalItems");
    }
    if (prefix != nullptr && prefix->is_array() && index < prefix->get_array().size()) {
      out.push_back({&prefix->get_array()[index], element.scope, 0});
    } else if (rest != nullptr) {
      out.push_back({rest, element.scope, 0});
    }
  }
  return out;
}

Result<ExprId> SchemaCompiler::lower_array(const Conjunction& elements, const Facts& facts) {
  if (!facts.array_facts) return pieces_.array();
  bool bounded = facts.items_max != kUnbounded;
  int64_t items_min = facts.items_min;
  const bool unique = facts.unique_items && (!bounded || facts.items_max > 1);
  left_out_ |= rough_ && unique;
  if (unique && !rough_) {
    return fail(error(StatusCode::kUnimplemented, "{}/uniqueItems: 'uniqueItems' is not supported",
                      document_.pointer_of(elements[0].schema)));
  }
  if (std::max(items_min, facts.items_max) > kUnrolledItemsMax) {
    bool has_contains = false;
    for (const Element& element : elements) has_contains |= member(element, "contains") != nullptr;
    if (!has_contains || rough_) {
      left_out_ |= has_contains;
      return counted_array(elements, facts);
    }
  }
  Conjunction contains;
  for (const Element& element : elements) {
    if (const json::value* c = member(element, "contains")) {
      contains.push_back({document_.meant(c), element.scope, 0});
    }
  }
  if (rough_ && !contains.empty()) {
    left_out_ = true;
    contains.clear();
  }
  if (contains.size() > 1) {
    return fail(error(StatusCode::kUnimplemented,
                      "{}: several 'contains' at once are not supported",
                      document_.pointer_of(elements[0].schema)));
  }
  // States: (items so far, whether `contains` has been met); the last count loops where the number
  // is not bounded.
  const size_t prefix = prefix_length(elements);
  if (bounded && facts.items_max < facts.items_min) return ir_.never();
  if (rough_ && std::max(items_min, facts.items_max) > kCountMax) {
    left_out_ = true;
    bounded = bounded && facts.items_max <= kCountMax;
    items_min = std::min(items_min, kCountMax);
  }
  int64_t count =
      bounded ? facts.items_max : std::max<int64_t>({1, items_min, static_cast<int64_t>(prefix)});
  // Once the prefix is over and no minimum or maximum is near, fewer states would do; counting is
  // bounded instead.
  if (count > kCountMax) {
    return fail(error(StatusCode::kUnimplemented,
                      "{}: items are counted up to {}; minItems or maxItems asks for {}",
                      document_.pointer_of(elements[0].schema), kCountMax, count));
  }
  const bool starts_met = contains.empty();
  const auto state = [](int64_t items, bool met) { return static_cast<uint32_t>(items * 2 + met); };
  Ir::Graph graph{.num_states = state(count, true) + 1, .edges = {}, .finals = {}};
  for (int64_t k = 0; k <= count; ++k) {
    if (k == count && bounded) break;
    const Conjunction item = item_conjunction(elements, static_cast<size_t>(k));
    ESP_ASSIGN_OR_RETURN(const ExprId expr, compile(item));
    if (expr == ir_.never()) break;
    const ExprId with_comma = k == 0 ? expr : ir_.sequence({pieces_.comma(), expr});
    const int64_t next = std::min(k + 1, count);
    for (bool met : {false, true})
      graph.edges.push_back({state(k, met), with_comma, state(next, met)});
    if (!contains.empty()) {
      Conjunction hit = item;
      hit.push_back(contains[0]);
      ESP_ASSIGN_OR_RETURN(const ExprId found, compile(std::move(hit)));
      graph.edges.push_back({state(k, false),
                             k == 0 ? found : ir_.sequence({pieces_.comma(), found}),
                             state(next, true)});
    }
  }
  for (int64_t k = std::max<int64_t>(items_min, 1); k <= count; ++k) {
    graph.finals.push_back(state(k, true));
  }
  if (starts_met) {
    // The start is state 0; what has been met from the beginning starts at 1.
    for (Ir::GraphEdge& edge : graph.edges) {
      edge.from ^= 1u;
      edge.to ^= 1u;
    }
    for (uint32_t& final : graph.finals) final ^= 1u;
  }
  std::vector<ExprId> ways;
  if (items_min == 0 && starts_met) ways.push_back(pieces_.space_inside());
  ways.push_back(
      ir_.sequence({pieces_.space_inside(), ir_.graph(std::move(graph)), pieces_.space_inside()}));
  return ir_.sequence({ir_.literal("["), ir_.choice(ways), ir_.literal("]")});
}

// Arrays whose size a counter bounds.
Result<ExprId> SchemaCompiler::counted_array(const Conjunction& elements, const Facts& facts) {
  constexpr int64_t kMost = 1 << 30;
  if (facts.items_max != kUnbounded && facts.items_max < facts.items_min) return ir_.never();
  const auto prefix = static_cast<int64_t>(prefix_length(elements));
  Ir::Counter counter{.min = static_cast<uint32_t>(std::min(facts.items_min, kMost)),
                      .max = Ir::kNoMax};
  if (facts.items_max != kUnbounded && facts.items_max < kMost) {
    counter.max = static_cast<uint32_t>(facts.items_max);
  }
  Ir::Graph graph{.num_states = static_cast<uint32_t>(prefix) + 2, .edges = {}, .finals = {}};
  int64_t last = -1;  // the number of items beyond which there can be none
  for (int64_t k = 0; k <= prefix + 1 && last < 0; ++k) {
    ESP_ASSIGN_OR_RETURN(const ExprId item,
                         compile(item_conjunction(elements, static_cast<size_t>(k))));
    graph.finals.push_back(static_cast<uint32_t>(k));
    if (item == ir_.never()) {
      last = k;
      break;
    }
    const ExprId next = ir_.sequence({ir_.tick(), k == 0 ? ir_.empty() : pieces_.comma(), item});
    graph.edges.push_back(
        {static_cast<uint32_t>(k), next, static_cast<uint32_t>(std::min(k + 1, prefix + 1))});
  }
  if (last >= 0 && last < facts.items_min) return ir_.never();
  const ExprId space = pieces_.space_inside();
  const RuleId rule = ir_.add_rule("array of bounded size");
  ir_.set_body(rule, ir_.sequence({ir_.literal("["), space, ir_.graph(std::move(graph)),
                                   ir_.enough(), space, ir_.literal("]")}));
  ir_.set_counter(rule, counter);
  return ir_.rule(rule);
}

Result<bool> SchemaCompiler::key_matches(const std::string& pattern, const std::string& name) {
  ESP_ASSIGN_OR_RETURN(const ExprId language, pattern_string(pattern));
  ESP_ASSIGN_OR_RETURN(const ExprId both, intersection(ir_, quoted(name), language, limits_));
  return both != ir_.never();
}

// additionalProperties; unevaluatedProperties says the same where nothing else evaluates.
const json::value* SchemaCompiler::additional_of(const Element& element,
                                                 const Conjunction& elements) const {
  const json::value* additional = member(element, "additionalProperties");
  if (additional == nullptr && elements.size() == 1 && evaluates_alone(element)) {
    additional = member(element, "unevaluatedProperties");
  }
  return additional;
}

Result<SchemaCompiler::Conjunction> SchemaCompiler::property_conjunction(
    const Conjunction& elements, const std::string& name) {
  Conjunction out;
  for (const Element& element : elements) {
    bool evaluated = false;
    if (const json::value* properties = member(element, "properties");
        properties != nullptr && properties->is_object()) {
      const auto it = properties->get_object().find(name);
      if (it != properties->get_object().end()) {
        out.push_back({&it->value(), element.scope, 0});
        evaluated = true;
      }
    }
    if (const json::value* patterns = member(element, "patternProperties");
        patterns != nullptr && patterns->is_object()) {
      for (const auto& [pattern, schema] : patterns->get_object()) {
        ESP_ASSIGN_OR_RETURN(const bool matches, key_matches(std::string(pattern), name));
        if (!matches) continue;
        out.push_back({&schema, element.scope, 0});
        evaluated = true;
      }
    }
    const json::value* additional = additional_of(element, elements);
    if (!evaluated && additional != nullptr) out.push_back({additional, element.scope, 0});
  }
  return out;
}

// Operations on regular languages write rules out, which must end: no rule may lead to itself or to
// one that is still being made.
Status SchemaCompiler::require_regular(const Element& element, std::string_view key,
                                       ExprId expr) const {
  std::set<RuleId> path;
  const auto ends = [&](auto&& self, ExprId id) -> bool {
    const Ir::Node& node = ir_.node(id);
    if (node.op == Ir::Op::kBytes) return true;
    if (node.op == Ir::Op::kTick || node.op == Ir::Op::kEnough) return false;
    if (node.op == Ir::Op::kRule) {
      if (ir_.rules()[node.first].check >= 0) return false;
      if (open_.contains(node.first) || !path.insert(node.first).second) return false;
      const bool inner = self(self, ir_.rules()[node.first].body);
      path.erase(node.first);
      return inner;
    }
    return std::ranges::all_of(ir_.children(id), [&](ExprId child) { return self(self, child); });
  };
  return ends(ends, expr) ? Status() : unsupported(element, key);
}

Result<ExprId> SchemaCompiler::key_language(const Conjunction& elements) {
  const ExprId quote = ir_.literal("\"");
  ExprId keys = ir_.sequence({quote, ir_.star(canonical_char({{0, 0x10ffff}})), quote});
  for (const Element& element : elements) {
    const json::value* names = member(element, "propertyNames");
    if (names == nullptr) continue;
    Conjunction string_too = {
        {names, element.scope, 0},
        {document_.keep(json::object{{"type", "string"}}, element.schema), kNoScope, 0}};
    const bool outer_uncounted = std::exchange(uncounted_, true);
    const auto allowed_or = compile(std::move(string_too));
    uncounted_ = outer_uncounted;
    ESP_ASSIGN_OR_RETURN(const ExprId allowed, allowed_or);
    if (allowed == ir_.never()) return ir_.never();
    ESP_RETURN_IF_ERROR(require_regular(element, "propertyNames", allowed));
    ESP_ASSIGN_OR_RETURN(keys, intersection(ir_, keys, allowed, limits_));
  }
  return keys;
}

// Keys that no `properties` names, grouped by what their values must hold: each subset of the
// patterns that can match together.
Result<std::vector<SchemaCompiler::ExtraKeys>> SchemaCompiler::extra_keys(
    const Conjunction& elements, const std::vector<std::string>& names) {
  std::vector<std::string> literals, patterns;
  for (const std::string& name : names) literals.push_back(json::serialize(json::string(name)));
  for (const Element& element : elements) {
    const json::value* own = member(element, "patternProperties");
    if (own == nullptr || !own->is_object()) continue;
    for (const auto& [pattern, schema] : own->get_object()) {
      if (std::ranges::find(patterns, std::string(pattern)) == patterns.end()) {
        patterns.emplace_back(pattern);
      }
    }
  }
  if (rough_ && !patterns.empty()) {
    // Which patterns a key matches is left to the check.
    left_out_ = true;
    ESP_ASSIGN_OR_RETURN(const ExprId keys, key_language(elements));
    if (keys == ir_.never()) return std::vector<ExtraKeys>();
    if (literals.empty()) return std::vector<ExtraKeys>{{keys, pieces_.value()}};
    ESP_ASSIGN_OR_RETURN(const ExprId others,
                         difference(ir_, keys, ir_.literals(literals), limits_));
    return std::vector<ExtraKeys>{{others, pieces_.value()}};
  }
  if (patterns.size() > kPatternsMax) {
    return fail(error(StatusCode::kUnimplemented,
                      "{}: more than {} patternProperties at once are not supported",
                      document_.pointer_of(elements[0].schema), kPatternsMax));
  }
  std::vector<ExtraKeys> out;
  std::optional<ExprId> rest;  // keys that are not declared; made when some value may follow
  for (uint32_t subset = 0; subset < 1u << patterns.size(); ++subset) {
    Conjunction value;
    for (const Element& element : elements) {
      bool evaluated = false;
      const json::value* own = member(element, "patternProperties");
      for (size_t p = 0; p < patterns.size() && own != nullptr && own->is_object(); ++p) {
        const auto it = own->get_object().find(patterns[p]);
        if (!(subset >> p & 1) || it == own->get_object().end()) continue;
        value.push_back({&it->value(), element.scope, 0});
        evaluated = true;
      }
      const json::value* additional = additional_of(element, elements);
      if (!evaluated && additional != nullptr) value.push_back({additional, element.scope, 0});
    }
    ESP_ASSIGN_OR_RETURN(const ExprId value_expr, compile(std::move(value)));
    if (value_expr == ir_.never()) continue;
    if (!rest) {
      ESP_ASSIGN_OR_RETURN(const ExprId keys, key_language(elements));
      if (keys == ir_.never()) return out;
      rest = keys;
      if (!literals.empty()) {
        ESP_ASSIGN_OR_RETURN(rest, difference(ir_, keys, ir_.literals(literals), limits_));
      }
    }
    ExprId key = *rest;
    for (size_t p = 0; p < patterns.size() && key != ir_.never(); ++p) {
      ESP_ASSIGN_OR_RETURN(const ExprId matched, pattern_string(patterns[p]));
      if (subset >> p & 1) {
        ESP_ASSIGN_OR_RETURN(key, intersection(ir_, key, matched, limits_));
      } else {
        ESP_ASSIGN_OR_RETURN(key, difference(ir_, key, matched, limits_));
      }
    }
    if (key != ir_.never()) out.push_back({key, value_expr});
  }
  return out;
}

Result<ExprId> SchemaCompiler::lower_object(const Conjunction& elements, const Facts& facts) {
  if (!facts.object_facts) return pieces_.object();
  std::vector<std::string> names;  // in the order of their declaration; required ones follow
  std::set<std::string> known;
  Conjunction ordered = elements;
  std::ranges::stable_sort(
      ordered, {}, [&](const Element& element) { return document_.position_of(element.schema); });
  for (const Element& element : ordered) {
    const json::value* properties = member(element, "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [name, schema] : properties->get_object()) {
      if (known.insert(std::string(name)).second) names.emplace_back(name);
    }
  }
  for (const std::string& name : facts.required) {
    if (known.insert(name).second) names.push_back(name);
  }
  const std::set<std::string> required(facts.required.begin(), facts.required.end());
  ESP_ASSIGN_OR_RETURN(const ExprId allowed_keys, key_language(elements));
  const bool names_limited = std::ranges::any_of(
      elements, [&](const Element& e) { return member(e, "propertyNames") != nullptr; });

  struct Property {
    ExprId pair;
    bool required;
  };
  std::vector<Property> list;
  for (const std::string& name : names) {
    ESP_ASSIGN_OR_RETURN(Conjunction value, property_conjunction(elements, name));
    ESP_ASSIGN_OR_RETURN(const ExprId expr, compile(std::move(value)));
    bool possible = expr != ir_.never();
    if (possible && names_limited) {
      possible = allowed_keys != ir_.never();
      if (possible) {
        ESP_ASSIGN_OR_RETURN(const ExprId key,
                             intersection(ir_, quoted(name), allowed_keys, limits_));
        possible = key != ir_.never();
      }
    }
    if (!possible && required.contains(name)) return ir_.never();
    if (possible) {
      list.push_back(
          {ir_.sequence({quoted(name), pieces_.colon(), expr}), required.contains(name)});
    }
  }
  ESP_ASSIGN_OR_RETURN(const std::vector<ExtraKeys> extra, extra_keys(elements, names));

  if (options_.any_order) {
    std::vector<ExprId> pairs;
    for (const Property& property : list) pairs.push_back(property.pair);
    return any_order_object(std::move(pairs), extra, facts);
  }

  // States: (place in the list, properties so far up to the largest count that matters). The count
  // also tells whether a comma is due.
  bool bounded = facts.properties_max != kUnbounded &&
                 (!extra.empty() || facts.properties_max < std::ssize(list));
  int64_t properties_min = facts.properties_min;
  if (bounded && facts.properties_max < facts.properties_min) return ir_.never();
  const auto places = static_cast<int64_t>(list.size());
  if (rough_ && (places + 1) * std::max(facts.properties_max, properties_min) > 1000) {
    left_out_ = true;
    bounded = false;
    properties_min = 0;
  }
  const int64_t cap = std::max<int64_t>({1, properties_min, bounded ? facts.properties_max : 0});
  if (cap > kCountMax || (places + 1) * (cap + 1) > static_cast<int64_t>(kGraphStatesMax)) {
    return fail(
        error(StatusCode::kUnimplemented,
              "{}: minProperties or maxProperties of {} over {} properties is not supported",
              document_.pointer_of(elements[0].schema), cap, places));
  }
  const auto state = [&](int64_t place, int64_t count) {
    return static_cast<uint32_t>(place * (cap + 1) + count);
  };
  Ir::Graph graph{.num_states = state(places, cap) + 1, .edges = {}, .finals = {}};
  const auto with_comma = [&](ExprId pair, int64_t count) {
    return count == 0 ? pair : ir_.sequence({pieces_.comma(), pair});
  };
  for (int64_t place = 0; place <= places; ++place) {
    for (int64_t count = 0; count <= cap; ++count) {
      const bool full = bounded && count == facts.properties_max;
      const int64_t next = std::min(count + 1, cap);
      if (place < places) {
        const Property& property = list[static_cast<size_t>(place)];
        if (!full) {
          graph.edges.push_back(
              {state(place, count), with_comma(property.pair, count), state(place + 1, next)});
        }
        if (!property.required) {
          graph.edges.push_back({state(place, count), ir_.empty(), state(place + 1, count)});
        }
      } else if (!full) {
        for (const ExtraKeys& keys : extra) {
          const ExprId pair = ir_.sequence({keys.key, pieces_.colon(), keys.value});
          graph.edges.push_back({state(place, count), with_comma(pair, count), state(place, next)});
        }
      }
    }
  }
  for (int64_t count = std::max<int64_t>(1, properties_min); count <= cap; ++count) {
    graph.finals.push_back(state(places, count));
  }
  std::vector<ExprId> ways;
  if (required.empty() && properties_min == 0) ways.push_back(pieces_.space_inside());
  if (!graph.edges.empty()) {
    ways.push_back(ir_.sequence(
        {pieces_.space_inside(), ir_.graph(std::move(graph)), pieces_.space_inside()}));
  }
  return ir_.sequence({ir_.literal("{"), ir_.choice(ways), ir_.literal("}")});
}

// Properties in any order: which have come, and how many, is left to the check at the end.
ExprId SchemaCompiler::any_order_object(std::vector<ExprId> pairs,
                                        const std::vector<ExtraKeys>& extra, const Facts& facts) {
  for (const ExtraKeys& keys : extra) {
    pairs.push_back(ir_.sequence({keys.key, pieces_.colon(), keys.value}));
  }
  left_out_ |=
      !facts.required.empty() || facts.properties_min > 0 || facts.properties_max != kUnbounded;
  const ExprId pair = ir_.choice(pairs);
  const ExprId more = ir_.star(ir_.sequence({pieces_.comma(), pair}));
  const ExprId space = pieces_.space_inside();
  return ir_.sequence({ir_.literal("{"),
                       ir_.choice({space, ir_.sequence({space, pair, more, space})}),
                       ir_.literal("}")});
}

}  // namespace espalier::grammar
