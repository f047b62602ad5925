// Which character classes (char_classes.h) lead on from a set however often their characters come,
// as the classes of a pattern do.
//
// Thread safety: none. Ownership: borrows the recogniser.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/automata/earley.h"
#include "grammar/automata/held_bytes.h"
#include "grammar/masks/char_classes.h"

namespace espalier::grammar {

// See the head of this file.
class CharClassSearch {
 public:
  // `longest`: the number of bytes of the longest token.
  CharClassSearch(EarleyRecogniser& earley, size_t longest) : earley_(earley), longest_(longest) {}

  static constexpr size_t kNoEnd = ~size_t{0};
  struct Absorbed {
    CharClassSet kinds = 0;      // 0: none
    size_t characters = kNoEnd;  // after that many none of them may follow
  };
  // Returns the classes whose characters lead on however often they come, or, with `characters`
  // set, up to that many characters; these are ASCII classes alone.
  Absorbed absorbed(SetId set);
  // Returns the classes of which a character may follow, at once or behind other characters of the
  // classes; all classes where that is unknown.
  CharClassSet live(SetId set);
  size_t num_bytes() const {
    return held_bytes(rounds_) + held_bytes(found_) + held_bytes(marks_) + held_bytes(targets_) +
           led_.size() * kLedNodeBytes + seen_.num_bytes() + held_bytes(nodes_);
  }

 private:
  // The bytes of each character class, one of those that the grammar does not distinguish.
  struct Edge {
    uint8_t from, byte, to;
  };
  // Where one character of a class leads from a set. Searches from neighbouring sets of a pattern
  // meet the same sets, so this is kept.
  struct Led {
    bool all = false;             // every character leads on
    bool any = false;             // some byte leads on
    uint32_t begin = 0, end = 0;  // the sets behind the character: a range of targets_
  };
  static constexpr size_t kLedNodeBytes = 48;  // of a hash map's node and bucket
  // Entries of led_ and targets_ beyond which both are dropped before a search: about 3 MiB.
  static constexpr size_t kLedMax = size_t{1} << 16;

  static constexpr size_t kSetsMax = 300;  // of one search
  static constexpr int kNumLetterClasses = 2;
  static constexpr CharClassSet kMarkClasses =
      0x3f8;  // other ASCII classes than letters and digits

  void make_edges();
  const Led& lead(int kind, SetId from);
  void find(const Led& led, int kind, size_t from);
  Absorbed search(SetId set, CharClassSet kinds, CharClassSet& failed);
  bool follow(int kind, uint8_t position, SetId at, bool& any);

  EarleyRecogniser& earley_;
  const size_t longest_;
  std::array<std::vector<Edge>, kNumCharClasses> edges_;  // made on first use
  std::unordered_map<uint64_t, Led> led_;                 // by set and class
  std::vector<SetId> targets_;                            // of led_: sets between characters
  size_t targets_begin_ = 0;                              // of the list under way
  // Scratch of one search.
  std::vector<std::pair<uint8_t, SetId>> within_;  // positions inside a character, and sets
  std::vector<SetId> found_;                       // sets between characters, each once
  std::vector<CharClassSet> marks_;                // [found_] the last mark on the way there, or 0
  std::vector<uint32_t> rounds_;                   // [set] the last search that found it
  uint32_t round_ = 0;
  SeenItems seen_;             // nodes_, without return states
  std::vector<NodeId> nodes_;  // that characters reach
};

}  // namespace espalier::grammar
