// Compares stored masks with plain words of bits, at random.
#include "grammar/masks/stored_mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "base/rng.h"
#include "grammar/masks/test_vocabulary.h"

namespace espalier::grammar {
namespace {

using MaskWords = std::vector<uint32_t>;

// Makes masks of every form from each other, and beside each the bits that it stands for.
class RandomMasks {
 public:
  RandomMasks(const TokenTrie& trie, uint64_t seed)
      : trie_(trie), rng_(seed), scratch_(static_cast<size_t>(trie.words_per_mask())) {
    for (TokenId id = 3; id < trie.vocab_size(); id += 97) run_.push_back(id);
  }

  void add_one() {
    StoredMask& mask = masks_.emplace_back();
    MaskWords expected(scratch_.size(), 0);
    const uint64_t form = masks_.size() < 8 ? rng_.below(3) : rng_.below(5);
    if (form == 1) {
      expected = trie_.string_inside_mask();
      mask.start_from(trie_.string_inside_mask());
    } else if (form == 2) {
      for (uint32_t& word : expected) word = static_cast<uint32_t>(rng_.below(uint64_t{1} << 32));
      mask.start_from(MaskWords(expected));
    } else if (form == 3) {
      const size_t from = any_earlier();
      expected = expected_[from];
      mask.refer_to(masks_[from]);
    } else if (form == 4) {
      for (uint64_t parts = 1 + rng_.below(4); parts > 0; --parts) {
        const size_t part = any_earlier();
        mask.add_part(masks_[part]);
        for (size_t w = 0; w < expected.size(); ++w) expected[w] |= expected_[part][w];
      }
    }
    if (form < 3 && rng_.below(2) == 0) {
      mask.allow_run(run_);
      for (const TokenId id : run_) set_token(expected, id, true);
    }
    change(mask, expected, form == 4);
    mask.settle(trie_, scratch_, false);
    expected_.push_back(std::move(expected));
  }

  void expect_equal(size_t index) {
    MaskWords written(scratch_.size(), ~uint32_t{0});
    masks_[index].write(written);
    ASSERT_EQ(written, expected_[index]) << "mask " << index;
    const bool empty =
        std::ranges::all_of(expected_[index], [](uint32_t word) { return word == 0; });
    ASSERT_EQ(masks_[index].empty(), empty) << "mask " << index;
  }
  size_t size() const { return masks_.size(); }

 private:
  size_t any_earlier() { return rng_.below(masks_.size() - 1); }

  void change(StoredMask& mask, MaskWords& expected, bool only_allow) {
    const uint64_t most = rng_.below(8) == 0 ? 1500 : 6;
    for (uint64_t count = rng_.below(most); count > 0; --count) {
      const auto id = static_cast<TokenId>(rng_.below(static_cast<uint64_t>(trie_.vocab_size())));
      const bool on = only_allow || rng_.below(2) == 0;
      on ? mask.allow(id) : mask.refuse(id);
      set_token(expected, id, on);
    }
  }

  const TokenTrie& trie_;
  Rng rng_;
  MaskWords scratch_;
  std::vector<TokenId> run_;
  std::deque<StoredMask> masks_;
  std::vector<MaskWords> expected_;
};

TEST(StoredMask, EqualsPlainWords) {
  const auto trie = made_up_vocabulary(1);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomMasks masks(*trie, seed);
    for (int i = 0; i < 200; ++i) masks.add_one();
    for (size_t i = 0; i < masks.size(); ++i) masks.expect_equal(i);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace espalier::grammar
