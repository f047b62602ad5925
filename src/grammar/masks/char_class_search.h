// Where the characters of each class (char_classes.h) lead from a set, and which classes lead on
// however often their characters come, as the classes of a pattern do.
//
// Thread safety: none. Ownership: borrows the recogniser.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "grammar/automata/byte_mask.h"
#include "grammar/automata/earley.h"
#include "grammar/automata/held_bytes.h"
#include "grammar/masks/char_classes.h"

namespace espalier::grammar {

// See the head of this file.
class CharClassSearch {
 public:
  // `longest`: the number of bytes of the longest token.
  CharClassSearch(EarleyRecogniser& earley, size_t longest) : earley_(earley), longest_(longest) {}

  static constexpr SetId kMixed = EarleySets::kNeedsText;
  // Returns the one set that all characters of the kind lead to, kDead where none of them leads on,
  // and kMixed where neither holds or a check decides. Sets are
  // the representatives of EarleyRecogniser::canonical().
  SetId target(SetId set, int kind);
  // Returns the classes whose characters lead on however often they come; few sets are tried.
  CharClassSet absorbed(SetId set);
  // Returns the classes of which a character may follow, at once or behind other characters of the
  // classes; all classes where that is unknown.
  CharClassSet live(SetId set);
  void clear();  // forgets what is known of sets
  size_t num_bytes() const {
    return held_bytes(rounds_) + held_bytes(found_) + held_bytes(marks_) + held_bytes(targets_) +
           held_bytes(leads_) + held_bytes(rows_) + seen_.num_bytes() + held_bytes(nodes_);
  }

 private:
  // The bytes of each character class, one of those that the grammar does not distinguish.
  struct Edge {
    uint8_t from, byte, to;
  };
  // Where the characters of a class lead from a set.
  struct Lead {
    bool made = false;            // else nothing is known yet
    bool all = true;              // every character leads on
    uint32_t begin = 0, end = 0;  // the sets behind the character: a range of targets_
  };
  // Searches and walks from neighbouring sets of a pattern meet the same sets, so this is kept.
  struct Leads {
    std::array<SetId, kNumCharKinds> of_kinds;  // see target(); valid when the class is made
    std::array<Lead, kNumCharClasses> of_classes;
  };
  // Sets in leads_ beyond which it is dropped before a search: about 5 MiB.
  static constexpr size_t kLeadsMax = size_t{1} << 14;

  static constexpr size_t kSetsMax = 300;  // of one search
  static constexpr int kNumLetterClasses = 2;
  static constexpr CharClassSet kMarkClasses =
      0x3f8;  // other ASCII classes than letters and digits

  void make_edges();
  uint32_t row_of(SetId set);
  const Lead& lead(SetId set, int char_class);
  void list_edges(SetId set);
  SetId follow_kind(int kind, SetId set, Lead& lead);
  void follow_ascii(int kind, SetId set);
  void follow(int kind, uint8_t position, SetId at);
  bool step(SetId from, uint8_t byte, SetId& to);
  void add_target(SetId to);
  void find(const Lead& lead, int kind, size_t from);
  bool search(SetId set, CharClassSet kinds, CharClassSet& failed);

  EarleyRecogniser& earley_;
  const size_t longest_;
  std::array<std::vector<Edge>, kNumCharClasses> edges_;  // made on first use
  std::vector<Leads> leads_;
  std::vector<uint32_t> rows_;  // [set] 1 + index into leads_, or 0
  std::vector<SetId> targets_;  // of leads_: sets between characters
  // Of the lead that is made.
  SetId listed_ = EarleySets::kDead;  // the set whose edges cuts_ and bytes_ list
  ByteMask cuts_, bytes_;  // where a range of bytes begins or has ended; bytes with an edge
  bool all_ = false, any_ = false;  // every character of the kind leads on, or one may
  size_t kind_begin_ = 0;           // of the kind's sets in targets_
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
