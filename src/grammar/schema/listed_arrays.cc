#include "grammar/schema/listed_arrays.h"

#include <algorithm>
#include <utility>

#include "grammar/schema/finite_values.h"
#include "grammar/schema/json_values.h"
#include "grammar/schema/keywords.h"

namespace espalier::grammar {

namespace json = boost::json;

namespace {

constexpr size_t kUniqueValuesMax = 64;  // one bit each
constexpr size_t kListedValuesMax = 300;
constexpr size_t kListedPositionsMax = 32;  // that have a schema of their own
constexpr size_t kListedStatesMax = 4096, kListedStepsMax = 25'000;

}  // namespace

Result<std::optional<Ir::Graph>> ListedArrays::items(
    const Conjunction& elements, const Constraints& constraints,
    const std::vector<ArrayCompiler::Contains>& contains) {
  using Made = std::optional<Ir::Graph>;
  constraints_ = &constraints;
  contains_ = contains;
  ESP_ASSIGN_OR_RETURN(const bool listed, list_choices(elements, constraints.unique_items));
  if (!listed) return Made();
  items_cap_ = constraints.items_max != kUnbounded
                   ? constraints.items_max
                   : std::max(constraints.items_min, std::ssize(choices_) - 1);
  if (!add_states()) return Made();
  Ir::Graph graph{.num_states = static_cast<uint32_t>(states_.size()), .edges = {}, .finals = {}};
  keep_ending_states(graph);
  return Made(std::move(graph));
}

// Returns false where the values of some position are too many.
Result<bool> ListedArrays::list_choices(const Conjunction& elements, bool unique) {
  const size_t prefix = prefix_length(elements);
  if (prefix > kListedPositionsMax) return false;
  ArrayCompiler array(compiler_);
  std::vector<Position> positions;
  std::vector<json::value> all;
  for (size_t k = 0; k <= prefix; ++k) {
    positions.push_back({.item = array.item_conjunction(elements, k)});
    ESP_ASSIGN_OR_RETURN(const bool listed, list_values(positions.back(), all));
    if (!listed || all.size() > (unique ? kUniqueValuesMax : kListedValuesMax)) return false;
  }
  if (std::ranges::none_of(positions, &Position::others)) num_values_ = std::ssize(all);
  for (const Position& position : positions) {
    ESP_ASSIGN_OR_RETURN(Choices choices, choices_at(position, unique, all));
    choices_.push_back(std::move(choices));
  }
  return true;
}

// Adds the values of a position; where they are too many, those that satisfy some `contains`.
Result<bool> ListedArrays::list_values(Position& position, std::vector<json::value>& all) {
  const auto add = [&](std::optional<std::vector<json::value>> values) {
    if (!values) return false;
    for (json::value& v : *values) {
      if (std::ranges::none_of(all, [&](const json::value& w) { return equal_values(v, w); }))
        all.push_back(std::move(v));
    }
    return true;
  };
  ESP_ASSIGN_OR_RETURN(auto values, FiniteValues(compiler_).of(position.item, kListedValuesMax));
  if (add(std::move(values))) return true;
  position.others = true;
  for (const ArrayCompiler::Contains& one : contains_) {
    Conjunction hit = position.item;
    hit.push_back(one.schema);
    ESP_ASSIGN_OR_RETURN(auto hits, FiniteValues(compiler_).of(hit, kListedValuesMax));
    if (!add(std::move(hits))) return false;
  }
  return !contains_.empty();
}

Result<ListedArrays::Choices> ListedArrays::choices_at(const Position& position, bool unique,
                                                       const std::vector<json::value>& values) {
  Choices out;
  for (size_t v = 0; v < values.size(); ++v) {
    ESP_ASSIGN_OR_RETURN(const ExprId expr, value_expr(position.item, values[v]));
    if (expr == ir_.never()) continue;
    Choice choice{.expr = expr, .value = unique ? uint64_t{1} << v : 0, .hits = {}};
    for (const ArrayCompiler::Contains& one : contains_) {
      ESP_ASSIGN_OR_RETURN(const bool hit, compiler_.holds(values[v], {one.schema}));
      choice.hits.push_back(hit);
    }
    const auto same = std::ranges::find_if(
        out, [&](const Choice& c) { return !unique && c.hits == choice.hits; });
    if (same == out.end()) {
      out.push_back(std::move(choice));
    } else {
      same->expr = ir_.choice({same->expr, expr});
    }
  }
  if (!position.others) return out;
  ESP_ASSIGN_OR_RETURN(const ExprId others, other_values(position.item, unique, values));
  if (others != ir_.never())
    out.push_back({.expr = others, .value = 0, .hits = std::vector<bool>(contains_.size())});
  return out;
}

// Returns the texts of all values of an item but the listed ones. None of them satisfies
// `contains`.
Result<ExprId> ListedArrays::other_values(const Conjunction& item, bool unique,
                                          const std::vector<json::value>& values) {
  // Only a check separates other structures from the listed ones, where they end. Both must be
  // spelled alike, or it would refuse a listed value that is spelled as only the others are.
  if (std::ranges::any_of(values, [](const json::value& v) { return v.is_structured(); }))
    ESP_RETURN_IF_ERROR(compiler_.judge_items());
  json::object none_of_them;
  none_of_them[kNotEnum] = json::array(values.begin(), values.end());
  Conjunction other = item;
  other.push_back({document_.keep(std::move(none_of_them)), kNoScope, 0});
  auto made = compiler_.compile(std::move(other));
  return made && unique ? compiler_.distinct_item(*made) : made;
}

// Returns the texts of one value. A number has all spellings that the item allows it.
Result<ExprId> ListedArrays::value_expr(const Conjunction& item, const json::value& value) {
  json::object only = {{"const", value}};
  if (value.is_int64()) only = {{"type", "integer"}, {"minimum", value}, {"maximum", value}};
  Conjunction one = item;
  one.push_back({document_.keep(std::move(only)), kNoScope, 0});
  return compiler_.compile(std::move(one));
}

std::optional<ListedArrays::State> ListedArrays::after(const State& from,
                                                       const Choice& choice) const {
  if (from.values & choice.value) return std::nullopt;
  if (constraints_->items_max != kUnbounded && from.items >= constraints_->items_max)
    return std::nullopt;
  State to = from;
  to.items = std::min(from.items + 1, items_cap_);
  to.values |= choice.value;
  for (size_t c = 0; c < contains_.size(); ++c) {
    if (!choice.hits[c]) continue;
    const bool bounded = contains_[c].max != kUnbounded;
    if (bounded && from.hits[c] >= contains_[c].max) return std::nullopt;
    to.hits[c] = bounded ? from.hits[c] + 1 : std::min(from.hits[c] + 1, contains_[c].min);
  }
  return to;
}

bool ListedArrays::may_end(const State& state) const {
  if (state.items < std::max<int64_t>(constraints_->items_min, 1)) return false;
  for (size_t c = 0; c < contains_.size(); ++c) {
    if (state.hits[c] < contains_[c].min) return false;
  }
  return true;
}

// Returns false where there are too many. Without a bound on the items, state 0 differs from later
// ones, since a comma is due behind an item.
bool ListedArrays::add_states() {
  items_cap_ = std::max<int64_t>(items_cap_, 1);
  states_.push_back({0, 0, std::vector<int64_t>(contains_.size(), 0)});
  index_.emplace(states_[0], 0);
  for (uint32_t at = 0; at < states_.size(); ++at) {
    const State from = states_[at];
    const auto position = std::min(static_cast<size_t>(from.items), choices_.size() - 1);
    for (const Choice& choice : choices_[position]) {
      auto to = after(from, choice);
      if (!to) continue;
      const auto [it, added] = index_.try_emplace(*to, static_cast<uint32_t>(states_.size()));
      if (added) states_.push_back(std::move(*to));
      const ExprId expr = at == 0 ? choice.expr : ir_.sequence({compiler_.comma(), choice.expr});
      steps_.push_back({at, it->second, expr});
    }
    if (states_.size() > kListedStatesMax || steps_.size() > kListedStepsMax) return false;
  }
  return true;
}

void ListedArrays::keep_ending_states(Ir::Graph& graph) const {
  std::vector<std::vector<uint32_t>> before(states_.size());
  for (const Step& step : steps_) before[step.to].push_back(step.from);
  std::vector<bool> ends(states_.size(), false);
  std::vector<uint32_t> work;
  const auto mark = [&](uint32_t at) {
    if (!ends[at]) work.push_back(at);
    ends[at] = true;
  };
  for (uint32_t at = 0; at < states_.size(); ++at) {
    if (!may_end(states_[at])) continue;
    graph.finals.push_back(at);
    mark(at);
  }
  while (!work.empty()) {
    const uint32_t at = work.back();
    work.pop_back();
    for (const uint32_t from : before[at]) mark(from);
  }
  for (const Step& step : steps_) {
    if (ends[step.to]) graph.edges.push_back({step.from, step.expr, step.to});
  }
}

}  // namespace espalier::grammar
