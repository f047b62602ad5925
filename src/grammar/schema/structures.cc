// From facts to expressions: arrays and objects.
#include <algorithm>
#include <boost/json.hpp>
#include <set>
#include <utility>

#include "grammar/automata/lexeme.h"
#include "grammar/automata/regular_algebra.h"
#include "grammar/schema/compiler.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr int64_t kCountMax = 2000;  // items, properties or places in a list that are counted
constexpr int64_t kUnrolledItemsMax = 4;
constexpr size_t kPatternsMax = 5;  // patternProperties whose overlaps are worked out
constexpr size_t kGraphStatesMax = 50'000;
constexpr size_t kLongName = 256, kLongNamesMax = 1 << 17;  // bytes

}  // namespace

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
  if (!facts.array_facts) return syntax_.array();
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
    const ExprId with_comma = k == 0 ? expr : ir_.sequence({comma(), expr});
    const int64_t next = std::min(k + 1, count);
    for (bool met : {false, true})
      graph.edges.push_back({state(k, met), with_comma, state(next, met)});
    if (!contains.empty()) {
      Conjunction hit = item;
      hit.push_back(contains[0]);
      ESP_ASSIGN_OR_RETURN(const ExprId found, compile(std::move(hit)));
      graph.edges.push_back(
          {state(k, false), k == 0 ? found : ir_.sequence({comma(), found}), state(next, true)});
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
  std::vector<ExprId> alternatives;
  if (items_min == 0 && starts_met) alternatives.push_back(syntax_.space_inside());
  alternatives.push_back(
      ir_.sequence({syntax_.space_inside(), ir_.graph(std::move(graph)), syntax_.space_inside()}));
  return ir_.sequence({ir_.literal("["), ir_.choice(alternatives), ir_.literal("]")});
}

// Where the end is judged it may be refused: white space in front of it must not leave it as the
// only way on.
ExprId SchemaCompiler::comma() {
  const bool judged = rough_ || options_.any_order;
  return judged ? ir_.sequence({syntax_.space_inside(), syntax_.comma()}) : syntax_.comma();
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
    const ExprId next = ir_.sequence({ir_.tick(), k == 0 ? ir_.empty() : comma(), item});
    graph.edges.push_back(
        {static_cast<uint32_t>(k), next, static_cast<uint32_t>(std::min(k + 1, prefix + 1))});
  }
  if (last >= 0 && last < facts.items_min) return ir_.never();
  const ExprId space = syntax_.space_inside();
  const RuleId rule = ir_.add_rule("array of bounded size");
  ir_.set_body(rule, ir_.sequence({ir_.literal("["), space, ir_.graph(std::move(graph)),
                                   ir_.enough(), space, ir_.literal("]")}));
  ir_.set_counter(rule, counter);
  return ir_.rule(rule);
}

Result<bool> SchemaCompiler::key_matches(const std::string& pattern, const std::string& name) {
  ESP_ASSIGN_OR_RETURN(const ExprId written, pattern_string(pattern));
  ESP_ASSIGN_OR_RETURN(const ExprId language, deterministic(written));
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

bool SchemaCompiler::limits_names(const Conjunction& elements) const {
  return std::ranges::any_of(
      elements, [&](const Element& e) { return member(e, "propertyNames") != nullptr; });
}

Result<ExprId> SchemaCompiler::key_language(const Conjunction& elements) {
  ExprId keys = lexeme(ir_, Lexeme::kKey);
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

Result<ExprId> SchemaCompiler::deterministic(ExprId expr) {
  if (const auto it = deterministic_.find(expr); it != deterministic_.end()) return it->second;
  ESP_ASSIGN_OR_RETURN(const ExprId made, canonical(ir_, expr, limits_));
  deterministic_.emplace(expr, made);
  return made;
}

// A rule for what is an automaton already, so that it is taken as it is.
ExprId SchemaCompiler::own_rule(ExprId expr, const char* name) {
  if (ir_.node(expr).op != Ir::Op::kGraph) return expr;
  const RuleId rule = ir_.add_rule(name);
  ir_.set_body(rule, expr);
  return ir_.rule(rule);
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
  const bool names_limited = limits_names(elements);
  // Keys that are not declared.
  const auto other_than_declared = [&]() -> Result<ExprId> {
    if (!names_limited) return other_keys(ir_, literals);
    ESP_ASSIGN_OR_RETURN(const ExprId keys, key_language(elements));
    if (keys == ir_.never() || literals.empty()) return keys;
    return difference(ir_, keys, ir_.literals(literals), limits_);
  };
  if (rough_ && !patterns.empty()) {
    // Which patterns a key matches is left to the check.
    left_out_ = true;
    ESP_ASSIGN_OR_RETURN(const ExprId others, other_than_declared());
    if (others == ir_.never()) return std::vector<ExtraKeys>();
    return std::vector<ExtraKeys>{{own_rule(others, "other key"), syntax_.value()}};
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
      ESP_ASSIGN_OR_RETURN(rest, other_than_declared());
      if (*rest == ir_.never()) return out;
    }
    ExprId key = *rest;
    for (size_t p = 0; p < patterns.size() && key != ir_.never(); ++p) {
      ESP_ASSIGN_OR_RETURN(const ExprId written, pattern_string(patterns[p]));
      ESP_ASSIGN_OR_RETURN(const ExprId matched, deterministic(written));
      if (subset >> p & 1) {
        ESP_ASSIGN_OR_RETURN(key, intersection(ir_, key, matched, limits_));
      } else {
        ESP_ASSIGN_OR_RETURN(key, difference(ir_, key, matched, limits_));
      }
    }
    if (key != ir_.never()) out.push_back({own_rule(key, "other key"), value_expr});
  }
  return out;
}

// Properties in the order of the list, of any number. For each place in it: before a property that
// may begin at once, and behind a property. What two ways have in common is written once: rules are
// made into automata when texts reach them. `begun`: it starts behind a property.
Ir::Graph SchemaCompiler::object_graph(std::span<const Property> list,
                                       const std::vector<ExtraKeys>& extra, bool begun) {
  const auto places = static_cast<uint32_t>(list.size());
  // The start is state 0.
  const auto before = [&](uint32_t place) { return begun && place == 0 ? places + 1 : place; };
  const auto behind = [&](uint32_t place) { return begun && place == 0 ? 0 : places + 1 + place; };
  Ir::Graph graph{.num_states = 2 * places + 2, .edges = {}, .finals = {}};
  uint32_t none_required = 0;  // from this place on
  for (uint32_t place = 0; place < places; ++place) {
    graph.edges.push_back({before(place), list[place].pair, behind(place + 1)});
    if (list[place].required) {
      none_required = place + 1;
    } else {
      graph.edges.push_back({before(place), ir_.empty(), before(place + 1)});
    }
  }
  for (const ExtraKeys& keys : extra) {
    graph.edges.push_back(
        {before(places), ir_.sequence({keys.key, syntax_.colon(), keys.value}), behind(places)});
  }
  // The first of all needs no comma, and is behind none.
  uint32_t first = extra.empty() ? 1 : std::min(places, 1u);
  if (begun) first = 0;
  for (uint32_t place = first; place <= places; ++place) {
    if (place < places || !extra.empty())
      graph.edges.push_back({behind(place), comma(), before(place)});
    if (place >= none_required) graph.finals.push_back(behind(place));
  }
  return graph;
}

// The same where it matters how many there are. States: (place in the list, properties so far up to
// `cap`, the largest count that matters). The count also tells whether a comma is due.
Ir::Graph SchemaCompiler::counted_object_graph(const std::vector<Property>& list,
                                               const std::vector<ExtraKeys>& extra,
                                               int64_t properties_min, int64_t cap,
                                               std::optional<int64_t> properties_max) {
  const auto places = static_cast<int64_t>(list.size());
  const auto state = [&](int64_t place, int64_t count) {
    return static_cast<uint32_t>(place * (cap + 1) + count);
  };
  Ir::Graph graph{.num_states = state(places, cap) + 1, .edges = {}, .finals = {}};
  const auto with_comma = [&](ExprId pair, int64_t count) {
    return count == 0 ? pair : ir_.sequence({comma(), pair});
  };
  for (int64_t place = 0; place <= places; ++place) {
    for (int64_t count = 0; count <= cap; ++count) {
      const bool full = count == properties_max;
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
          const ExprId pair = ir_.sequence({keys.key, syntax_.colon(), keys.value});
          graph.edges.push_back({state(place, count), with_comma(pair, count), state(place, next)});
        }
      }
    }
  }
  for (int64_t count = std::max<int64_t>(1, properties_min); count <= cap; ++count) {
    graph.finals.push_back(state(places, count));
  }
  return graph;
}

Status SchemaCompiler::bound_names(const Element& element,
                                   const std::vector<std::string>& names) const {
  size_t long_bytes = 0;
  for (const std::string& name : names) {
    if (name.size() <= kLongName) continue;
    long_bytes += name.size();
    if (long_bytes <= kLongNamesMax) continue;
    return error(StatusCode::kResourceExhausted,
                 "{}: names of properties that are longer than {} bytes have more than {} "
                 "together; shorten them ('{}...')",
                 document_.pointer_of(element.schema), kLongName, kLongNamesMax,
                 name.substr(0, 40));
  }
  return {};
}

Result<ExprId> SchemaCompiler::lower_object(const Conjunction& elements, const Facts& facts) {
  if (!facts.object_facts) return syntax_.object();
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
  ESP_RETURN_IF_ERROR(bound_names(elements[0], names));
  const std::set<std::string> required(facts.required.begin(), facts.required.end());
  const bool names_limited = limits_names(elements);
  ExprId allowed_keys = ir_.never();
  if (names_limited) {
    ESP_ASSIGN_OR_RETURN(allowed_keys, key_language(elements));
  }

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
          {ir_.sequence({quoted(name), syntax_.colon(), expr}), required.contains(name)});
    }
  }
  ESP_ASSIGN_OR_RETURN(const std::vector<ExtraKeys> extra, extra_keys(elements, names));

  if (options_.any_order) {
    std::vector<ExprId> pairs;
    for (const Property& property : list) pairs.push_back(property.pair);
    return any_order_object(std::move(pairs), extra, facts);
  }

  bool bounded = facts.properties_max != kUnbounded &&
                 (!extra.empty() || facts.properties_max < std::ssize(list));
  int64_t properties_min = facts.properties_min;
  if (bounded && facts.properties_max < facts.properties_min) return ir_.never();
  // An undeclared key may come twice, and then counts once.
  const auto certain = std::max<int64_t>(std::ssize(facts.required), 1);
  if (!extra.empty() && properties_min > certain) {
    if (!rough_) {
      return fail(error(StatusCode::kUnimplemented,
                        "{}/minProperties: counting properties that are not declared is not "
                        "supported",
                        document_.pointer_of(elements[0].schema)));
    }
    left_out_ = true;
  }
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
  // What must come first is a sequence: alternatives may share it.
  std::vector<ExprId> begins = {syntax_.space_inside()};
  const bool counted = cap > 1 || bounded;
  size_t first = 0;
  for (; !counted && first < list.size() && list[first].required; ++first) {
    if (first > 0) begins.push_back(comma());
    begins.push_back(list[first].pair);
  }
  const auto others = std::span(std::as_const(list)).subspan(first);
  const Ir::Graph graph =
      counted ? counted_object_graph(list, extra, properties_min, cap,
                                     bounded ? std::optional(facts.properties_max) : std::nullopt)
              : object_graph(others, extra, first > 0);
  std::vector<ExprId> alternatives;
  if (required.empty() && properties_min == 0) alternatives.push_back(syntax_.space_inside());
  if (first > 0 || !graph.edges.empty()) {
    begins.push_back(ir_.graph(graph));
    begins.push_back(syntax_.space_inside());
    alternatives.push_back(ir_.sequence(begins));
  }
  return ir_.sequence({ir_.literal("{"), ir_.choice(alternatives), ir_.literal("}")});
}

// Properties in any order: which have come, and how many, is left to the check at the end.
ExprId SchemaCompiler::any_order_object(std::vector<ExprId> pairs,
                                        const std::vector<ExtraKeys>& extra, const Facts& facts) {
  for (const ExtraKeys& keys : extra) {
    pairs.push_back(ir_.sequence({keys.key, syntax_.colon(), keys.value}));
  }
  left_out_ |=
      !facts.required.empty() || facts.properties_min > 0 || facts.properties_max != kUnbounded;
  const ExprId pair = ir_.choice(pairs);
  const ExprId more = ir_.star(ir_.sequence({comma(), pair}));
  const ExprId space = syntax_.space_inside();
  return ir_.sequence({ir_.literal("{"),
                       ir_.choice({space, ir_.sequence({space, pair, more, space})}),
                       ir_.literal("}")});
}

}  // namespace espalier::grammar
