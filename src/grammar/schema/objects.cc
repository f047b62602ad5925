#include "grammar/schema/objects.h"

#include <algorithm>
#include <set>
#include <utility>

#include "grammar/automata/finite_language.h"
#include "grammar/automata/lexeme.h"
#include "grammar/automata/regular_algebra.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr int64_t kPropertyCountMax = 2000;  // properties that are counted by states
constexpr int64_t kCheckedStatesMax = 1000;  // beyond it a check counts, where there is one
constexpr int64_t kGraphStatesMax = 50'000;
constexpr size_t kPatternsMax = 5;  // patternProperties whose overlaps are computed
constexpr size_t kLongName = 256, kLongNamesMax = 1 << 17;  // bytes
constexpr size_t kFiniteNamesMax = 64;

bool limits_names(const Conjunction& elements) {
  return std::ranges::any_of(
      elements, [](const Element& e) { return member(e, "propertyNames") != nullptr; });
}

std::vector<std::string> key_patterns(const Conjunction& elements) {
  std::vector<std::string> patterns;
  for (const Element& element : elements) {
    const json::value* own = member(element, "patternProperties");
    if (own == nullptr || !own->is_object()) continue;
    for (const auto& [pattern, schema] : own->get_object()) {
      if (std::ranges::find(patterns, std::string(pattern)) == patterns.end())
        patterns.emplace_back(pattern);
    }
  }
  return patterns;
}

// What the value of an undeclared key must satisfy that matches exactly the patterns in `subset`.
Conjunction value_of_class(const Conjunction& elements, const std::vector<std::string>& patterns,
                           uint32_t subset) {
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
  return value;
}

}  // namespace

Result<Conjunction> ObjectCompiler::property_conjunction(const Conjunction& elements,
                                                         const std::string& name) {
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
        ESP_ASSIGN_OR_RETURN(const bool matches,
                             compiler_.patterns().matches(std::string(pattern), name));
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

// Keys that every propertyNames allows.
Result<ExprId> ObjectCompiler::key_language(const Conjunction& elements) {
  ExprId keys = lexeme(ir_, Lexeme::kKey);
  for (const Element& element : elements) {
    const json::value* names = member(element, "propertyNames");
    if (names == nullptr) continue;
    ESP_ASSIGN_OR_RETURN(
        const ExprId allowed,
        compiler_.compile_uncounted(
            {{names, element.scope, 0},
             {document_.keep(json::object{{"type", "string"}}, element.schema), kNoScope, 0}}));
    if (allowed == ir_.never()) return ir_.never();
    ESP_RETURN_IF_ERROR(compiler_.require_regular(element, "propertyNames", allowed));
    ESP_ASSIGN_OR_RETURN(keys, intersection(ir_, keys, allowed, limits_));
  }
  return keys;
}

ExprId ObjectCompiler::own_rule(ExprId expr, const char* name) {
  if (ir_.node(expr).op != Ir::Op::kGraph) return expr;
  const RuleId rule = ir_.rules().add(name);
  ir_.rules().set_body(rule, expr);
  return ir_.rule(rule);
}

Result<ExprId> ObjectCompiler::undeclared_keys(const Conjunction& elements,
                                               const std::vector<std::string>& literals) {
  if (!limits_names(elements)) return other_keys(ir_, literals);
  ESP_ASSIGN_OR_RETURN(const ExprId keys, key_language(elements));
  if (keys == ir_.never() || literals.empty()) return keys;
  return difference(ir_, keys, ir_.literals(literals), limits_);
}

Result<std::vector<ObjectCompiler::ExtraKeys>> ObjectCompiler::extra_keys(
    const Conjunction& elements, const std::vector<std::string>& names) {
  std::vector<std::string> literals;
  for (const std::string& name : names) literals.push_back(json::serialize(json::string(name)));
  const std::vector<std::string> patterns = key_patterns(elements);
  if (compiler_.approximating() && !patterns.empty()) {
    // The check decides which patterns a key matches.
    compiler_.require_check();
    ESP_ASSIGN_OR_RETURN(const ExprId others, undeclared_keys(elements, literals));
    if (others == ir_.never()) return std::vector<ExtraKeys>();
    return std::vector<ExtraKeys>{{own_rule(others, "other key"), syntax_.value()}};
  }
  if (patterns.size() > kPatternsMax) {
    return fail(error(StatusCode::kUnimplemented,
                      "{}: more than {} patternProperties at once are not supported",
                      document_.pointer_of(elements[0].schema), kPatternsMax));
  }
  return classified_keys(elements, patterns, literals);
}

// Undeclared keys in classes by the subset of the patterns that they match, with what their values
// must satisfy.
Result<std::vector<ObjectCompiler::ExtraKeys>> ObjectCompiler::classified_keys(
    const Conjunction& elements, const std::vector<std::string>& patterns,
    const std::vector<std::string>& literals) {
  std::vector<ExtraKeys> out;
  std::optional<ExprId> rest;  // all undeclared keys, made when some value is possible
  for (uint32_t subset = 0; subset < 1u << patterns.size(); ++subset) {
    ESP_ASSIGN_OR_RETURN(const ExprId value,
                         compiler_.compile(value_of_class(elements, patterns, subset)));
    if (value == ir_.never()) continue;
    if (!rest) {
      ESP_ASSIGN_OR_RETURN(rest, undeclared_keys(elements, literals));
      if (*rest == ir_.never()) return out;
    }
    ExprId key = *rest;
    for (size_t p = 0; p < patterns.size() && key != ir_.never(); ++p) {
      ESP_ASSIGN_OR_RETURN(const ExprId written, compiler_.patterns().quoted_strings(patterns[p]));
      ESP_ASSIGN_OR_RETURN(const ExprId matched, compiler_.patterns().deterministic(written));
      if (subset >> p & 1) {
        ESP_ASSIGN_OR_RETURN(key, intersection(ir_, key, matched, limits_));
      } else {
        ESP_ASSIGN_OR_RETURN(key, difference(ir_, key, matched, limits_));
      }
    }
    if (key != ir_.never()) out.push_back({own_rule(key, "other key"), value});
  }
  return out;
}

// Properties in the order of the list, without counting. There are two states for each position:
// before a property that may begin at once, and behind a property, where a comma is due. What two
// paths share is written once. `begun`: the start is behind a property.
Ir::Graph ObjectCompiler::graph(std::span<const Property> list, const std::vector<ExtraKeys>& extra,
                                bool begun) {
  const auto places = static_cast<uint32_t>(list.size());
  // State 0 is the start.
  const auto before = [&](uint32_t place) { return begun && place == 0 ? places + 1 : place; };
  const auto behind = [&](uint32_t place) { return begun && place == 0 ? 0 : places + 1 + place; };
  Ir::Graph out{.num_states = 2 * places + 2, .edges = {}, .finals = {}};
  uint32_t none_required = 0;  // from this place on, none is required
  for (uint32_t place = 0; place < places; ++place) {
    out.edges.push_back({before(place), list[place].pair, behind(place + 1)});
    if (list[place].required) {
      none_required = place + 1;
    } else {
      out.edges.push_back({before(place), ir_.empty(), before(place + 1)});
    }
  }
  for (const ExtraKeys& keys : extra) {
    out.edges.push_back(
        {before(places), ir_.sequence({keys.key, syntax_.colon(), keys.value}), behind(places)});
  }
  // Nothing stands behind the position before the first property.
  uint32_t first = extra.empty() ? 1 : std::min(places, 1u);
  if (begun) first = 0;
  for (uint32_t place = first; place <= places; ++place) {
    if (place < places || !extra.empty())
      out.edges.push_back({behind(place), compiler_.comma(), before(place)});
    if (place >= none_required) out.finals.push_back(behind(place));
  }
  return out;
}

// Properties in the order of the list where their number matters. States: (position in the list,
// properties so far up to `cap`, the largest count that matters). The count also says whether a
// comma is due.
Ir::Graph ObjectCompiler::counted_graph(const std::vector<Property>& list,
                                        const std::vector<ExtraKeys>& extra, const Counts& counts,
                                        int64_t cap) {
  const auto places = static_cast<int64_t>(list.size());
  const auto state = [&](int64_t place, int64_t count) {
    return static_cast<uint32_t>(place * (cap + 1) + count);
  };
  Ir::Graph graph{.num_states = state(places, cap) + 1, .edges = {}, .finals = {}};
  const auto with_comma = [&](ExprId pair, int64_t count) {
    return count == 0 ? pair : ir_.sequence({compiler_.comma(), pair});
  };
  for (int64_t place = 0; place <= places; ++place) {
    for (int64_t count = 0; count <= cap; ++count) {
      const bool full = count == counts.max;
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
  for (int64_t count = std::max<int64_t>(1, counts.min); count <= cap; ++count) {
    graph.finals.push_back(state(places, count));
  }
  return graph;
}

Status ObjectCompiler::bound_names(const Element& element,
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

std::vector<std::string> ObjectCompiler::declared_names(const Conjunction& elements,
                                                        const Constraints& constraints) const {
  std::vector<std::string> names;
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
  for (const std::string& name : constraints.required) {
    if (known.insert(name).second) names.push_back(name);
  }
  return names;
}

// Where properties are counted and propertyNames allows few names, these are declared: a declared
// key comes once, so its count is exact, and a count that no further key can reach is known.
Status ObjectCompiler::declare_finite_names(const Conjunction& elements,
                                            const Constraints& constraints,
                                            std::vector<std::string>& names) {
  const bool counted = constraints.properties_min > 1 || constraints.properties_max != kUnbounded;
  if (!counted || !limits_names(elements) || options_.any_order) return {};
  ESP_ASSIGN_OR_RETURN(const ExprId keys, key_language(elements));
  const auto texts = finite_language(ir_, keys, kFiniteNamesMax);
  if (!texts) return {};
  for (const std::string& text : *texts) {
    boost::system::error_code failed;
    const json::value key = json::parse(text, failed);
    if (failed || !key.is_string()) continue;
    std::string name(key.get_string());
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return {};
}

Result<ObjectCompiler::PropertyList> ObjectCompiler::list_properties(
    const Conjunction& elements, const Constraints& constraints) {
  PropertyList list{.names = declared_names(elements, constraints), .properties = {}};
  ESP_RETURN_IF_ERROR(bound_names(elements[0], list.names));
  ESP_RETURN_IF_ERROR(declare_finite_names(elements, constraints, list.names));
  const bool names_limited = limits_names(elements);
  ExprId allowed_keys = ir_.never();
  if (names_limited) {
    ESP_ASSIGN_OR_RETURN(allowed_keys, key_language(elements));
  }
  for (const std::string& name : list.names) {
    const bool required = std::ranges::binary_search(constraints.required, name);
    ESP_ASSIGN_OR_RETURN(Conjunction value, property_conjunction(elements, name));
    ESP_ASSIGN_OR_RETURN(const ExprId expr, compiler_.compile(std::move(value)));
    bool possible = expr != ir_.never();
    if (possible && names_limited) {
      possible = allowed_keys != ir_.never();
      if (possible) {
        ESP_ASSIGN_OR_RETURN(const ExprId key,
                             intersection(ir_, quoted(ir_, name), allowed_keys, limits_));
        possible = key != ir_.never();
      }
    }
    list.possible &= possible || !required;
    if (!list.possible) return list;
    if (possible) {
      list.properties.push_back(
          {ir_.sequence({quoted(ir_, name), syntax_.colon(), expr}), required});
    }
  }
  return list;
}

// The counts that the graph enforces. A repeated undeclared key counts once, so a minimum that
// needs such keys is left to a check, and so are counts of too many states where there is a check
// anyway.
Result<ObjectCompiler::Counts> ObjectCompiler::counts_of(const Conjunction& elements,
                                                         const Constraints& constraints,
                                                         size_t num_declared, bool has_extra) {
  Counts counts{.min = constraints.properties_min};
  const auto places = static_cast<int64_t>(num_declared);
  if (constraints.properties_max != kUnbounded &&
      (has_extra || constraints.properties_max < places)) {
    counts.max = constraints.properties_max;
  }
  const auto certain = std::max<int64_t>(std::ssize(constraints.required), 1);
  if (has_extra && counts.min > certain) {
    if (!compiler_.approximating()) {
      return fail(error(StatusCode::kUnimplemented,
                        "{}/minProperties: counting properties that are not declared is not "
                        "supported",
                        document_.pointer_of(elements[0].schema)));
    }
    compiler_.require_check();
  }
  if (compiler_.approximating() &&
      (places + 1) * std::max(constraints.properties_max, counts.min) > kCheckedStatesMax) {
    compiler_.require_check();
    counts = {};
  }
  const int64_t cap = std::max<int64_t>({1, counts.min, counts.bounded() ? counts.max : 0});
  if (cap > kPropertyCountMax || (places + 1) * (cap + 1) > kGraphStatesMax) {
    return fail(
        error(StatusCode::kUnimplemented,
              "{}: minProperties or maxProperties of {} over {} properties is not supported",
              document_.pointer_of(elements[0].schema), cap, places));
  }
  return counts;
}

Result<ExprId> ObjectCompiler::lower(const Conjunction& elements, const Constraints& constraints) {
  if (!constraints.of_objects) return syntax_.object();
  ESP_ASSIGN_OR_RETURN(const PropertyList list, list_properties(elements, constraints));
  if (!list.possible) return ir_.never();
  ESP_ASSIGN_OR_RETURN(const std::vector<ExtraKeys> extra, extra_keys(elements, list.names));
  if (options_.any_order) {
    std::vector<ExprId> pairs;
    for (const Property& property : list.properties) pairs.push_back(property.pair);
    return any_order(std::move(pairs), extra, constraints);
  }
  const bool unreachable = constraints.properties_max != kUnbounded &&
                           constraints.properties_max < constraints.properties_min;
  if (unreachable) return ir_.never();
  ESP_ASSIGN_OR_RETURN(const Counts counts,
                       counts_of(elements, constraints, list.properties.size(), !extra.empty()));
  return assemble(list, extra, counts, !constraints.required.empty());
}

ExprId ObjectCompiler::assemble(const PropertyList& list, const std::vector<ExtraKeys>& extra,
                                const Counts& counts, bool any_required) {
  const std::vector<Property>& properties = list.properties;
  const int64_t cap = std::max<int64_t>({1, counts.min, counts.bounded() ? counts.max : 0});
  const bool counted = cap > 1 || counts.bounded();
  // Leading required properties are a sequence, which alternatives may share.
  std::vector<ExprId> begins = {syntax_.space_inside()};
  size_t first = 0;
  for (; !counted && first < properties.size() && properties[first].required; ++first) {
    if (first > 0) begins.push_back(compiler_.comma());
    begins.push_back(properties[first].pair);
  }
  const auto others = std::span(properties).subspan(first);
  Ir::Graph states =
      counted ? counted_graph(properties, extra, counts, cap) : graph(others, extra, first > 0);
  std::vector<ExprId> alternatives;
  if (!any_required && counts.min == 0) alternatives.push_back(syntax_.space_inside());
  if (first > 0 || !states.edges.empty()) {
    begins.push_back(ir_.graph(std::move(states)));
    begins.push_back(syntax_.space_inside());
    alternatives.push_back(ir_.sequence(begins));
  }
  return ir_.sequence({ir_.literal("{"), ir_.choice(alternatives), ir_.literal("}")});
}

// Properties in any order. The check at the end judges which have come, and how many.
ExprId ObjectCompiler::any_order(std::vector<ExprId> pairs, const std::vector<ExtraKeys>& extra,
                                 const Constraints& constraints) {
  for (const ExtraKeys& keys : extra) {
    pairs.push_back(ir_.sequence({keys.key, syntax_.colon(), keys.value}));
  }
  if (!constraints.required.empty() || constraints.properties_min > 0 ||
      constraints.properties_max != kUnbounded)
    compiler_.require_check();
  const ExprId pair = ir_.choice(pairs);
  const ExprId more = ir_.star(ir_.sequence({compiler_.comma(), pair}));
  const ExprId space = syntax_.space_inside();
  return ir_.sequence({ir_.literal("{"),
                       ir_.choice({space, ir_.sequence({space, pair, more, space})}),
                       ir_.literal("}")});
}

}  // namespace espalier::grammar
