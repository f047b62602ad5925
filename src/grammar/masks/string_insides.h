// Where the inside of a JSON string continues, for positions outside of lexemes (lexeme.h), such as
// those within a pattern or a declared key. A character of a string's inside is any but a quote, a
// backslash and a control character.
//
// Thread safety: none. Ownership: borrows the recogniser and the positions.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "grammar/automata/earley_positions.h"
#include "grammar/automata/held_bytes.h"

namespace espalier::grammar {

// See the head of this file. Results are cached.
class StringInsides {
 public:
  explicit StringInsides(EarleyPositions& positions)
      : positions_(positions), earley_(positions.recogniser()) {}

  // Returns the one set that all characters of a string's inside lead to, or kDead.
  SetId next(SetId set);
  // Returns whether no character of a string's inside leads on. REQUIRES: only bytes of characters
  // lead on.
  bool ends(SetId set);
  // Returns whether the inside of a string continues for ever from this node by nodes of its rule.
  bool stays(NodeId start);
  // Returns whether stays() has found this, which costs a look-up.
  bool known_to_stay(NodeId start) const;
  static constexpr uint16_t kNever = 0xffff;
  // Returns the least number of characters of a string's inside behind which a quote or a control
  // character may follow; kNever where none may. REQUIRES: stays(node).
  uint16_t characters_to_exit(NodeId node) const;
  void clear() { next_.clear(); }  // forgets what is known of sets
  size_t num_bytes() const {
    return held_bytes_of_map(next_) + held_bytes_of_map(stays_) + held_bytes_of_map(exits_);
  }

 private:
  // [node and position inside a character] whether it still belongs to the greatest set
  using Candidates = std::unordered_map<uint64_t, bool>;

  bool may_begin_all(const EarleyPosition& position) const;
  bool successors(SetId set, std::vector<SetId>& out);
  bool lead(SetId from, int low, int high, int more, std::vector<SetId>& out);
  bool collect(std::vector<uint64_t>& positions, Candidates& holds) const;
  void reduce(const std::vector<uint64_t>& positions, Candidates& holds) const;
  bool may_exit(NodeId node) const;
  void measure(const std::vector<uint64_t>& positions);

  EarleyPositions& positions_;
  EarleyRecogniser& earley_;
  std::unordered_map<SetId, SetId> next_;
  std::unordered_map<uint64_t, bool> stays_;      // by node and position inside a character
  std::unordered_map<uint64_t, uint16_t> exits_;  // the same; characters to an exit, if any
};

}  // namespace espalier::grammar
