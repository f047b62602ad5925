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

// Returns whether a byte leads to a set, and which.
bool CharClassSearch::step(SetId from, uint8_t byte, SetId& to) {
  to = earley_.step_without_text(from, byte);
  if (to != EarleySets::kDead) any_ = true;
  if (EarleySets::leads_on(to)) return true;
  all_ = false;
  return false;
}

// Adds a set behind a character to those of the kind under way, once.
void CharClassSearch::add_target(SetId to) {
  const SetId next = earley_.canonical(to);
  const auto begin = targets_.begin() + static_cast<std::ptrdiff_t>(kind_begin_);
  if (std::find(begin, targets_.end(), next) == targets_.end()) targets_.push_back(next);
}

// Follows the characters of one byte. Bytes between two cuts lead to the same set, so one of them
// is tried.
void CharClassSearch::follow_ascii(int kind, SetId set) {
  int tried = -1;  // the byte before the current one, if it was tried or is like one that was
  for (const uint8_t byte : ascii_of_kind(kind)) {
    const bool same = tried + 1 == byte && !cuts_.has(byte);
    tried = byte;
    if (same) continue;
    SetId to;
    if (!bytes_.has(byte)) {
      all_ = false;
    } else if (step(set, byte, to)) {
      add_target(to);
    }
  }
}

// Follows the rest of a character beyond ASCII from a position inside it.
void CharClassSearch::follow(int kind, uint8_t position, SetId at) {
  SetId last = EarleySets::kDead;
  for (const Edge& edge : edges_[static_cast<size_t>(char_class_of_kind(kind))]) {
    if (edge.from != position) continue;
    SetId to;
    if (!step(at, edge.byte, to)) continue;
    if (edge.to != CharClassAutomaton::kWhole) {
      if (std::ranges::find(within_, std::pair(edge.to, to)) != within_.end()) continue;
      within_.emplace_back(edge.to, to);
      follow(kind, edge.to, to);
    } else if (to != last) {
      last = to;
      add_target(to);
    }
  }
}

// Follows the characters of a kind and adds what they lead to to the lead of its class. Returns
// the target of the kind.
SetId CharClassSearch::follow_kind(int kind, SetId set, Lead& lead) {
  all_ = true;
  any_ = false;
  kind_begin_ = targets_.size();
  if (!ascii_of_kind(kind).empty()) {
    follow_ascii(kind, set);
  } else if ((bytes_.words[2] | bytes_.words[3]) == 0) {
    all_ = false;
  } else {
    within_.clear();
    follow(kind, CharClassAutomaton::kStart, set);
  }
  lead.all &= all_;
  const size_t count = targets_.size() - kind_begin_;
  const SetId one = !any_ ? EarleySets::kDead : all_ && count == 1 ? targets_.back() : kMixed;
  // The class has each set once.
  const auto begin = targets_.begin() + lead.begin;
  const auto end = targets_.begin() + static_cast<std::ptrdiff_t>(kind_begin_);
  const auto known = [&](SetId to) { return std::find(begin, end, to) != end; };
  targets_.erase(std::remove_if(end, targets_.end(), known), targets_.end());
  return one;
}

// Returns the index of the set in leads_.
uint32_t CharClassSearch::row_of(SetId set) {
  if (rows_.size() <= set) rows_.resize(earley_.num_sets(), 0);
  if (rows_[set] == 0) {
    leads_.emplace_back();
    rows_[set] = static_cast<uint32_t>(leads_.size());
  }
  return rows_[set] - 1;
}

void CharClassSearch::list_edges(SetId set) {
  if (std::exchange(listed_, set) == set) return;
  bytes_ = cuts_ = {};
  for (const EarleyItem& item : earley_.sets().scanning(set)) {
    for (const Network::ByteEdge& edge : earley_.network().bytes_of(item.node)) {
      bytes_.add(edge.low, edge.high);
      cuts_.add(edge.low, edge.low);
      if (edge.high < 0xff) cuts_.add(edge.high + 1, edge.high + 1);
    }
  }
}

const CharClassSearch::Lead& CharClassSearch::lead(SetId set, int char_class) {
  const uint32_t row = row_of(set);
  const Lead& known = leads_[row].of_classes[static_cast<size_t>(char_class)];
  if (known.made) return known;
  if (edges_[0].empty()) make_edges();
  list_edges(set);
  Lead made{.made = true, .begin = static_cast<uint32_t>(targets_.size())};
  for (int kind = 0; kind < kNumCharKinds; ++kind) {
    if (char_class_of_kind(kind) == char_class)
      leads_[row].of_kinds[static_cast<size_t>(kind)] = follow_kind(kind, set, made);
  }
  made.end = static_cast<uint32_t>(targets_.size());
  return leads_[row].of_classes[static_cast<size_t>(char_class)] = made;
}

SetId CharClassSearch::target(SetId set, int kind) {
  lead(set, char_class_of_kind(kind));
  return leads_[rows_[set] - 1].of_kinds[static_cast<size_t>(kind)];
}

// Adds the sets that leads_ names to found_, each once in a search. `from` is the index in found_
// of the set from which the class led to them.
void CharClassSearch::find(const Lead& lead, int kind, size_t from) {
  for (uint32_t i = lead.begin; i < lead.end; ++i) {
    const SetId next = targets_[i];
    if (rounds_.size() <= next) rounds_.resize(earley_.num_sets() + next, 0);
    if (std::exchange(rounds_[next], round_) == round_) continue;
    found_.push_back(next);
    const auto one = static_cast<CharClassSet>(1 << kind);
    marks_.push_back((one & kMarkClasses) != 0 ? one : marks_[from]);
  }
}

// Searches with the given classes; returns false beyond a bound. Those that do not lead on
// everywhere go to `failed`, or, where a mark led to the set at which letters fail (the slash of a
// path, behind which only a number may stand), that mark, since the letters make up more tokens.
bool CharClassSearch::search(SetId set, CharClassSet kinds, CharClassSet& failed) {
  ++round_;
  found_ = {set};
  marks_ = {0};
  size_t begin = 0;
  for (size_t level = 0; begin < found_.size() && level <= longest_; ++level) {
    CharClassSet marks = 0;
    for (const size_t end = found_.size(); begin < end; ++begin) {
      for (int kind = 0; kind < kNumCharClasses; ++kind) {
        if (!(kinds >> kind & 1)) continue;
        const Lead here = lead(found_[begin], kind);
        if (!here.all) {
          failed |= static_cast<CharClassSet>(1 << kind);
          if (kind < kNumLetterClasses) marks |= marks_[begin];
        }
        find(here, kind, begin);
      }
    }
    if (found_.size() > kSetsMax) return false;
    if (failed == 0) continue;
    if (marks != 0) failed = marks;
    break;
  }
  return true;
}

void CharClassSearch::clear() {
  leads_.clear();
  targets_.clear();
  std::ranges::fill(rows_, 0);
  listed_ = EarleySets::kDead;
}

CharClassSet CharClassSearch::absorbed(SetId set) {
  if (leads_.size() > kLeadsMax) clear();
  for (CharClassSet kinds = kAllCharClasses; kinds != 0;) {
    CharClassSet failed = 0;
    if (!search(set, kinds, failed)) return 0;
    if (failed == 0) return kinds;
    kinds &= static_cast<CharClassSet>(~failed);
  }
  return 0;
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
