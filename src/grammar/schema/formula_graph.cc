#include "grammar/schema/formula_graph.h"

#include <algorithm>
#include <utility>

#include "grammar/automata/lexeme.h"
#include "grammar/schema/arrays.h"
#include "grammar/schema/objects.h"

namespace espalier::grammar {

namespace {

constexpr size_t kGraphNodesMax = 4000, kEdgesMax = 12'000, kGraphFormulasMax = 100'000;

}  // namespace

Result<ExprId> FormulaGraph::make(Id whole) {
  const bool demanding = std::ranges::any_of(
      atoms_.rests(), [&](const auto& rest) { return !formulas().only_wants(whole, rest.first); });
  // A key that is not declared may come twice, and then counts once.
  checked_ = objects_ && !names_.classes().empty() && (!atoms_.counts().empty() || demanding);
  ESP_RETURN_IF_ERROR(add_states(whole));
  if (checked_ && repeats_) c_.require_check();
  std::vector<ExprId> alternatives;
  const ExprId space = c_.syntax().space_inside();
  if (holds_of_rest(absent(whole, 0))) alternatives.push_back(space);
  if (!graph_.finals.empty())
    alternatives.push_back(c_.ir().sequence({space, c_.ir().graph(std::move(graph_)), space}));
  return c_.ir().choice(alternatives);
}

// Without the properties from `name` on.
FormulaGraph::Id FormulaGraph::absent(Id left, size_t name) {
  for (; name < names_.size(); ++name) left = without(left, name);
  return left;
}

FormulaGraph::Id FormulaGraph::without(Id left, size_t name) {
  left = formulas().settled(left, atoms_.present_atom(name), false);
  for (const uint32_t atom : std::vector<uint32_t>(formulas().atoms(left))) {
    const auto it = atoms_.values().find(atom);
    if (it != atoms_.values().end() && it->second.name == name)
      left = formulas().settled(left, atom, true);
  }
  return left;
}

bool FormulaGraph::holds_of_rest(Id left) {
  for (const auto& [atom, rest] : atoms_.rests()) left = formulas().settled(left, atom, !rest.some);
  for (const auto& [count, atom] : atoms_.counts()) left = formulas().settled(left, atom, false);
  return left == Formulas::kTrue;
}

uint32_t FormulaGraph::state(State s) {
  const bool counted = std::ranges::any_of(atoms_.counts(), [&](const auto& count) {
    return formulas().mentions(s.left, count.second);
  });
  if (!counted) s.count = 0;
  const auto [it, added] = index_.try_emplace(s, static_cast<uint32_t>(states_.size()));
  if (added) states_.push_back(s);
  return it->second;
}

// The state behind one more property.
uint32_t FormulaGraph::behind(const State& from, size_t name, Id left) {
  State to{name, true, from.count + 1, left};
  const auto it = atoms_.counts().find(to.count);
  if (it != atoms_.counts().end()) to.left = formulas().settled(left, it->second, true);
  return to.left == Formulas::kFalse ? kNowhere : state(to);
}

Status FormulaGraph::add_states(Id whole) {
  if (whole == Formulas::kFalse) return {};
  state({0, false, 0, whole});
  for (uint32_t at = 0; at < states_.size(); ++at) {
    ESP_RETURN_IF_ERROR(c_.limits().check_time());
    if (states_.size() > kGraphNodesMax || graph_.edges.size() > kEdgesMax ||
        formulas().size() > kGraphFormulasMax) {
      return error(StatusCode::kResourceExhausted, "too many choices combine");
    }
    ESP_RETURN_IF_ERROR(add_edges(at));
  }
  graph_.num_states = static_cast<uint32_t>(states_.size());
  return {};
}

Status FormulaGraph::add_edges(uint32_t at) {
  const State from = states_[at];
  // An array may end anywhere, an object only after all names had their turn.
  const bool may_end = from.any && (!objects_ || from.name == names_.size());
  if (may_end && holds_of_rest(absent(from.left, from.name))) graph_.finals.push_back(at);
  if (from.name < names_.size()) {
    const Id left = objects_ ? without(from.left, from.name) : Formulas::kFalse;
    if (left != Formulas::kFalse) {
      graph_.edges.push_back(
          {at, c_.ir().empty(), state({from.name + 1, from.any, from.count, left})});
    }
    return take(at, formulas().settled(from.left, atoms_.present_atom(from.name), true), {});
  }
  for (size_t k = 0; k < names_.classes().size(); ++k) {
    std::vector<uint32_t> open;
    for (const uint32_t atom : formulas().atoms(from.left)) {
      const auto it = atoms_.rests().find(atom);
      if (it != atoms_.rests().end() && !it->second.said[k].empty()) open.push_back(atom);
    }
    ESP_RETURN_IF_ERROR(take_other(at, k, from.left, open, {}));
  }
  return {};
}

// What follows, unless it is plain that no value satisfies the conjunction.
template <typename Then>
Status FormulaGraph::possible(const Conjunction& value, Then then) {
  if (graph_.edges.size() > kEdgesMax || !c_.spend_formula_step())
    return error(StatusCode::kResourceExhausted, "too many choices combine");
  ESP_ASSIGN_OR_RETURN(const bool may, c_.may_match(value, 0));
  return may ? then() : Status();
}

// Edges for the property whose turn it is: for each way that what is left depends on its value.
Status FormulaGraph::take(uint32_t at, Id left, Conjunction value) {
  if (left == Formulas::kFalse) return {};
  const State from = states_[at];
  for (const uint32_t atom : std::vector<uint32_t>(formulas().atoms(left))) {
    const auto it = atoms_.values().find(atom);
    if (it == atoms_.values().end() || it->second.name != from.name) continue;
    Conjunction with = value;
    with.push_back(it->second.schema);
    ESP_RETURN_IF_ERROR(
        possible(with, [&] { return take(at, formulas().settled(left, atom, true), with); }));
    const Id otherwise = formulas().settled(left, atom, false);
    if (otherwise == Formulas::kFalse) return {};
    if (!formulas().only_wants(left, atom)) {
      ESP_ASSIGN_OR_RETURN(const Element wrong, c_.settler().negation_of(it->second.schema));
      value.push_back(wrong);
    }
    return possible(value, [&] { return take(at, otherwise, value); });
  }
  const uint32_t to = behind(from, from.name + 1, left);
  return to == kNowhere ? Status() : add_edge(at, key_of(from.name), std::move(value), to);
}

// The same for a key of a class; `open`: atoms that its value may settle.
Status FormulaGraph::take_other(uint32_t at, size_t k, Id left, std::vector<uint32_t> open,
                                const Conjunction& value) {
  if (left == Formulas::kFalse) return {};
  while (!open.empty() && !formulas().mentions(left, open.back())) open.pop_back();
  if (open.empty()) {
    const uint32_t to = behind(states_[at], names_.size(), left);
    if (to == kNowhere) return {};
    repeats_ |= states_[at].any;
    const ExprId key = objects_ ? c_.ir().sequence({names_.classes()[k].key, c_.syntax().colon()})
                                : c_.ir().empty();
    return add_edge(at, key, value, to);
  }
  const uint32_t atom = open.back();
  open.pop_back();
  const FormulaAtoms::Rest& rest = atoms_.rests().at(atom);
  const Conjunction& said = rest.said[k];
  Conjunction with = value;
  with.insert(with.end(), said.begin(), said.end());
  const Id met = rest.some ? formulas().settled(left, atom, true) : left;
  ESP_RETURN_IF_ERROR(possible(with, [&] { return take_other(at, k, met, open, with); }));
  const Id otherwise = rest.some ? left : formulas().settled(left, atom, false);
  if (otherwise == Formulas::kFalse) return {};
  if (formulas().only_wants(left, atom)) return take_other(at, k, otherwise, open, value);
  for (const Element& schema : said) {
    ESP_ASSIGN_OR_RETURN(const Element wrong, c_.settler().negation_of(schema));
    Conjunction against = value;
    against.push_back(wrong);
    ESP_RETURN_IF_ERROR(
        possible(against, [&] { return take_other(at, k, otherwise, open, against); }));
  }
  return {};
}

ExprId FormulaGraph::key_of(size_t name) {
  return objects_ ? c_.ir().sequence({quoted(c_.ir(), names_[name]), c_.syntax().colon()})
                  : c_.ir().empty();
}

Status FormulaGraph::add_edge(uint32_t at, ExprId key, Conjunction value, uint32_t to) {
  ESP_ASSIGN_OR_RETURN(const ExprId expr, c_.compile(std::move(value)));
  if (expr == c_.ir().never()) return {};
  const ExprId pair = c_.ir().sequence({key, expr});
  graph_.edges.push_back({at, states_[at].any ? c_.ir().sequence({comma(), pair}) : pair, to});
  return {};
}

ExprId FormulaGraph::comma() {
  return checked_ ? c_.ir().sequence({c_.syntax().space_inside(), c_.syntax().comma()})
                  : c_.syntax().comma();
}

}  // namespace espalier::grammar
