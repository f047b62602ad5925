#include "grammar/automata/earley_positions.h"

#include <algorithm>
#include <span>

namespace espalier::grammar {
namespace {

constexpr SetId kInRule = EarleyPosition::kInRule;

bool are_disjoint(std::span<const Network::ByteEdge> edges) {
  for (size_t i = 1; i < edges.size(); ++i) {
    if (edges[i].low <= edges[i - 1].high) return false;
  }
  return true;
}

}  // namespace

EarleyPosition EarleyPositions::position_of(SetId set) const {
  if (set == EarleySets::kDead || set == EarleySets::kNeedsText) return {set};
  const std::span<const EarleyItem> kernel = sets_.kernel(set);
  if (kernel.size() != 1) return {set};
  const EarleyItem& item = kernel[0];
  if (!network_.only_bytes(item.node)) return {set};
  return {kInRule, item.node, item.return_id, item.count};
}

SetId EarleyPositions::set_of(const Position& position) {
  if (position.set != kInRule) return position.set;
  const EarleyItem item{position.node, position.return_id, position.count};
  return closure_.intern_settled({&item, 1});
}

EarleyPosition EarleyPositions::step(const Position& from, uint8_t byte) {
  std::span<const EarleyItem> items;
  const EarleyItem item{from.node, from.return_id, from.count};
  if (from.set == kInRule) {
    items = {&item, 1};
  } else {
    const SetId to = sets_.next(from.set, network_.byte_class[byte]);
    if (to != EarleySets::kUnknown) return position_of(to);
    items = sets_.scanning(from.set);
  }
  closure_.spend(items.size());
  if (closure_.exhausted()) return {};
  Position to;
  for (const EarleyItem& one : items) {
    for (const Network::ByteEdge& edge : network_.bytes_of(one.node)) {
      if (byte < edge.low || edge.high < byte || !network_.has_room(edge.target, one.count))
        continue;
      const Position next{kInRule, edge.target, one.return_id, one.count};
      if (to == next) continue;
      if (to.set == EarleySets::kDead && network_.only_bytes(edge.target)) {
        to = next;
        continue;
      }
      // Several items, or one item at a node with other than byte edges, become a set of their own.
      if (from.set != kInRule) return position_of(earley_.step_without_text(from.set, byte));
      return position_of(step_in_rule(item, byte));
    }
  }
  return to;
}

SetId EarleyPositions::step_in_rule(const EarleyItem& item, uint8_t byte) {
  kernel_.clear();
  for (const Network::ByteEdge& edge : network_.bytes_of(item.node)) {
    if (edge.low <= byte && byte <= edge.high && network_.has_room(edge.target, item.count))
      kernel_.push_back({edge.target, item.return_id, item.count});
  }
  std::sort(kernel_.begin(), kernel_.end());
  kernel_.erase(std::unique(kernel_.begin(), kernel_.end()), kernel_.end());
  bool needs_text = false;
  const SetId to = closure_.intern(kernel_, nullptr, needs_text);
  return needs_text ? EarleySets::kNeedsText : to;
}

// Returns whether the node has byte edges only and no self-loop. A walk passes such a node once, so
// a set for it would not be reused.
bool EarleyPositions::is_chain(NodeId node) {
  if (chains_.size() <= node) chains_.resize(network_.nodes.size(), 0);
  uint8_t& known = chains_[node];
  if (known == 0) {
    const bool loops =
        std::ranges::any_of(network_.bytes_of(node),
                            [&](const Network::ByteEdge& edge) { return edge.target == node; });
    known = network_.only_bytes(node) && !loops ? 1 : 2;
  }
  return known == 1;
}

EarleyPosition EarleyPositions::step_along_slow(const Position& from, uint8_t byte) {
  const EarleyItem item{from.node, from.return_id, from.count};
  const std::span<const EarleyItem> items =
      from.set == kInRule ? std::span(&item, 1) : sets_.scanning(from.set);
  closure_.spend(items.size());
  if (closure_.exhausted()) return {};
  Position to;
  for (const EarleyItem& one : items) {
    for (const Network::ByteEdge& edge : network_.bytes_of(one.node)) {
      if (byte < edge.low || edge.high < byte || !network_.has_room(edge.target, one.count))
        continue;
      const Position next{kInRule, edge.target, one.return_id, one.count};
      if (to == next) continue;
      if (to.set != EarleySets::kDead || !is_chain(edge.target)) {
        return {from.set == kInRule ? step_in_rule(item, byte)
                                    : earley_.step_without_text(from.set, byte)};
      }
      to = next;
    }
  }
  return to;
}

void EarleyPositions::add_bytes(const Position& position, ByteMask& bytes) const {
  const auto add = [&](NodeId node) {
    for (const Network::ByteEdge& edge : network_.bytes_of(node)) bytes.add(edge.low, edge.high);
  };
  if (position.set == kInRule) return add(position.node);
  if (!position.leads_on()) return;
  for (const EarleyItem& item : sets_.scanning(position.set)) add(item.node);
}

void EarleyPositions::add_differing_bytes(const Position& a, const Position& b,
                                          ByteMask& bytes) const {
  ByteMask both;
  add_bytes(a, both);
  add_bytes(b, both);
  const bool alike =
      a.set == kInRule && b.set == kInRule && a.return_id == b.return_id && a.count == b.count;
  // Edges are sorted, so the two lists are merged; overlapping ranges within one list are not
  // merged.
  const std::span<const Network::ByteEdge> x = network_.bytes_of(a.node);
  const std::span<const Network::ByteEdge> y = network_.bytes_of(b.node);
  if (alike && are_disjoint(x) && are_disjoint(y)) {
    for (size_t i = 0, j = 0; i < x.size() && j < y.size();) {
      const int low = std::max(x[i].low, y[j].low), high = std::min(x[i].high, y[j].high);
      if (low <= high && x[i].target == y[j].target) both.remove(low, high);
      (x[i].high < y[j].high ? i : j) += 1;
    }
  }
  for (size_t w = 0; w < both.words.size(); ++w) bytes.words[w] |= both.words[w];
}

}  // namespace espalier::grammar
