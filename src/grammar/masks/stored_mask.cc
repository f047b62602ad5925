#include "grammar/masks/stored_mask.h"

#include <algorithm>
#include <bitset>
#include <utility>

#include "grammar/automata/held_bytes.h"

namespace espalier::grammar {
namespace {

// A mask with more changes than this is stored as words.
constexpr size_t kChangesMax = 512;

}  // namespace

void StoredMask::refer_to(const StoredMask& other) {
  base_ = other.words_.empty() ? other.base_ : &other.words_;
  parts_ = other.parts_;
  runs_ = other.runs_;
  changes_ = other.changes_;
}

bool StoredMask::only_allows() const {
  return std::ranges::all_of(changes_, [](uint32_t change) { return change % 2 == 1; });
}

void StoredMask::add_part(const StoredMask& part) {
  conditional_.insert(conditional_.end(), part.conditional_.begin(), part.conditional_.end());
  if (part.base_ != nullptr || !part.words_.empty() || !part.parts_.empty() ||
      !part.only_allows()) {
    parts_.push_back(&part);
    return;
  }
  runs_.insert(runs_.end(), part.runs_.begin(), part.runs_.end());
  changes_.insert(changes_.end(), part.changes_.begin(), part.changes_.end());
}

void StoredMask::write(std::span<uint32_t> words) const {
  if (base_ != nullptr) {
    std::ranges::copy(*base_, words.begin());
  } else if (!words_.empty()) {
    std::ranges::copy(words_, words.begin());
  } else if (!parts_.empty()) {
    parts_[0]->write(words);
    for (size_t i = 1; i < parts_.size(); ++i) parts_[i]->merge_into(words);
  } else {
    std::ranges::fill(words, 0);
  }
  for (const std::vector<TokenId>* run : runs_) {
    for (const TokenId token : *run) set_token(words, token, true);
  }
  for (const uint32_t change : changes_)
    set_token(words, static_cast<TokenId>(change / 2), change % 2 == 1);
}

void StoredMask::merge_into(std::span<uint32_t> words) const {
  // A token that this mask refuses stays set where it was set before.
  std::bitset<kChangesMax> before;
  for (size_t i = 0; i < changes_.size(); ++i)
    before[i] = changes_[i] % 2 == 0 && has_token(words, static_cast<TokenId>(changes_[i] / 2));
  const std::vector<uint32_t>& base = base_ != nullptr ? *base_ : words_;
  for (size_t i = 0; i < base.size(); ++i) words[i] |= base[i];
  for (const StoredMask* part : parts_) part->merge_into(words);
  for (const std::vector<TokenId>* run : runs_) {
    for (const TokenId token : *run) set_token(words, token, true);
  }
  for (size_t i = 0; i < changes_.size(); ++i)
    set_token(words, static_cast<TokenId>(changes_[i] / 2), changes_[i] % 2 == 1 || before[i]);
}

bool StoredMask::is_union_empty() const {
  return changes_.empty() && runs_.empty() &&
         std::ranges::all_of(parts_, [](const StoredMask* part) { return part->empty_; });
}

void StoredMask::settle(const TokenTrie& trie, std::span<uint32_t> scratch, bool exhausted) {
  // A union of more masks would cost more to write than words do.
  constexpr size_t kPartsMax = 2;
  const bool many = changes_.size() > kChangesMax || parts_.size() > kPartsMax;
  const bool some = !changes_.empty() || !runs_.empty();
  const bool known = only_allows() && (some || !parts_.empty());
  if (many || !known) write(scratch);
  empty_ = known ? is_union_empty()
                 : std::ranges::none_of(scratch, [](uint32_t word) { return word != 0; });
  if (many) {
    base_ = nullptr;
    words_.assign(scratch.begin(), scratch.end());
    parts_ = {};
    runs_ = {};
    changes_ = {};
  }
  parts_.shrink_to_fit();
  runs_.shrink_to_fit();
  changes_.shrink_to_fit();
  const auto by_bytes = [&](TokenId id) { return trie.rank(id); };
  if (!std::ranges::is_sorted(conditional_, {}, by_bytes))
    std::ranges::sort(conditional_, {}, by_bytes);
  unusable_ = exhausted;
}

size_t StoredMask::num_bytes() const {
  return sizeof(StoredMask) + held_bytes(parts_) + held_bytes(runs_) + held_bytes(words_) +
         held_bytes(changes_) + held_bytes(conditional_);
}

}  // namespace espalier::grammar
