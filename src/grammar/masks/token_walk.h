// Walks of a vocabulary's trie along the recogniser: which tokens lead on from a position. Only
// children whose byte may lead on are visited, and a step within a rule interns no set, so a walk
// from a position where few texts lead on costs about as much as these texts.
#pragma once

#include <algorithm>
#include <bitset>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/automata/earley_positions.h"
#include "grammar/masks/token_trie.h"

namespace espalier::grammar {

// How the steps of a walk are taken. kInRules: along nodes of a rule that are soon left. kByStates:
// with an Earley set for each position, whose cached transitions pay off for a walk that visits
// most of the vocabulary.
enum class WalkSteps : uint8_t { kInRules, kByStates };

// The tokens of a node begin at tokens_begin_of() and those of its subtree end at tokens_end_of().
inline uint32_t tokens_begin_of(const TrieWalk& tokens, uint32_t node) {
  return tokens.nodes[node].tokens_begin;
}
inline uint32_t tokens_end_of(const TrieWalk& tokens, uint32_t node) {
  return tokens.nodes[tokens.nodes[node].skip].tokens_begin;
}

// Appends to `found` the children of the row whose byte is in the set that `add_bytes` fills; all
// children where there are few.
template <typename AddBytes>
void find_children(const TrieWalk& tokens, uint32_t row, AddBytes add_bytes,
                   std::vector<uint32_t>& found) {
  constexpr uint32_t kFew = 4;  // fewer children are tried without a byte set
  const uint32_t begin = tokens.children_begin[row], end = tokens.children_begin[row + 1];
  if (end - begin <= kFew) {
    found.insert(found.end(), tokens.children.begin() + begin, tokens.children.begin() + end);
    return;
  }
  ByteMask bytes;
  add_bytes(bytes);
  const auto first = tokens.child_bytes.begin() + begin, last = tokens.child_bytes.begin() + end;
  if (static_cast<uint32_t>(bytes.count()) * 4 > end - begin) {
    for (uint32_t c = begin; c < end; ++c) {
      if (bytes.has(tokens.child_bytes[c])) found.push_back(tokens.children[c]);
    }
    return;
  }
  for (size_t w = 0; w < bytes.words.size(); ++w) {
    for (uint64_t word = bytes.words[w]; word != 0; word &= word - 1) {
      const auto byte = static_cast<uint8_t>(64 * w + static_cast<size_t>(std::countr_zero(word)));
      const auto child = std::lower_bound(first, last, byte);
      if (child != last && *child == byte)
        found.push_back(tokens.children[begin + static_cast<size_t>(child - first)]);
    }
  }
}

// A walk from one position. Reuses its buffers between walks. Not thread-safe; walks do not nest.
// Borrows the positions.
class TokenWalk {
 public:
  explicit TokenWalk(EarleyPositions& positions)
      : steps_(positions), earley_(positions.recogniser()) {}

  // Calls allow(t) for each tokens[t] that leads on, allow_run(run) for the whole tokens of a run
  // that do, and ask(begin, end) for tokens whose verdict depends on the text. Steps are taken
  // along nodes of a rule that are soon left. `strings`: the runs of these tokens, or null.
  template <typename Allow, typename AllowRun, typename Ask>
  void run(const TrieWalk& tokens, SetId start, Allow allow, AllowRun allow_run, Ask ask,
           const StringRuns* strings = nullptr) {
    rests_.clear();
    strings_ = strings;
    walk(tokens, {start}, allow, allow_run, ask);
    strings_ = nullptr;
    for (size_t i = 0; i < rests_.size(); ++i) walk_rest(Rest(rests_[i]), allow, allow_run, ask);
  }

  // The same with an Earley set for each position, whose cached transitions pay off for a walk that
  // visits most of the vocabulary. The nodes are scanned in order; a rejected byte jumps behind its
  // subtree. A node for which `skip` holds is not visited, nor is its subtree.
  template <typename Allow, typename Ask, typename Skip>
  void scan(const TrieWalk& tokens, SetId start, Allow allow, Ask ask, Skip skip) {
    if (!EarleySets::leads_on(start)) return;
    path_.resize(static_cast<size_t>(tokens.depth_max) + 1);
    path_[0] = start;
    const auto end = static_cast<uint32_t>(tokens.nodes.size() - 1);
    for (uint32_t i = 0; i < end;) {
      const TrieWalk::Node& node = tokens.nodes[i];
      const SetId to = skip(i) ? EarleyRecogniser::kDead
                               : earley_.step_without_text(path_[node.depth], node.byte);
      if (to == EarleyRecogniser::kNeedsText) ask(node.tokens_begin, tokens_end_of(tokens, i));
      if (!EarleySets::leads_on(to)) {
        i = node.skip;
        continue;
      }
      path_[node.depth + 1] = to;
      const uint32_t tokens_end = tokens_begin_of(tokens, i + 1);
      for (uint32_t t = node.tokens_begin; t < tokens_end; ++t) allow(t);
      ++i;
    }
  }

 private:
  // A node with more children visits only those that may lead on.
  static constexpr uint32_t kManyChildren = 16;

  struct Range {
    uint32_t begin, end;  // nodes: whole subtrees
  };

  // What is left of a run, from the position behind its bytes. Behind a string, tokens with fewer
  // characters in it than `least` do not lead on.
  struct Rest {
    const TokenRun* run;
    EarleyPosition position;
    const StringRun* string = nullptr;
    uint32_t least = 0;
  };

  template <typename Allow, typename AllowRun, typename Ask>
  void walk_rest(const Rest& rest, Allow allow, AllowRun allow_run, Ask ask) {
    const TrieWalk& tokens = rest.run->rests;
    const auto fits = [&](uint32_t t) {
      return rest.string == nullptr || rest.string->characters[t] >= rest.least;
    };
    const auto allow_one = [&](uint32_t t) {
      if (fits(t)) allow(rest.run->rests_of[t]);
    };
    const auto ask_some = [&](uint32_t begin, uint32_t end) {
      for (uint32_t t = begin; t < end; ++t) {
        if (fits(t)) ask(rest.run->rests_of[t], rest.run->rests_of[t] + 1);
      }
    };
    if (rest.position.set == EarleyRecogniser::kNeedsText)
      return ask_some(0, static_cast<uint32_t>(tokens.token_ids.size()));
    for (uint32_t t = 0; t < tokens.nodes[0].tokens_begin; ++t) allow_one(t);
    walk(tokens, rest.position, allow_one, allow_run, ask_some);
  }

  template <typename Allow, typename AllowRun, typename Ask>
  void walk(const TrieWalk& tokens, const EarleyPosition& start, Allow allow, AllowRun allow_run,
            Ask ask) {
    if (!start.leads_on()) return;
    positions_.resize(static_cast<size_t>(tokens.depth_max) + 1);
    positions_[0] = start;
    ranges_.clear();
    choose(tokens, 0, start, take_runs(tokens, 0, start, allow_run));
    while (!ranges_.empty()) {
      const Range range = ranges_.back();
      ranges_.pop_back();
      for (uint32_t i = range.begin; i < range.end;) {
        const TrieWalk::Node& node = tokens.nodes[i];
        const EarleyPosition to = steps_.step_along(positions_[node.depth], node.byte);
        if (to.set == EarleyRecogniser::kNeedsText)
          ask(node.tokens_begin, tokens_end_of(tokens, i));
        if (!to.leads_on()) {
          i = node.skip;
          continue;
        }
        positions_[node.depth + 1] = to;
        const uint32_t tokens_end = tokens_begin_of(tokens, i + 1);
        for (uint32_t t = node.tokens_begin; t < tokens_end; ++t) allow(t);
        ++i;
        if (take_string(i, to, allow_run)) {
          i = node.skip;
          continue;
        }
        const RunSet taken = take_runs(tokens, i, to, allow_run);
        const bool choosing =
            tokens.children_begin[i + 1] - tokens.children_begin[i] > kManyChildren;
        if (!choosing && taken.none()) continue;
        // The chosen children are visited first: positions along the path stay valid until then.
        if (node.skip < range.end) ranges_.push_back({node.skip, range.end});
        choose(tokens, i, to, taken);
        break;
      }
    }
  }

  using RunSet = std::bitset<kNumRunKinds>;

  // Allows the runs below the row whose bytes leave the position unchanged. Their rests are walked
  // later.
  template <typename AllowRun>
  RunSet take_runs(const TrieWalk& tokens, uint32_t row, const EarleyPosition& position,
                   AllowRun allow_run) {
    RunSet taken;
    for (const RunKind kind : {RunKind::kSpace, RunKind::kDigits}) {
      const TokenRun* const run = tokens.run_at(kind, row);
      if (run == nullptr || !repeats(position, kind)) continue;
      taken.set(static_cast<size_t>(kind));
      allow_run(*run);
      if (!run->rests.token_ids.empty()) rests_.push_back({run, position});
    }
    return taken;
  }

  // Allows the tokens below the row that stay inside a string, where the position is inside one
  // that may go on for as long as tokens do. What ends the string is walked later.
  template <typename AllowRun>
  bool take_string(uint32_t row, const EarleyPosition& position, AllowRun allow_run) {
    if (strings_ == nullptr || !strings_->has(row) || position.set >= EarleyPosition::kInRule)
      return false;
    const EarleyRecogniser::Inside inside = earley_.inside(position.set);
    if (inside.tag == 0) return false;
    const LexemeTag tag = to_tag(inside.tag);
    if (tag.state != lexeme_automaton(tag.lexeme).inside) return false;
    const StringRun& string = strings_->at(row, tag.lexeme);
    if (inside.most < string.characters_max) return false;
    allow_run(string.run);
    if (!string.run.rests.token_ids.empty())
      rests_.push_back({&string.run, {earley_.after_lexeme(position.set)}, &string, inside.least});
    return true;
  }

  bool repeats(const EarleyPosition& position, RunKind kind) {
    return std::ranges::all_of(bytes_of(kind), [&](char byte) {
      return steps_.step_along(position, static_cast<uint8_t>(byte)) == position;
    });
  }

  // Adds the subtrees of the row's children that may lead on, except those of the runs `taken`.
  void choose(const TrieWalk& tokens, uint32_t row, const EarleyPosition& position, RunSet taken) {
    found_.clear();
    find_children(
        tokens, row, [&](ByteMask& bytes) { steps_.add_bytes(position, bytes); }, found_);
    for (const uint32_t child : found_) {
      const auto byte = static_cast<char>(tokens.nodes[child].byte);
      const auto in_run = [&](RunKind kind) {
        return taken[static_cast<size_t>(kind)] &&
               bytes_of(kind).find(byte) != std::string_view::npos;
      };
      if (taken.any() && (in_run(RunKind::kSpace) || in_run(RunKind::kDigits))) continue;
      ranges_.push_back({child, tokens.nodes[child].skip});
    }
  }

  EarleyPositions& steps_;
  EarleyRecogniser& earley_;
  std::vector<SetId> path_;                // [depth] of a scan
  std::vector<EarleyPosition> positions_;  // [depth] of a walk
  std::vector<Range> ranges_;              // what is left of the walk, next one last
  std::vector<uint32_t> found_;            // children of one node
  std::vector<Rest> rests_;                // of runs, still to be walked
  const StringRuns* strings_ = nullptr;    // of the tokens that are walked
};

// A walk from two positions at once, which leaves out what both have in common. Reuses its buffers
// between walks. Not thread-safe; walks do not nest. Borrows the positions.
class TokenComparison {
 public:
  explicit TokenComparison(EarleyPositions& positions)
      : steps_(positions), earley_(positions.recogniser()) {}

  // Walks everywhere except where both reach the same position. assign(begin, end, on) reports
  // whether these tokens lead on from `here`; ask(begin, end) reports tokens whose verdict depends
  // on the text.
  template <typename Assign, typename Ask>
  void run(const TrieWalk& tokens, const EarleyPosition& here, const EarleyPosition& there,
           WalkSteps steps, Assign assign, Ask ask) {
    if (steps == WalkSteps::kByStates)
      return scan_both(tokens, steps_.set_of(here), steps_.set_of(there), assign, ask);
    frames_.clear();
    found_.clear();
    open(tokens, 0, here, there);
    for (uint32_t node = 0; next(node);) {
      const uint8_t byte = tokens.nodes[node].byte;
      const EarleyPosition a = steps_.step(frames_.back().here, byte);
      const EarleyPosition b = frames_.back().there.leads_on()
                                   ? steps_.step(frames_.back().there, byte)
                                   : EarleyPosition{};
      if (a == b && a.set != EarleyRecogniser::kNeedsText) continue;
      if (a.set == EarleyRecogniser::kNeedsText) {
        ask(tokens_begin_of(tokens, node), tokens_end_of(tokens, node));
      } else if (a.set == EarleyRecogniser::kDead) {
        assign(tokens_begin_of(tokens, node), tokens_end_of(tokens, node), false);
      } else {
        assign(tokens_begin_of(tokens, node), tokens_begin_of(tokens, node + 1), true);
        if (tokens.nodes[node].skip > node + 1)
          open(tokens, node + 1, a, b.leads_on() ? b : EarleyPosition{});
      }
    }
  }

 private:
  struct Frame {
    EarleyPosition here, there;
    size_t found_begin;
  };

  template <typename Assign, typename Ask>
  void scan_both(const TrieWalk& tokens, SetId here, SetId there, Assign assign, Ask ask) {
    path_.resize(static_cast<size_t>(tokens.depth_max) + 1);
    other_path_.resize(path_.size());
    path_[0] = here;
    other_path_[0] = there;
    const auto end = static_cast<uint32_t>(tokens.nodes.size() - 1);
    for (uint32_t i = 0; i < end;) {
      const TrieWalk::Node& node = tokens.nodes[i];
      const SetId a = earley_.step_without_text(path_[node.depth], node.byte);
      const SetId b = earley_.step_without_text(other_path_[node.depth], node.byte);
      if (a == EarleyRecogniser::kNeedsText) {
        ask(node.tokens_begin, tokens_end_of(tokens, i));
      } else if (a == EarleyRecogniser::kDead && a != b) {
        assign(node.tokens_begin, tokens_end_of(tokens, i), false);
      } else if (a != b) {
        path_[node.depth + 1] = a;
        other_path_[node.depth + 1] =
            b == EarleyRecogniser::kNeedsText ? EarleyRecogniser::kDead : b;
        assign(node.tokens_begin, tokens_begin_of(tokens, i + 1), true);
        ++i;
        continue;
      }
      i = node.skip;
    }
  }

  // Takes the next node to visit; the frame of its parent is then the last one.
  bool next(uint32_t& node) {
    while (!frames_.empty() && found_.size() == frames_.back().found_begin) frames_.pop_back();
    if (frames_.empty()) return false;
    node = found_.back();
    found_.pop_back();
    return true;
  }

  void open(const TrieWalk& tokens, uint32_t row, const EarleyPosition& here,
            const EarleyPosition& there) {
    frames_.push_back({here, there, found_.size()});
    find_children(
        tokens, row, [&](ByteMask& bytes) { steps_.add_differing_bytes(here, there, bytes); },
        found_);
  }

  EarleyPositions& steps_;
  EarleyRecogniser& earley_;
  std::vector<SetId> path_, other_path_;  // [depth] of a scan
  std::vector<Frame> frames_;             // from the root down
  std::vector<uint32_t> found_;           // children still to visit, of all frames
};

}  // namespace espalier::grammar
