#include "grammar/masks/char_class_search.h"

#include <algorithm>
#include <set>

#include "grammar/automata/byte_mask.h"

namespace espalier::grammar {
namespace {

// Returns whether a byte from low to high belongs to a character of some class.
bool has_character_byte(int low, int high) {
  low = std::max(low, 0x20);
  return low < high || (low == high && low != '"' && low != '\\');
}

}  // namespace

// Follows the rest of a character of the class from a position inside it. The sets behind the
// character are appended to targets_, each once from its last list on.
bool CharClassSearch::follow(int kind, uint8_t position, SetId at, bool& any) {
  bool all = true;
  SetId last = EarleySets::kDead;
  for (const Edge& edge : edges_[static_cast<size_t>(kind)]) {
    if (edge.from != position) continue;
    const SetId to = earley_.step_without_text(at, edge.byte);
    if (!EarleySets::leads_on(to)) {
      all = false;
      continue;
    }
    any = true;
    if (edge.to != CharClassAutomaton::kWhole) {
      if (std::ranges::find(within_, std::pair(edge.to, to)) != within_.end()) continue;
      within_.emplace_back(edge.to, to);
      all &= follow(kind, edge.to, to, any);
    } else if (to != last) {
      last = to;
      const SetId next = earley_.canonical(to);
      const auto begin = targets_.begin() + static_cast<std::ptrdiff_t>(targets_begin_);
      if (std::find(begin, targets_.end(), next) == targets_.end()) targets_.push_back(next);
    }
  }
  return all;
}

const CharClassSearch::Led& CharClassSearch::lead(int kind, SetId from) {
  const auto [it, added] = led_.try_emplace(uint64_t{from} << 4 | static_cast<uint64_t>(kind));
  Led& led = it->second;
  if (!added) return led;
  within_.clear();
  targets_begin_ = targets_.size();
  led.all = follow(kind, CharClassAutomaton::kStart, from, led.any);
  led.begin = static_cast<uint32_t>(targets_begin_);
  led.end = static_cast<uint32_t>(targets_.size());
  return led;
}

// Adds the sets that led_ names to found_, each once in a search. `from` is the index in found_ of
// the set from which the class led to them.
void CharClassSearch::find(const Led& led, int kind, size_t from) {
  for (uint32_t i = led.begin; i < led.end; ++i) {
    const SetId next = targets_[i];
    if (rounds_.size() <= next) rounds_.resize(earley_.num_sets() + next, 0);
    if (std::exchange(rounds_[next], round_) == round_) continue;
    found_.push_back(next);
    const auto one = static_cast<CharClassSet>(1 << kind);
    marks_.push_back((one & kMarkClasses) != 0 ? one : marks_[from]);
  }
}

// Searches with the given classes. Those that do not lead on everywhere go to `failed`, or, where a
// mark led to the set at which letters fail (the slash of a path, behind which only a number may
// stand), that mark, since the letters make up more tokens.
CharClassSearch::Absorbed CharClassSearch::search(SetId set, CharClassSet kinds,
                                                  CharClassSet& failed) {
  ++round_;
  found_ = {set};
  marks_ = {0};
  size_t begin = 0;
  for (size_t level = 0; begin < found_.size() && level <= longest_; ++level) {
    bool any = false;
    CharClassSet marks = 0;
    for (const size_t end = found_.size(); begin < end; ++begin) {
      for (int kind = 0; kind < kNumCharClasses; ++kind) {
        if (!(kinds >> kind & 1)) continue;
        const Led& led = lead(kind, found_[begin]);
        any |= led.any;
        if (!led.all) {
          failed |= static_cast<CharClassSet>(1 << kind);
          if (kind < kNumLetterClasses) marks |= marks_[begin];
        }
        find(led, kind, begin);
      }
    }
    if (level > 0 && !any) {
      // ASCII tokens are selected by length; the other tokens are walked.
      failed = kinds & ~kAsciiCharClasses;
      return {kinds, level};
    }
    if (found_.size() > kSetsMax) return {};
    if (failed == 0) continue;
    if (marks != 0) failed = marks;
    break;
  }
  return {kinds};
}

CharClassSearch::Absorbed CharClassSearch::absorbed(SetId set) {
  if (edges_[0].empty()) make_edges();
  if (led_.size() + targets_.size() > kLedMax) {
    led_.clear();
    targets_.clear();
  }
  for (CharClassSet kinds = kAllCharClasses; kinds != 0;) {
    CharClassSet failed = 0;
    const Absorbed found = search(set, kinds, failed);
    if (failed == 0 || found.kinds == 0) return found;
    kinds &= ~failed;
  }
  return {};
}

// Follows the edges of the set's rules, whatever their counters allow, so it may find more than can
// follow, but never less. Behind the end of a rule anything may follow.
CharClassSet CharClassSearch::live(SetId set) {
  constexpr size_t kNodesMax = 256;
  if (edges_[0].empty()) make_edges();
  const Network& network = earley_.network();
  seen_.clear();
  nodes_.clear();
  const auto reach = [&](NodeId node) {
    if (seen_.insert({node, ReturnStates::kRoot})) nodes_.push_back(node);
  };
  for (const EarleyItem& item : earley_.sets().scanning(set)) reach(item.node);
  ByteMask bytes;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const NodeId node = nodes_[i];
    const bool leaves = network.nodes[node].final || !network.calls_of(node).empty();
    if (leaves || nodes_.size() > kNodesMax) return kAllCharClasses;
    for (const Network::ByteEdge& edge : network.bytes_of(node)) {
      if (!has_character_byte(edge.low, edge.high)) continue;
      bytes.add(edge.low, edge.high);
      reach(edge.target);
    }
    for (const Network::CountEdge& edge : network.counts_of(node)) reach(edge.target);
  }
  CharClassSet live = 0;
  for (int kind = 0; kind < kNumCharClasses; ++kind) {
    const auto leads = [&](const Edge& edge) {
      return edge.from == CharClassAutomaton::kStart && bytes.has(edge.byte);
    };
    if (std::ranges::any_of(edges_[static_cast<size_t>(kind)], leads))
      live |= static_cast<CharClassSet>(1 << kind);
  }
  return live;
}

void CharClassSearch::make_edges() {
  const Network& network = earley_.network();
  for (int kind = 0; kind < kNumCharClasses; ++kind) {
    const CharClassAutomaton& automaton = char_class_automaton(kind);
    for (size_t from = 0; from < automaton.next.size(); ++from) {
      std::set<std::pair<uint8_t, uint8_t>> known;  // (class, to)
      for (size_t b = 0; b < 256; ++b) {
        const uint8_t to = automaton.next[from][b];
        if (to == CharClassAutomaton::kDead) continue;
        if (!known.emplace(network.byte_class[b], to).second) continue;
        edges_[static_cast<size_t>(kind)].push_back(
            {static_cast<uint8_t>(from), static_cast<uint8_t>(b), to});
      }
    }
  }
}

}  // namespace espalier::grammar
