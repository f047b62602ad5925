#include "grammar/schema/arrays.h"

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <utility>

#include "grammar/automata/finite_language.h"
#include "grammar/schema/json_text.h"
#include "grammar/schema/json_values.h"
#include "grammar/schema/keywords.h"
#include "grammar/schema/listed_arrays.h"
#include "grammar/schema/number_ranges.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr int64_t kCountMax = 2000;  // items that are counted by states
constexpr int64_t kUnrolledItemsMax = 4;
constexpr int64_t kStatesMax = 50'000;
constexpr size_t kDistinctTextsMax = 256;  // texts of a finite set of items
constexpr size_t kDistinctValuesMax = 10;  // whose subsets are states
constexpr int64_t kCounterMax = 1 << 30;

}  // namespace

Conjunction ArrayCompiler::item_conjunction(const Conjunction& elements, size_t index) {
  Conjunction out;
  for (const Element& element : elements) {
    const json::value* items = member(element, "items");
    const json::value* prefix = member(element, "prefixItems");
    const json::value* rest = items;
    if (rest == nullptr && elements.size() == 1 && evaluates_alone(element)) {
      rest = member(element, "unevaluatedItems");
      const json::value* contains = member(element, "contains");
      // From 2020-12 on, `contains` evaluates the items that satisfy it.
      if (rest != nullptr && contains != nullptr &&
          document_.draft_of(element.schema) == Draft::k2020) {
        const json::value*& made = derived_[element.schema];
        if (made == nullptr) {
          json::object either{{"anyOf", {document_.at(*contains), document_.at(*rest)}}};
          made = document_.keep(std::move(either), element.schema);
        }
        rest = made;
      }
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

Result<std::vector<ArrayCompiler::Contains>> ArrayCompiler::contained(
    const Conjunction& elements) const {
  std::vector<Contains> out;
  for (const Element& element : elements) {
    const json::value* schema = member(element, "contains");
    if (schema == nullptr) continue;
    Contains contains{.schema = {document_.meant(schema), element.scope, 0}};
    const bool counts =
        document_.asserts(element.schema) && document_.draft_of(element.schema) >= Draft::k2019;
    for (const char* key : {"minContains", "maxContains"}) {
      const json::value* bound = member(element, key);
      if (bound == nullptr || !counts) continue;
      const auto count = count_of(*bound);
      if (!count) return fail(wrong(document_, element, key, "a whole number of 0 or more"));
      (key[1] == 'i' ? contains.min : contains.max) = *count;
    }
    if (contains.min > 0 || contains.max != kUnbounded) out.push_back(contains);
  }
  return out;
}

Result<ExprId> ArrayCompiler::lower(const Conjunction& elements, const Constraints& constraints) {
  if (!constraints.of_arrays) return syntax_.array();
  Constraints bounds = constraints;
  ESP_ASSIGN_OR_RETURN(auto contains, contained(elements));
  const bool unique =
      bounds.unique_items && (bounds.items_max == kUnbounded || bounds.items_max > 1);
  if (unique || !contains.empty()) {
    ESP_ASSIGN_OR_RETURN(const auto listed, lower_listed(elements, bounds, contains));
    if (listed) return *listed;
  }
  if (unique && contains.empty() && prefix_length(elements) == 0) {
    ESP_ASSIGN_OR_RETURN(const auto distinct, lower_distinct(elements, bounds));
    if (distinct) return *distinct;
  }
  const bool approximating = compiler_.approximating();
  distinct_ = unique;
  ESP_ASSIGN_OR_RETURN(const bool numbers,
                       unique ? may_hold_numbers(elements) : Result<bool>(false));
  if (numbers && !approximating) {
    return fail(error(StatusCode::kUnimplemented, "{}/uniqueItems: 'uniqueItems' is not supported",
                      document_.pointer_of(elements[0].schema)));
  }
  if (numbers || (approximating && !contains.empty())) compiler_.require_check();
  if (approximating) contains.clear();
  if (contains.size() > 1) {
    return fail(error(StatusCode::kUnimplemented,
                      "{}: several 'contains' at once are not supported",
                      document_.pointer_of(elements[0].schema)));
  }
  if (contains.empty() && std::max(bounds.items_min, bounds.items_max) > kUnrolledItemsMax)
    return lower_counted(elements, bounds);
  return lower_states(elements, bounds, contains);
}

Result<bool> ArrayCompiler::may_hold_numbers(const Conjunction& elements) {
  for (size_t k = 0; k <= prefix_length(elements); ++k) {
    Conjunction item = item_conjunction(elements, k);
    ESP_ASSIGN_OR_RETURN(const auto outcome,
                         compiler_.settler().settle(item, ConjunctionSettler::Mode::kApproximate));
    if (outcome.possible && (plain_types(document_, item) & kNumber)) return true;
  }
  return false;
}

Result<ExprId> ArrayCompiler::compile_item(Conjunction item) {
  auto made = compiler_.compile(std::move(item));
  return made && distinct_ ? compiler_.distinct_item(*made) : made;
}

ExprId ArrayCompiler::with_brackets(ExprId items, bool may_be_empty) {
  const ExprId space = syntax_.space_inside();
  const ExprId some = ir_.sequence({space, items, space});
  return ir_.sequence(
      {ir_.literal("["), may_be_empty ? ir_.choice({space, some}) : some, ir_.literal("]")});
}

// Arrays of items out of few values. Where the states are too many, bounds the number of items.
Result<std::optional<ExprId>> ArrayCompiler::lower_listed(const Conjunction& elements,
                                                          Constraints& constraints,
                                                          const std::vector<Contains>& contains) {
  using Listed = std::optional<ExprId>;
  ListedArrays arrays(compiler_);
  auto graph = arrays.items(elements, constraints, contains);
  if (!graph) {
    if (graph.error().code() == StatusCode::kInvalidArgument) return fail(graph.error());
    return Listed();
  }
  if (!*graph) {
    const auto most = arrays.num_values();
    if (!constraints.unique_items || !most) return Listed();
    if (constraints.items_max == kUnbounded || constraints.items_max > *most)
      constraints.items_max = *most;
    return constraints.items_min > *most ? Listed(ir_.never()) : Listed();
  }
  const bool may_be_empty =
      constraints.items_min == 0 &&
      std::ranges::all_of(contains, [](const Contains& one) { return one.min == 0; });
  if ((*graph)->edges.empty()) {
    if (!may_be_empty) return Listed(ir_.never());
    return Listed(ir_.sequence({ir_.literal("["), syntax_.space_inside(), ir_.literal("]")}));
  }
  return Listed(with_brackets(ir_.graph(std::move(**graph)), may_be_empty));
}

// Arrays as a graph whose states count items and, with `contains`, items that satisfy it.
Result<ExprId> ArrayCompiler::lower_states(const Conjunction& elements,
                                           const Constraints& constraints,
                                           const std::vector<Contains>& contains) {
  const bool bounded = constraints.items_max != kUnbounded;
  if (bounded && constraints.items_max < constraints.items_min) return ir_.never();
  const auto prefix = static_cast<int64_t>(prefix_length(elements));
  const int64_t count =
      bounded ? constraints.items_max : std::max<int64_t>({1, constraints.items_min, prefix});
  if (count > kCountMax) {
    return fail(error(StatusCode::kUnimplemented,
                      "{}: items are counted up to {}; minItems or maxItems asks for {}",
                      document_.pointer_of(elements[0].schema), kCountMax, count));
  }
  const auto only = contains.empty() ? std::nullopt : std::optional(contains[0]);
  ESP_ASSIGN_OR_RETURN(Ir::Graph graph,
                       item_graph(elements, count, bounded, constraints.items_min, only));
  const bool may_be_empty = constraints.items_min == 0 && (!only || only->min == 0);
  return with_brackets(ir_.graph(std::move(graph)), may_be_empty);
}

// State (k, m): k items so far, m of them counted as satisfying `contains`, each up to the largest
// number that matters. An item may satisfy `contains` and not be counted, unless there is a
// maximum.
Result<Ir::Graph> ArrayCompiler::item_graph(const Conjunction& elements, int64_t count,
                                            bool bounded, int64_t items_min,
                                            const std::optional<Contains>& contains) {
  const int64_t hits_min = contains ? contains->min : 0;
  const bool hits_bounded = contains && contains->max != kUnbounded;
  const int64_t hits = hits_bounded ? contains->max : hits_min;
  if ((count + 1) * (hits + 1) > kStatesMax) {
    return fail(error(StatusCode::kUnimplemented,
                      "{}: minContains or maxContains of {} over {} items is not supported",
                      document_.pointer_of(elements[0].schema), hits, count));
  }
  const auto state = [&](int64_t items, int64_t met) {
    return static_cast<uint32_t>(items * (hits + 1) + met);
  };
  Ir::Graph graph{.num_states = state(count, hits) + 1, .edges = {}, .finals = {}};
  for (int64_t k = 0; k <= count && !(k == count && bounded); ++k) {
    const Conjunction item = item_conjunction(elements, static_cast<size_t>(k));
    const auto next_item = [&](Conjunction schema) -> Result<ExprId> {
      ESP_ASSIGN_OR_RETURN(const ExprId expr, compile_item(std::move(schema)));
      return k == 0 || expr == ir_.never() ? expr : ir_.sequence({compiler_.comma(), expr});
    };
    Conjunction hit = item, miss = item;
    if (contains) hit.push_back(contains->schema);
    if (hits_bounded) {
      ESP_ASSIGN_OR_RETURN(const Element negation,
                           compiler_.settler().negation_of(contains->schema));
      miss.push_back(negation);
    }
    ESP_ASSIGN_OR_RETURN(const ExprId missed, next_item(miss));
    ESP_ASSIGN_OR_RETURN(const ExprId found,
                         contains ? next_item(hit) : Result<ExprId>(ir_.never()));
    if (missed == ir_.never() && found == ir_.never()) break;
    const int64_t next = std::min(k + 1, count);
    for (int64_t met = 0; met <= hits; ++met) {
      if (missed != ir_.never()) graph.edges.push_back({state(k, met), missed, state(next, met)});
      if (found != ir_.never() && met < hits)
        graph.edges.push_back({state(k, met), found, state(next, met + 1)});
    }
  }
  for (int64_t k = std::max<int64_t>(items_min, 1); k <= count; ++k) {
    for (int64_t met = hits_min; met <= hits; ++met) graph.finals.push_back(state(k, met));
  }
  return graph;
}

// Arrays whose size a counter bounds, without a state for each size.
Result<ExprId> ArrayCompiler::lower_counted(const Conjunction& elements,
                                            const Constraints& constraints) {
  const int64_t items_min = constraints.items_min, items_max = constraints.items_max;
  if (items_max != kUnbounded && items_max < items_min) return ir_.never();
  const auto prefix = static_cast<int64_t>(prefix_length(elements));
  IrRules::Counter counter{.min = static_cast<uint32_t>(std::min(items_min, kCounterMax)),
                           .max = IrRules::kNoMax};
  if (items_max != kUnbounded && items_max < kCounterMax)
    counter.max = static_cast<uint32_t>(items_max);
  Ir::Graph graph{.num_states = static_cast<uint32_t>(prefix) + 2, .edges = {}, .finals = {}};
  for (int64_t k = 0; k <= prefix + 1; ++k) {
    ESP_ASSIGN_OR_RETURN(const ExprId item,
                         compile_item(item_conjunction(elements, static_cast<size_t>(k))));
    graph.finals.push_back(static_cast<uint32_t>(k));
    if (item == ir_.never()) {
      if (k < items_min) return ir_.never();
      break;
    }
    const ExprId next = ir_.sequence({ir_.tick(), k == 0 ? ir_.empty() : compiler_.comma(), item});
    graph.edges.push_back(
        {static_cast<uint32_t>(k), next, static_cast<uint32_t>(std::min(k + 1, prefix + 1))});
  }
  const ExprId space = syntax_.space_inside();
  const RuleId rule = ir_.rules().add("array of bounded size");
  ir_.rules().set_body(rule, ir_.sequence({ir_.literal("["), space, ir_.graph(std::move(graph)),
                                           ir_.enough(), space, ir_.literal("]")}));
  ir_.rules().set_counter(rule, counter);
  return ir_.rule(rule);
}

Result<std::optional<std::vector<ExprId>>> ArrayCompiler::distinct_values(const Conjunction& item) {
  using Values = std::optional<std::vector<ExprId>>;
  ESP_ASSIGN_OR_RETURN(const ExprId items, compiler_.compile_uncounted(item));
  if (item.empty() || !compiler_.require_regular(item[0], "uniqueItems", items).ok())
    return Values();
  const auto texts = finite_language(ir_, items, kDistinctTextsMax);
  if (!texts) return Values();
  std::map<std::string, std::vector<std::string>> spellings;  // of each value
  for (const std::string& text : *texts) {
    const auto value = parse_exact_json_text(text, "the item");
    if (!value) return Values();
    spellings[canonical_text(*value)].push_back(text);
  }
  std::vector<ExprId> out;
  for (auto& [value, spelt] : spellings) {
    const RuleId rule = ir_.rules().add("distinct item");
    ir_.rules().set_body(rule, ir_.literals(std::move(spelt)));
    out.push_back(ir_.rule(rule));
  }
  return Values(std::move(out));
}

// Arrays of distinct items out of a small finite set: a state for each subset of values that have
// come, so the array closes when no new value is left. Larger finite sets bound the number of items
// and leave the rest to a check.
Result<std::optional<ExprId>> ArrayCompiler::lower_distinct(const Conjunction& elements,
                                                            Constraints& constraints) {
  using Distinct = std::optional<ExprId>;
  const auto values = distinct_values(item_conjunction(elements, 0));
  if (!values) {
    if (values.error().code() == StatusCode::kInvalidArgument) return fail(values.error());
    return Distinct();
  }
  if (!*values) return Distinct();
  const auto num_values = std::ssize(**values);
  if (constraints.items_max == kUnbounded || constraints.items_max > num_values)
    constraints.items_max = num_values;
  if (constraints.items_min > constraints.items_max) return Distinct(ir_.never());
  if (num_values > static_cast<int64_t>(kDistinctValuesMax)) return Distinct();
  return Distinct(distinct_graph(**values, constraints));
}

ExprId ArrayCompiler::distinct_graph(const std::vector<ExprId>& values,
                                     const Constraints& constraints) {
  const auto num_subsets = uint32_t{1} << values.size();
  Ir::Graph graph{.num_states = num_subsets, .edges = {}, .finals = {}};
  for (uint32_t subset = 0; subset < num_subsets; ++subset) {
    const int size = std::popcount(subset);
    if (size > 0 && size >= constraints.items_min) graph.finals.push_back(subset);
    if (size >= constraints.items_max) continue;
    for (uint32_t v = 0; v < values.size(); ++v) {
      if (subset >> v & 1) continue;
      const ExprId item = size == 0 ? values[v] : ir_.sequence({compiler_.comma(), values[v]});
      graph.edges.push_back({subset, item, subset | uint32_t{1} << v});
    }
  }
  if (values.empty() || constraints.items_max == 0)
    return ir_.sequence({ir_.literal("["), syntax_.space_inside(), ir_.literal("]")});
  return with_brackets(ir_.graph(std::move(graph)), constraints.items_min == 0);
}

}  // namespace espalier::grammar
