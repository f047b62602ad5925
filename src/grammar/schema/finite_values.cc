#include "grammar/schema/finite_values.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "grammar/schema/arrays.h"
#include "grammar/schema/json_values.h"
#include "grammar/schema/objects.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

using Values = FiniteValues::Values;
using ListedValues = std::optional<Values>;

constexpr size_t kCandidatesMax = 1000;
constexpr int kFiniteDepthMax = 6;  // arrays and objects in each other, and choices

// Returns the nearest integer below (or above) a bound, which may exclude itself.
std::optional<int64_t> integer_at(const Decimal& bound, bool open, bool above) {
  if (bound.whole.size() > 15) return std::nullopt;
  int64_t whole = 0;
  std::from_chars(bound.whole.data(), bound.whole.data() + bound.whole.size(), whole);
  if (bound.negative) whole = -whole;
  const bool exact = bound.fraction.empty();
  if (exact) return open ? whole + (above ? 1 : -1) : whole;
  if (above) return bound.negative ? whole : whole + 1;
  return bound.negative ? whole - 1 : whole;
}

ListedValues integers(const NumberBounds& bounds) {
  if (!bounds.low || !bounds.high) return std::nullopt;
  const auto low = integer_at(*bounds.low, bounds.low_open, true);
  const auto high = integer_at(*bounds.high, bounds.high_open, false);
  if (!low || !high || *high - *low >= static_cast<int64_t>(kCandidatesMax)) return std::nullopt;
  Values out;
  for (int64_t v = *low; v <= *high; ++v) out.emplace_back(v);
  return out;
}

// Returns each array of `begins` with each of `items` appended.
Values extended(const Values& begins, const Values& items, bool unique) {
  Values out;
  for (const json::value& begin : begins) {
    for (const json::value& item : items) {
      const json::array& before = begin.get_array();
      if (unique &&
          std::ranges::any_of(before, [&](const json::value& v) { return equal_values(v, item); }))
        continue;
      json::array longer = before;
      longer.push_back(item);
      out.emplace_back(std::move(longer));
      if (out.size() > kCandidatesMax) return out;
    }
  }
  return out;
}

}  // namespace

Result<ListedValues> FiniteValues::of(const Conjunction& elements, size_t values_max) {
  if (options_.any_order) return ListedValues();  // objects that are equal have several texts
  ESP_ASSIGN_OR_RETURN(ListedValues made, candidates(elements, 0));
  if (!made) return ListedValues();
  Values out;
  std::set<std::string> known;
  for (json::value& v : *made) {
    ESP_RETURN_IF_ERROR(limits_.check_time());
    ESP_ASSIGN_OR_RETURN(const bool fits, compiler_.holds(v, elements));
    if (!fits || !known.insert(canonical_text(v)).second) continue;
    if (out.size() == values_max) return ListedValues();
    out.push_back(std::move(v));
  }
  return ListedValues(std::move(out));
}

Result<ListedValues> FiniteValues::candidates(Conjunction elements, int depth) {
  if (depth > kFiniteDepthMax) return ListedValues();
  ESP_RETURN_IF_ERROR(limits_.check_time());
  ESP_ASSIGN_OR_RETURN(const auto outcome, compiler_.settler().settle(
                                               elements, ConjunctionSettler::Mode::kApproximate));
  if (!outcome.possible || plain_types(document_, elements) == 0) return ListedValues(Values());
  for (size_t i = 0; i < elements.size(); ++i) {
    for (const bool one : {false, true}) {
      const json::value* list = member(elements[i], one ? "oneOf" : "anyOf");
      if (list == nullptr || (elements[i].done & (one ? kDoneOneOf : kDoneAnyOf))) continue;
      return candidates_of_branches(elements, i, one, depth);
    }
  }
  ESP_ASSIGN_OR_RETURN(const Constraints constraints, collect_constraints(document_, elements));
  if (const auto values = allowed_values(constraints)) {
    if (values->size() > kCandidatesMax) return ListedValues();
    Values out;
    for (const json::value* v : *values) out.push_back(*v);
    return ListedValues(std::move(out));
  }
  return candidates_by_type(elements, constraints, depth);
}

Result<ListedValues> FiniteValues::candidates_of_branches(const Conjunction& elements, size_t index,
                                                          bool one, int depth) {
  const json::value* list = member(elements[index], one ? "oneOf" : "anyOf");
  if (!list->is_array()) return ListedValues();
  Conjunction common = elements;
  common[index].done |= one ? kDoneOneOf : kDoneAnyOf;
  Values out;
  for (const json::value& schema : list->get_array()) {
    Conjunction alternative = common;
    alternative.push_back({&schema, elements[index].scope, 0});
    ESP_ASSIGN_OR_RETURN(const ListedValues some, candidates(std::move(alternative), depth + 1));
    if (!some || out.size() + some->size() > kCandidatesMax) return ListedValues();
    out.insert(out.end(), some->begin(), some->end());
  }
  return ListedValues(std::move(out));
}

Result<ListedValues> FiniteValues::candidates_by_type(const Conjunction& elements,
                                                      const Constraints& constraints, int depth) {
  const uint8_t types = constraints.types;
  if (types & kFraction) return ListedValues();
  if ((types & kString) && constraints.length_max != 0) return ListedValues();
  Values out;
  if (types & kNull) out.emplace_back(nullptr);
  if (types & kBoolean) out.insert(out.end(), {json::value(true), json::value(false)});
  if (types & kString) out.emplace_back("");
  const auto add = [&](const ListedValues& some) {
    if (some) out.insert(out.end(), some->begin(), some->end());
    return some && out.size() <= kCandidatesMax;
  };
  if ((types & kInteger) && !add(integers(constraints.bounds))) return ListedValues();
  if (types & kArray) {
    ESP_ASSIGN_OR_RETURN(const ListedValues some, arrays(elements, constraints, depth));
    if (!add(some)) return ListedValues();
  }
  if (types & kObject) {
    ESP_ASSIGN_OR_RETURN(const ListedValues some, objects(elements, constraints, depth));
    if (!add(some)) return ListedValues();
  }
  return ListedValues(std::move(out));
}

Result<ListedValues> FiniteValues::arrays(const Conjunction& elements,
                                          const Constraints& constraints, int depth) {
  const bool bounded = constraints.items_max != kUnbounded;
  const size_t prefix = prefix_length(elements);
  Values out;
  if (constraints.items_min == 0) out.emplace_back(json::array());
  Values longest = {json::array()};
  ArrayCompiler array(compiler_);
  for (int64_t k = 0; !longest.empty() && (!bounded || k < constraints.items_max); ++k) {
    const auto index = std::min(static_cast<size_t>(k), prefix);
    ESP_ASSIGN_OR_RETURN(const ListedValues items,
                         candidates(array.item_conjunction(elements, index), depth + 1));
    if (!items) return ListedValues();
    if (!bounded && !constraints.unique_items && index == prefix && !items->empty())
      return ListedValues();
    longest = extended(longest, *items, constraints.unique_items);
    if (out.size() + longest.size() > kCandidatesMax) return ListedValues();
    if (k + 1 >= constraints.items_min) out.insert(out.end(), longest.begin(), longest.end());
  }
  return ListedValues(std::move(out));
}

// The names that properties may have: those declared, and those that propertyNames lists.
Result<std::optional<std::vector<std::string>>> FiniteValues::names(const Conjunction& elements,
                                                                    const Constraints& constraints,
                                                                    int depth) {
  using Names = std::optional<std::vector<std::string>>;
  std::vector<std::string> out = ObjectCompiler(compiler_).declared_names(elements, constraints);
  Conjunction other, named;
  for (const Element& element : elements) {
    if (member(element, "patternProperties") != nullptr) return Names();
    if (const json::value* names = member(element, "propertyNames"))
      named.push_back({names, element.scope, 0});
    if (const json::value* additional = additional_of(element, elements))
      other.push_back({additional, element.scope, 0});
  }
  ESP_ASSIGN_OR_RETURN(const ListedValues values, candidates(other, depth + 1));
  if (values && values->empty()) return Names(std::move(out));
  if (named.empty()) return Names();
  static const json::value kStrings = json::object{{"type", "string"}};
  named.push_back({&kStrings, kNoScope, 0});
  ESP_ASSIGN_OR_RETURN(const ListedValues listed, candidates(named, depth + 1));
  if (!listed) return Names();
  for (const json::value& name : *listed) {
    if (!name.is_string()) continue;
    std::string text(name.get_string());
    if (std::ranges::find(out, text) == out.end()) out.push_back(std::move(text));
  }
  return Names(std::move(out));
}

Result<ListedValues> FiniteValues::objects(const Conjunction& elements,
                                           const Constraints& constraints, int depth) {
  std::optional<std::vector<std::string>> keys(std::in_place);
  if (constraints.properties_max != 0) {
    ESP_ASSIGN_OR_RETURN(keys, names(elements, constraints, depth));
  }
  if (!keys) return ListedValues();
  Values out = {json::object()};
  for (const std::string& name : *keys) {
    ESP_ASSIGN_OR_RETURN(Conjunction value,
                         ObjectCompiler(compiler_).property_conjunction(elements, name));
    ESP_ASSIGN_OR_RETURN(const ListedValues values, candidates(std::move(value), depth + 1));
    if (!values || (values->size() + 1) * out.size() > kCandidatesMax) return ListedValues();
    const bool required = std::ranges::binary_search(constraints.required, name);
    Values longer = required ? Values() : out;
    for (const json::value& begin : out) {
      for (const json::value& v : *values) {
        json::object with = begin.get_object();
        with[name] = v;
        longer.emplace_back(std::move(with));
      }
    }
    out = std::move(longer);
  }
  return ListedValues(std::move(out));
}

}  // namespace espalier::grammar
