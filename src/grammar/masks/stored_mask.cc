#include "grammar/masks/stored_mask.h"

#include <algorithm>
#include <utility>

#include "grammar/automata/held_bytes.h"

namespace espalier::grammar {
namespace {

// A mask with more changes than this is stored as words.
constexpr size_t kChangesMax = 512;

}  // namespace

void set_token(std::span<uint32_t> words, TokenId token, bool on) {
  const auto index = static_cast<uint32_t>(token);
  const uint32_t bit = 1u << (index % 32);
  words[index / 32] = on ? words[index / 32] | bit : words[index / 32] & ~bit;
}

void StoredMask::refer_to(const StoredMask& other) {
  base_ = other.words_.empty() ? other.base_ : &other.words_;
  runs_ = other.runs_;
  changes_ = other.changes_;
}

bool StoredMask::only_allows() const {
  return std::ranges::all_of(changes_, [](uint32_t change) { return change % 2 == 1; });
}

void StoredMask::add(const StoredMask& part, std::span<uint32_t> scratch) {
  conditional_.insert(conditional_.end(), part.conditional_.begin(), part.conditional_.end());
  const auto plain = [](const StoredMask& mask) {
    return mask.base_ == nullptr && mask.words_.empty() && mask.only_allows();
  };
  // Runs are applied before changes, so they join only masks that refuse nothing.
  if (plain(part) && (part.runs_.empty() || only_allows())) {
    runs_.insert(runs_.end(), part.runs_.begin(), part.runs_.end());
    changes_.insert(changes_.end(), part.changes_.begin(), part.changes_.end());
    return;
  }
  if (plain(*this) && (runs_.empty() || part.only_allows())) {
    base_ = part.base_;
    words_ = part.words_;
    runs_.insert(runs_.end(), part.runs_.begin(), part.runs_.end());
    const std::vector<uint32_t> own = std::exchange(changes_, part.changes_);
    changes_.insert(changes_.end(), own.begin(), own.end());
    return;
  }
  std::vector<uint32_t> words(scratch.size());
  write(words);
  part.write(scratch);
  for (size_t i = 0; i < words.size(); ++i) words[i] |= scratch[i];
  base_ = nullptr;
  words_ = std::move(words);
  runs_.clear();
  changes_.clear();
}

void StoredMask::write(std::span<uint32_t> words) const {
  if (base_ != nullptr) {
    std::ranges::copy(*base_, words.begin());
  } else if (!words_.empty()) {
    std::ranges::copy(words_, words.begin());
  } else {
    std::ranges::fill(words, 0);
  }
  for (const std::vector<TokenId>* run : runs_) {
    for (const TokenId token : *run) set_token(words, token, true);
  }
  for (const uint32_t change : changes_)
    set_token(words, static_cast<TokenId>(change / 2), change % 2 == 1);
}

void StoredMask::settle(const TokenTrie& trie, std::span<uint32_t> scratch, bool exhausted) {
  const bool many = changes_.size() > kChangesMax;
  const bool some = !changes_.empty() || !runs_.empty();
  const bool plain = some && only_allows();
  if (many || !plain) write(scratch);
  empty_ = !plain && std::ranges::none_of(scratch, [](uint32_t word) { return word != 0; });
  if (many) {
    base_ = nullptr;
    words_.assign(scratch.begin(), scratch.end());
    runs_ = {};
    changes_ = {};
  }
  runs_.shrink_to_fit();
  changes_.shrink_to_fit();
  const auto by_bytes = [&](TokenId id) { return trie.rank(id); };
  if (!std::ranges::is_sorted(conditional_, {}, by_bytes))
    std::ranges::sort(conditional_, {}, by_bytes);
  unusable_ = exhausted;
}

size_t StoredMask::num_bytes() const {
  return sizeof(StoredMask) + held_bytes(runs_) + held_bytes(words_) + held_bytes(changes_) +
         held_bytes(conditional_);
}

}  // namespace espalier::grammar
