// Byte-pair encoding against the definition: merge the pair of lowest rank, the leftmost of equals,
// until none is left.
#include "text/tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include "base/rng.h"

namespace espalier {
namespace {

using Ids = std::vector<TokenId>;

// A byte-level vocabulary over "abcd" whose merges are drawn at random.
struct RandomBpe {
  explicit RandomBpe(uint64_t seed) : table(64, 256) {
    Rng rng(seed);
    for (const char c : std::string_view("abcd")) table.add({&c, 1}, table.id_end());
    while (merges.size() < 40) {
      const auto left = static_cast<TokenId>(rng.below(static_cast<uint64_t>(table.id_end())));
      const auto right = static_cast<TokenId>(rng.below(static_cast<uint64_t>(table.id_end())));
      const std::string merged = std::string(table.of(left)) + std::string(table.of(right));
      if (merged.size() > 12 || table.find(merged)) continue;
      table.add(merged, table.id_end());
      merges.push_back({left, right, table.id_end() - 1});
    }
  }
  Ids naive(std::string_view word) const {
    Ids ids;
    for (const char c : word) ids.push_back(table.find({&c, 1}).value());
    for (;;) {
      size_t best_rank = merges.size(), best = 0;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        for (size_t rank = 0; rank < best_rank; ++rank) {
          if (merges[rank].left == ids[i] && merges[rank].right == ids[i + 1]) {
            best_rank = rank;
            best = i;
          }
        }
      }
      if (best_rank == merges.size()) return ids;
      ids[best] = merges[best_rank].merged;
      ids.erase(ids.begin() + static_cast<ptrdiff_t>(best) + 1);
    }
  }
  TokenTable table;
  std::vector<BpeModel::Merge> merges;
};

std::string random_letters(Rng& rng, size_t size) {
  std::string word;
  while (word.size() < size) {
    word.append(rng.below(6) == 0 ? rng.below(20) : 1, static_cast<char>('a' + rng.below(4)));
  }
  return word;
}

TEST(Bpe, EqualsTheDefinitionForShortAndLongWords) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const RandomBpe random(seed);
    const BpeModel model({.byte_level = true}, random.table, random.merges);
    Rng rng(seed);
    for (int round = 0; round < 60; ++round) {
      const std::string word = random_letters(rng, rng.below(150));
      Ids ids, again;
      model.encode_word(word, ids);
      ASSERT_EQ(ids, random.naive(word)) << "seed " << seed << " word " << word;
      model.encode_word(word, again);  // from the cache, where it is short
      ASSERT_EQ(again, ids);
    }
  }
}

TEST(Bpe, ThreadsShareTheCache) {
  const RandomBpe random(3);
  const BpeModel model({.byte_level = true}, random.table, random.merges);
  std::vector<std::jthread> threads;
  std::atomic<int> num_wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Rng rng(9);  // the same words at the same time
      for (int round = 0; round < 2000; ++round) {
        const std::string word = random_letters(rng, rng.below(12));
        Ids ids;
        model.encode_word(word, ids);
        num_wrong += ids != random.naive(word);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(num_wrong, 0);
}

// Quadratic merging would take minutes here.
TEST(Bpe, AMillionEqualLettersAreQuick) {
  TokenTable table(8, 64);
  table.add("a", 0);
  table.add("aa", 1);
  table.add("aaaa", 2);
  const std::vector<BpeModel::Merge> merges = {{0, 0, 1}, {1, 1, 2}};
  const BpeModel model({.byte_level = true}, table, merges);
  Ids ids;
  model.encode_word(std::string(1'000'001, 'a'), ids);
  ASSERT_EQ(ids.size(), 250'001u);
  EXPECT_EQ(ids.front(), 2);
  EXPECT_EQ(ids.back(), 0);
}

TEST(Bpe, UnknownCharacters) {
  TokenTable table(8, 64);
  table.add("a", 0);
  table.add("<unk>", 1);
  table.add("<0xC3>", 2);
  table.add("<0xA9>", 3);
  const auto encode = [&](BpeOptions options, std::string_view word) {
    Ids ids;
    BpeModel(options, table, {}).encode_word(word, ids);
    return ids;
  };
  EXPECT_EQ(encode({}, "axya"), (Ids{0, 0}));
  EXPECT_EQ(encode({.unk_id = 1}, "axya"), (Ids{0, 1, 1, 0}));
  EXPECT_EQ(encode({.fuse_unk = true, .unk_id = 1}, "axya"), (Ids{0, 1, 0}));
  EXPECT_EQ(encode({.byte_fallback = true, .unk_id = 1}, "\xC3\xA9x"), (Ids{2, 3, 1}));
}

TEST(TokenTable, GrowsAndFinds) {
  TokenTable table(1, 1);
  for (TokenId id = 0; id < 5000; ++id) table.add(std::to_string(id * 7), id);
  for (TokenId id = 0; id < 5000; ++id) {
    EXPECT_EQ(table.find(std::to_string(id * 7)), id);
    EXPECT_EQ(table.of(id), std::to_string(id * 7));
  }
  EXPECT_FALSE(table.find("x").has_value());
  EXPECT_FALSE(table.has(5000));
  EXPECT_EQ(table.of(-1), "");
}

}  // namespace
}  // namespace espalier
