// Walks of a vocabulary's trie along a machine: which tokens lead on from a place. Of a node's
// children only those are looked at whose byte may lead on, and a step within a rule makes no state
// of the machine: a walk from a place where few texts lead on costs about as much as these texts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "grammar/machine.h"
#include "grammar/token_trie.h"

namespace espalier::grammar {

// Keeps its memory from one walk to the next. Not thread-safe; no walk begins within another.
class TokenWalk {
 public:
  using Place = Machine::Place;
  explicit TokenWalk(Machine& machine) : machine_(machine) {}

  // How steps are taken: many that lead from node to node of a rule and are soon left, or those of
  // a walk that sees most of the vocabulary, to which a state for each place is a table of its
  // steps.
  enum class Steps : uint8_t { kInRules, kByStates };

  // allow(t): tokens[t] leads on. ask(begin, end): whether these do depends on what the machine
  // does not know. A node below which `skip` holds is not looked at, nor is what is below it.
  template <typename Allow, typename Ask, typename Skip>
  void run(const TrieWalk& tokens, SetId start, Steps steps, Allow allow, Ask ask, Skip skip) {
    if (start == Machine::kDead || start == Machine::kDepends) return;
    if (steps == Steps::kByStates) return scan(tokens, start, allow, ask, skip);
    places_.resize(static_cast<size_t>(tokens.depth_max) + 1);
    places_[0] = {start};
    ranges_.clear();
    choose(tokens, 0, {start});
    while (!ranges_.empty()) {
      const Range range = ranges_.back();
      ranges_.pop_back();
      for (uint32_t i = range.begin; i < range.end;) {
        const TrieWalk::Node& node = tokens.nodes[i];
        const Place to = skip(i) ? Place{} : machine_.step_along(places_[node.depth], node.byte);
        if (to.set == Machine::kDepends) ask(node.tokens_begin, behind(tokens, i));
        if (!to.leads_on()) {
          i = node.skip;
          continue;
        }
        places_[node.depth + 1] = to;
        const uint32_t tokens_end = begin_of(tokens, i + 1);
        for (uint32_t t = node.tokens_begin; t < tokens_end; ++t) allow(t);
        ++i;
        const bool choosing =
            tokens.children_begin[i + 1] - tokens.children_begin[i] > kManyChildren;
        if (!choosing) continue;
        // What is chosen is looked at first: places along the way hold until then.
        if (node.skip < range.end) ranges_.push_back({node.skip, range.end});
        choose(tokens, i, to);
        break;
      }
    }
  }

  // The same of two places at once, but where both come to the same. assign(begin, end, on):
  // whether these tokens lead on from `here`.
  template <typename Assign, typename Ask>
  void compare(const TrieWalk& tokens, const Place& here, const Place& there, Steps steps,
               Assign assign, Ask ask) {
    if (steps == Steps::kByStates)
      return scan_both(tokens, machine_.set_of(here), machine_.set_of(there), assign, ask);
    frames_.clear();
    found_.clear();
    open(tokens, 0, here, there);
    for (uint32_t node = 0; next(node);) {
      const uint8_t byte = tokens.nodes[node].byte;
      const Place a = machine_.step_unasked(frames_.back().here, byte);
      const Place b = frames_.back().there.leads_on()
                          ? machine_.step_unasked(frames_.back().there, byte)
                          : Place{};
      if (a == b && a.set != Machine::kDepends) continue;
      if (a.set == Machine::kDepends) {
        ask(begin_of(tokens, node), behind(tokens, node));
      } else if (a.set == Machine::kDead) {
        assign(begin_of(tokens, node), behind(tokens, node), false);
      } else {
        assign(begin_of(tokens, node), begin_of(tokens, node + 1), true);
        if (tokens.nodes[node].skip > node + 1)
          open(tokens, node + 1, a, b.leads_on() ? b : Place{});
      }
    }
  }

 private:
  static constexpr uint32_t kManyChildren = 16;  // of which those are chosen that may lead on

  struct Range {
    uint32_t begin, end;  // nodes: whole subtrees
  };

  // Adds the subtrees of the row's children that may lead on.
  void choose(const TrieWalk& tokens, uint32_t row, const Place& place) {
    found_.clear();
    find(tokens, row, [&](ByteMask& bytes) { machine_.add_bytes(place, bytes); });
    for (const uint32_t child : found_) ranges_.push_back({child, tokens.nodes[child].skip});
  }

  struct Frame {
    Place here, there;
    size_t found_begin;
  };

  static uint32_t begin_of(const TrieWalk& tokens, uint32_t node) {
    return tokens.nodes[node].tokens_begin;
  }
  static uint32_t behind(const TrieWalk& tokens, uint32_t node) {
    return tokens.nodes[tokens.nodes[node].skip].tokens_begin;
  }

  // One scan of the nodes in their order: a refused byte is a jump behind what is below it.
  template <typename Allow, typename Ask, typename Skip>
  void scan(const TrieWalk& tokens, SetId start, Allow allow, Ask ask, Skip skip) {
    path_.resize(static_cast<size_t>(tokens.depth_max) + 1);
    path_[0] = start;
    const auto end = static_cast<uint32_t>(tokens.nodes.size() - 1);
    for (uint32_t i = 0; i < end;) {
      const TrieWalk::Node& node = tokens.nodes[i];
      const SetId to =
          skip(i) ? Machine::kDead : machine_.step_unasked(path_[node.depth], node.byte);
      if (to == Machine::kDepends) ask(node.tokens_begin, behind(tokens, i));
      if (to == Machine::kDead || to == Machine::kDepends) {
        i = node.skip;
        continue;
      }
      path_[node.depth + 1] = to;
      const uint32_t tokens_end = begin_of(tokens, i + 1);
      for (uint32_t t = node.tokens_begin; t < tokens_end; ++t) allow(t);
      ++i;
    }
  }

  template <typename Assign, typename Ask>
  void scan_both(const TrieWalk& tokens, SetId here, SetId there, Assign assign, Ask ask) {
    path_.resize(static_cast<size_t>(tokens.depth_max) + 1);
    other_path_.resize(path_.size());
    path_[0] = here;
    other_path_[0] = there;
    const auto end = static_cast<uint32_t>(tokens.nodes.size() - 1);
    for (uint32_t i = 0; i < end;) {
      const TrieWalk::Node& node = tokens.nodes[i];
      const SetId a = machine_.step_unasked(path_[node.depth], node.byte);
      const SetId b = machine_.step_unasked(other_path_[node.depth], node.byte);
      if (a == Machine::kDepends) {
        ask(node.tokens_begin, behind(tokens, i));
      } else if (a == Machine::kDead && a != b) {
        assign(node.tokens_begin, behind(tokens, i), false);
      } else if (a != b) {
        path_[node.depth + 1] = a;
        other_path_[node.depth + 1] = b == Machine::kDepends ? Machine::kDead : b;
        assign(node.tokens_begin, begin_of(tokens, i + 1), true);
        ++i;
        continue;
      }
      i = node.skip;
    }
  }

  // The next node to look at; its parent's frame is the last one then.
  bool next(uint32_t& node) {
    while (!frames_.empty() && found_.size() == frames_.back().found_begin) frames_.pop_back();
    if (frames_.empty()) return false;
    node = found_.back();
    found_.pop_back();
    return true;
  }

  void open(const TrieWalk& tokens, uint32_t row, const Place& here, const Place& there) {
    frames_.push_back({here, there, found_.size()});
    find(tokens, row, [&](ByteMask& bytes) { machine_.add_differing_bytes(here, there, bytes); });
  }

  // Adds to found_ the children of the row with one of the bytes.
  template <typename AddBytes>
  void find(const TrieWalk& tokens, uint32_t row, AddBytes add_bytes) {
    constexpr uint32_t kFew = 4;  // children that are sooner tried than chosen
    const uint32_t begin = tokens.children_begin[row], end = tokens.children_begin[row + 1];
    if (end - begin <= kFew) {
      found_.insert(found_.end(), tokens.children.begin() + begin, tokens.children.begin() + end);
      return;
    }
    ByteMask bytes;
    add_bytes(bytes);
    const auto first = tokens.child_bytes.begin() + begin, last = tokens.child_bytes.begin() + end;
    if (static_cast<uint32_t>(bytes.count()) * 4 > end - begin) {
      for (uint32_t c = begin; c < end; ++c) {
        if (bytes.has(tokens.child_bytes[c])) found_.push_back(tokens.children[c]);
      }
      return;
    }
    for (size_t w = 0; w < bytes.words.size(); ++w) {
      for (uint64_t word = bytes.words[w]; word != 0; word &= word - 1) {
        const auto byte =
            static_cast<uint8_t>(64 * w + static_cast<size_t>(std::countr_zero(word)));
        const auto child = std::lower_bound(first, last, byte);
        if (child != last && *child == byte)
          found_.push_back(tokens.children[begin + static_cast<size_t>(child - first)]);
      }
    }
  }

  Machine& machine_;
  std::vector<SetId> path_, other_path_;  // [depth] of a scan
  std::vector<Place> places_;             // [depth] of a walk
  std::vector<Range> ranges_;             // what is left of it, the next one last
  std::vector<Frame> frames_;             // from the root down
  std::vector<uint32_t> found_;           // children that are left to be looked at, of all frames
};

}  // namespace espalier::grammar
