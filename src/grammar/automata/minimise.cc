// DFA minimisation: a cheap pass for acyclic parts, then partition refinement (Hopcroft).
#include <algorithm>
#include <utility>

#include "base/rng.h"
#include "grammar/automata/nfa.h"

namespace espalier::grammar {
namespace {

// Iterates over the transitions of a state by symbol: adjacent byte ranges into one class are one
// symbol.
class Moves {
 public:
  struct Move {
    int32_t call = -1;
    uint8_t low = 0, high = 0;
    uint32_t to = 0;
    friend bool operator==(const Move&, const Move&) = default;
  };
  Moves(std::span<const Nfa::Edge> edges, const std::vector<uint32_t>& classes)
      : at_(edges.data()), end_(edges.data() + edges.size()), classes_(classes) {}

  bool next(Move& move) {
    if (at_ == end_) return false;
    move = {at_->call, at_->low, at_->high, classes_[at_->target]};
    for (++at_; move.call < 0 && at_ != end_ && at_->call < 0 && at_->low == move.high + 1 &&
                classes_[at_->target] == move.to;
         ++at_)
      move.high = at_->high;
    return true;
  }

 private:
  const Nfa::Edge* at_;
  const Nfa::Edge* const end_;
  const std::vector<uint32_t>& classes_;
};

// Replaces every state by the representative of its class and joins adjacent ranges.
Nfa merged(const Nfa& dfa, const std::vector<uint32_t>& classes, size_t num_classes) {
  Nfa out;
  out.states.resize(num_classes);
  out.edges.reserve(dfa.edges.size());
  std::vector<bool> done(num_classes, false);
  for (NodeId s = 0; s < dfa.states.size(); ++s) {
    const NodeId c = classes[s];
    if (done[c]) continue;
    done[c] = true;
    out.states[c].final = dfa.states[s].final;
    out.begin_edges(c);
    for (Nfa::Edge e : dfa.edges_of(s)) {
      e.target = classes[e.target];
      out.edges.push_back(e);
    }
    join_ranges(out.edges, out.states[c].edges_begin);
    out.end_edges(c);
  }
  out.start = classes[dfa.start];
  return out;
}

// Merges equivalent states from the final ones backwards. Where the only cycles are self-loops, as
// in most rules, this finds all equivalences.
class EndsFirst {
 public:
  explicit EndsFirst(const Nfa& dfa) : dfa_(dfa), classes_(dfa.states.size()) {
    for (NodeId s = 0; s < classes_.size(); ++s) classes_[s] = s;
    size_t size = 64;
    while (size < 2 * classes_.size()) size *= 2;
    table_.assign(size, kUnnamed);
    visit_all();
  }

  // Returns whether there are cycles that this pass did not resolve.
  bool has_cycles() const { return has_cycles_; }

  Nfa result() {
    // A representative may have been merged into another one since; path compression follows it.
    for (uint32_t& c : classes_) {
      while (classes_[c] != c) c = classes_[c];
    }
    std::vector<uint32_t> names(classes_.size(), kUnnamed);
    uint32_t count = 0;
    for (NodeId s = 0; s < classes_.size(); ++s) {
      if (classes_[s] == s) names[s] = count++;
    }
    for (uint32_t& c : classes_) c = names[c];
    return merged(dfa_, classes_, count);
  }

 private:
  enum class Place : uint8_t { kNew, kOpen, kDone };
  struct Frame {
    NodeId state;
    uint32_t edge;
  };

  // Depth-first search without recursion: a state is classified after all its successors.
  void visit_all() {
    std::vector<Place> places(classes_.size(), Place::kNew);
    std::vector<Frame> frames = {{dfa_.start, dfa_.states[dfa_.start].edges_begin}};
    places[dfa_.start] = Place::kOpen;
    while (!frames.empty()) {
      Frame& frame = frames.back();
      if (frame.edge == dfa_.states[frame.state].edges_end) {
        settle(frame.state);
        places[frame.state] = Place::kDone;
        frames.pop_back();
        continue;
      }
      const NodeId to = dfa_.edges[frame.edge++].target;
      if (places[to] == Place::kNew) {
        places[to] = Place::kOpen;
        frames.push_back({to, dfa_.states[to].edges_begin});
      } else if (places[to] == Place::kOpen && to != frame.state) {
        has_cycles_ = true;
      }
    }
  }

  void settle(NodeId state) {
    // A state with a self-loop may be equivalent to a successor that has the same self-loop.
    for (const Nfa::Edge& edge : dfa_.edges_of(state)) {
      const NodeId other = classes_[edge.target];
      if (other != state && loops(other) && same(state, other, other)) {
        classes_[state] = other;
        return;
      }
    }
    const size_t mask = table_.size() - 1;
    size_t at = hash_of(state) & mask;
    for (; table_[at] != kUnnamed; at = (at + 1) & mask) {
      if (same(state, table_[at], kUnnamed)) {
        classes_[state] = table_[at];
        return;
      }
    }
    table_[at] = state;
  }

  bool loops(NodeId state) const {
    return std::ranges::any_of(dfa_.edges_of(state),
                               [&](const Nfa::Edge& e) { return e.target == state; });
  }

  // A self-loop's target has no class yet.
  uint32_t meant(NodeId of, uint32_t to) const { return to == of ? kUnnamed : to; }

  uint64_t hash_of(NodeId state) const {
    uint64_t hash = dfa_.states[state].final ? 1 : 0;
    Moves moves(dfa_.edges_of(state), classes_);
    for (Moves::Move m; moves.next(m);) {
      const uint64_t symbol = uint64_t{static_cast<uint32_t>(m.call)} << 16 | m.low << 8 | m.high;
      hash = mix64(hash ^ symbol ^ uint64_t{meant(state, m.to)} << 24);
    }
    return hash;
  }

  // Compares two states, reading transitions of `a` into `loop` as self-loops.
  bool same(NodeId a, NodeId b, NodeId loop) const {
    if (dfa_.states[a].final != dfa_.states[b].final) return false;
    Moves x(dfa_.edges_of(a), classes_), y(dfa_.edges_of(b), classes_);
    Moves::Move p, q;
    while (true) {
      const bool more = x.next(p);
      if (more != y.next(q)) return false;
      if (!more) return true;
      p.to = p.to == loop ? kUnnamed : meant(a, p.to);
      q.to = meant(b, q.to);
      if (p != q) return false;
    }
  }

  const Nfa& dfa_;
  std::vector<uint32_t> classes_;  // [state] its representative
  std::vector<NodeId> table_;      // representatives by hash
  bool has_cycles_ = false;
};

// Partition refinement: splits classes until the states of one class move to the same classes by
// the same symbols. Only states that lead into a split class are visited again, and the largest
// part of a split keeps its number, so each state is renumbered a logarithmic number of times.
class Refinement {
 public:
  Refinement(const Nfa& dfa, const GrammarLimits& limits)
      : dfa_(dfa), sources_(dfa), classes_(dfa.states.size(), 0) {
    const size_t count = dfa.states.size();
    dirty_.assign(count, true);
    for (NodeId s = 0; s < count; ++s) members_.push_back(s);
    ranges_ = {{0, static_cast<uint32_t>(count)}};
    queue_.push_back(0);
    queued_.push_back(true);
    WorkClock clock(limits);
    while (!queue_.empty()) {
      const uint32_t c = queue_.back();
      if (clock.ended_by(64 * (ranges_[c].end - ranges_[c].begin))) return;
      queue_.pop_back();
      queued_[c] = false;
      split(c);
    }
  }
  const std::vector<uint32_t>& classes() const { return classes_; }
  size_t count() const { return ranges_.size(); }

 private:
  struct Range {
    uint32_t begin, end;  // of members_
  };
  struct Keyed {
    uint64_t hash;
    uint32_t part;
    NodeId state;
  };

  uint64_t hash_of(NodeId s) const {
    uint64_t hash = dfa_.states[s].final ? 1 : 0;
    Moves moves(dfa_.edges_of(s), classes_);
    for (Moves::Move m; moves.next(m);) {
      const uint64_t symbol = uint64_t{static_cast<uint32_t>(m.call)} << 16 | m.low << 8 | m.high;
      hash = mix64(hash ^ symbol ^ uint64_t{m.to} << 24);
    }
    return hash;
  }

  bool same(NodeId a, NodeId b) const {
    if (dfa_.states[a].final != dfa_.states[b].final) return false;
    Moves x(dfa_.edges_of(a), classes_), y(dfa_.edges_of(b), classes_);
    Moves::Move p, q;
    while (true) {
      const bool more = x.next(p);
      if (more != y.next(q) || (more && p != q)) return false;
      if (!more) return true;
    }
  }

  // Assigns each state of keyed_ the number of its part; returns the number of parts.
  uint32_t find_parts() {
    std::ranges::sort(keyed_, {}, [](const Keyed& k) { return std::pair(k.hash, k.state); });
    uint32_t parts = 0;
    for (size_t first = 0; first < keyed_.size();) {
      size_t end = first;
      while (end < keyed_.size() && keyed_[end].hash == keyed_[first].hash) ++end;
      // States of one hash are nearly always in one part.
      firsts_.clear();
      for (size_t i = first; i < end; ++i) {
        const auto known = std::ranges::find_if(
            firsts_, [&](const Keyed& k) { return same(k.state, keyed_[i].state); });
        if (known == firsts_.end()) {
          keyed_[i].part = parts++;
          firsts_.push_back(keyed_[i]);
        } else {
          keyed_[i].part = known->part;
        }
      }
      first = end;
    }
    return parts;
  }

  void split(uint32_t c) {
    const Range range = ranges_[c];
    keyed_.clear();
    clean_.clear();  // all of one key
    for (uint32_t i = range.begin; i < range.end; ++i) {
      const NodeId s = members_[i];
      if (dirty_[s]) {
        keyed_.push_back({hash_of(s), 0, s});
        dirty_[s] = false;
      } else {
        clean_.push_back(s);
      }
    }
    if (!clean_.empty()) keyed_.push_back({hash_of(clean_[0]), 0, clean_[0]});
    const uint32_t parts = find_parts();
    if (parts < 2) return;
    sizes_.assign(parts, 0);
    uint32_t clean_part = parts;
    for (const Keyed& k : keyed_) {
      ++sizes_[k.part];
      if (!clean_.empty() && k.state == clean_[0]) clean_part = k.part;
    }
    if (!clean_.empty()) sizes_[clean_part] += static_cast<uint32_t>(clean_.size()) - 1;
    const auto largest = static_cast<uint32_t>(std::ranges::max_element(sizes_) - sizes_.begin());
    // The largest part stays in front as class c; each other part becomes a class behind it.
    starts_.assign(parts, 0);
    names_.assign(parts, c);
    uint32_t at = range.begin + sizes_[largest];
    starts_[largest] = range.begin;
    ranges_[c] = {range.begin, at};
    for (uint32_t part = 0; part < parts; ++part) {
      if (part == largest) continue;
      names_[part] = static_cast<uint32_t>(ranges_.size());
      starts_[part] = at;
      ranges_.push_back({at, at + sizes_[part]});
      queued_.push_back(false);
      at += sizes_[part];
    }
    for (const Keyed& k : keyed_) move_to(k.part, k.state);
    for (size_t i = 1; i < clean_.size(); ++i) move_to(clean_part, clean_[i]);
    for (uint32_t i = ranges_[c].end; i < range.end; ++i) {
      for (const NodeId source : sources_.of(members_[i])) {
        dirty_[source] = true;
        const uint32_t where = classes_[source];
        if (!queued_[where]) queue_.push_back(where);
        queued_[where] = true;
      }
    }
  }

  void move_to(uint32_t part, NodeId state) {
    members_[starts_[part]++] = state;
    classes_[state] = names_[part];
  }

  const Nfa& dfa_;
  const Sources sources_;
  std::vector<uint32_t> classes_;
  std::vector<NodeId> members_;  // those of a class stand together
  std::vector<Range> ranges_;    // [class]
  std::vector<bool> dirty_, queued_;
  std::vector<uint32_t> queue_;
  // Scratch of one split.
  std::vector<Keyed> keyed_, firsts_;
  std::vector<NodeId> clean_;
  std::vector<uint32_t> sizes_, starts_, names_;
};

}  // namespace

Nfa minimised(const Nfa& dfa, const GrammarLimits& limits) {
  EndsFirst ends_first(dfa);
  Nfa out = ends_first.result();
  if (!ends_first.has_cycles()) return out;
  const Refinement refinement(out, limits);
  if (refinement.count() == out.states.size()) return out;
  return merged(out, refinement.classes(), refinement.count());
}

}  // namespace espalier::grammar
