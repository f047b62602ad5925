// A mask in the form in which it is cached: a base that many masks share, own words, or the union
// of other masks, and the differences from these: runs of tokens that the vocabulary lists, and
// single tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "grammar/masks/token_trie.h"

namespace espalier::grammar {

// Sets or clears a token's bit.
inline void set_token(std::span<uint32_t> words, TokenId token, bool on) {
  const auto index = static_cast<uint32_t>(token);
  const uint32_t bit = 1u << (index % 32);
  uint32_t& word = words[index / 32];
  word = on ? word | bit : word & ~bit;
}

inline bool has_token(std::span<const uint32_t> words, TokenId token) {
  const auto index = static_cast<uint32_t>(token);
  return (words[index / 32] >> (index % 32) & 1) != 0;
}

// Not thread-safe, except that any number of threads may call the const functions. A base is
// borrowed: it is a mask of the vocabulary, or the words of another stored mask, and outlives this.
// So are the masks of a union.
// `words` and `scratch` hold one mask each: TokenTrie::words_per_mask() words.
class StoredMask {
 public:
  // Starts from a mask of the vocabulary. REQUIRES: nothing was added before.
  void start_from(const std::vector<uint32_t>& base) { base_ = &base; }
  // Starts from own words. REQUIRES: nothing was added before.
  void start_from(std::vector<uint32_t>&& words) { words_ = std::move(words); }
  // Starts from the unconditional tokens of a mask that outlives this. REQUIRES: nothing was added
  // before, and `other` is settled.
  void refer_to(const StoredMask& other);

  void allow(TokenId token) { changes_.push_back(static_cast<uint32_t>(token) * 2 + 1); }
  // Allows all tokens of a list that outlives this. REQUIRES: nothing was refused before.
  void allow_run(const std::vector<TokenId>& tokens) { runs_.push_back(&tokens); }
  void refuse(TokenId token) { changes_.push_back(static_cast<uint32_t>(token) * 2); }
  // Adds conditional tokens: a check reads the text within them, so they are tried whenever the
  // mask is filled, whatever the rest of it holds.
  void add_conditional(TokenId token) { conditional_.push_back(token); }
  // The same for the walk's tokens [begin, end).
  void add_conditional(const TrieWalk& tokens, uint32_t begin, uint32_t end) {
    conditional_.insert(conditional_.end(), tokens.token_ids.begin() + begin,
                        tokens.token_ids.begin() + end);
  }
  // Adds the tokens that the part allows; its conditional tokens become conditional in the whole.
  // REQUIRES: the part is settled and outlives this, and this is a union: it only ever got parts,
  // and tokens that it allows.
  void add_part(const StoredMask& part);

  // Converts a complete mask to the form in which it is kept. `exhausted`: an exhausted recogniser
  // computed at least a part of it, so it is unusable.
  void settle(const TokenTrie& trie, std::span<uint32_t> scratch, bool exhausted);

  // Writes the unconditional tokens.
  void write(std::span<uint32_t> words) const;

  // REQUIRES of the rest: the mask is settled.
  const std::vector<TokenId>& conditional() const { return conditional_; }  // sorted by bytes
  // Whether the mask is runs, which lead nowhere new, and a list of tokens, and these tokens.
  bool is_list() const { return base_ == nullptr && words_.empty() && parts_.empty(); }
  template <typename Use>
  void for_each_listed(Use use) const {  // REQUIRES: is_list()
    for (const uint32_t change : changes_) use(static_cast<TokenId>(change / 2));
  }
  bool empty() const { return empty_; }  // apart from the conditional tokens
  bool unusable() const { return unusable_; }
  size_t num_bytes() const;

 private:
  bool only_allows() const;  // whether no change refuses a token
  bool is_union_empty() const;
  // Sets the bits of the unconditional tokens and leaves all others as they are.
  void merge_into(std::span<uint32_t> words) const;

  const std::vector<uint32_t>* base_ = nullptr;
  std::vector<uint32_t> words_;
  std::vector<const StoredMask*> parts_;           // instead of a base and words
  std::vector<const std::vector<TokenId>*> runs_;  // allowed before the changes are applied
  std::vector<uint32_t> changes_;  // token * 2 + (1 to allow it), in the order of application
  std::vector<TokenId> conditional_;
  bool empty_ = true;
  bool unusable_ = false;
};

}  // namespace espalier::grammar
