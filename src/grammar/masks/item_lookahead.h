// Where the items of an array must differ, a check compares each item where it ends. Behind some
// texts every end would be refused: the item under way can only become one that has come before.
// The lookahead finds such texts, so that masks do not lead to them.
//
// A search follows the recogniser, its checks included, until the item under way differs from the
// earlier ones for certain. So a text is refused only when nothing behind it is allowed, whatever
// OpenItems makes of it. A search beyond kStepsMax steps finds that the text may go on, and so do
// all searches of a mask beyond kWorkMax.
//
// Thread safety: none; CompiledGrammar holds a lock. Ownership: borrows the recogniser and the
// vocabulary.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automata/earley.h"
#include "grammar/automata/held_bytes.h"
#include "grammar/masks/token_trie.h"
#include "grammar/schema/open_items.h"

namespace espalier::grammar {

// See the head of this file. `text` is what was read so far, `set` its Earley set, and `items` has
// read it.
class ItemLookahead {
 public:
  ItemLookahead(EarleyRecogniser& earley, const TokenTrie& trie);

  // Returns whether the network has checks that compare items, without which nothing is to do.
  static bool needed(const Network& network);

  // Returns whether some continuation of the text may pass the checks.
  bool leads_on(SetId set, const OpenItems& items, std::string_view text);
  // Refuses tokens of the mask behind which no continuation does. `conditional`: the tokens of the
  // set that a check decided.
  void restrict(SetId set, const OpenItems& items, std::string_view text,
                std::span<const TokenId> conditional, std::span<uint32_t> words);
  size_t num_bytes() const { return held_bytes(compares_) + held_bytes(node_compares_); }

 private:
  static constexpr size_t kStepsMax = 2000;
  // Bytes that the searches of one mask follow: some tens of milliseconds. Each costs one more for
  // so many bytes of the text that are copied, and that a check reads.
  static constexpr size_t kWorkMax = 100'000, kBytesCopied = 1024, kBytesChecked = 256;

  // A continuation of the text.
  struct Ahead {
    SetId set;
    OpenItems items;
    std::string read;  // behind the text
  };
  struct Walk;

  bool search(SetId set, const OpenItems& items, std::string_view text);
  void spend(size_t work) { work_left_ -= std::min(work, work_left_); }
  bool compares(SetId set);
  bool compares_at(NodeId node);
  bool calls_comparison(NodeId node);
  // Where a search goes on. `late` is for bytes that seldom decide: white space, and other
  // spellings of a number.
  struct Search {
    std::string_view text;
    std::deque<Ahead> soon, late;
  };
  bool found_way(const Ahead& from, Search& search);
  SetId step(SetId from, uint8_t byte, std::string_view text, std::string_view read);
  void restrict_below(Walk& walk, uint32_t row, const Ahead& from);
  bool follow(TokenId token, std::string_view text, Ahead& at);

  EarleyRecogniser& earley_;
  const TokenTrie& trie_;
  const bool only_items_;               // no check judges anything but items
  std::vector<uint8_t> compares_;       // [set] 1: compares(), 2: not, 0: not computed yet
  std::vector<uint8_t> node_compares_;  // [node] the same of compares_at()
  size_t work_left_ = 0;                // of this call
  std::string whole_;                   // scratch of step()
};

}  // namespace espalier::grammar
