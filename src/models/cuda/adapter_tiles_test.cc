// Random batches: each row with an adapter is in one tile of that adapter, and no other row is.
#include "models/cuda/adapter_tiles.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/rng.h"
#include "kernels/cpu/test_support.h"

namespace espalier {
namespace {

using kernels::cuda::LoraPart;
using kernels::cuda::LoraTile;

// Of each row in a range's tiles its adapter.
std::map<int32_t, const LoraPart*> adapters_in(const TileRange& range,
                                               const std::vector<LoraTile>& tiles) {
  std::map<int32_t, const LoraPart*> out;
  if (range.count == 0) return out;
  EXPECT_EQ(tiles[static_cast<size_t>(range.begin - 1)].num_rows, range.count);
  int32_t first = 0;
  for (int32_t i = 0; i < range.count; ++i) {
    const LoraTile& tile = tiles[static_cast<size_t>(range.begin + i)];
    EXPECT_EQ(tile.first, first);
    EXPECT_GE(tile.num_rows, 1);
    EXPECT_LE(tile.num_rows, kernels::cuda::kLoraTileRows);
    for (int32_t row = 0; row < tile.num_rows; ++row)
      EXPECT_TRUE(out.emplace(tile.rows[row], tile.parts).second);
    first += tile.num_rows;
  }
  EXPECT_EQ(first, range.num_rows);
  return out;
}

struct RandomBatch {
  ForwardBatch batch;
  std::vector<const LoraPart*> parts;
  std::map<int32_t, const LoraPart*> tokens, wanted;  // of each row its adapter
};

RandomBatch draw_batch(Rng& rng, std::span<const LoraPart> adapters, int32_t max_entries,
                       int32_t max_tokens) {
  RandomBatch out;
  const auto entries = static_cast<int32_t>(rng.between(1, max_entries));
  int32_t tokens = 0;
  for (int32_t i = 0; i < entries; ++i) {
    const int32_t left = max_tokens - tokens - (entries - i - 1);
    BatchEntry& entry = out.batch.entries.emplace_back();
    entry.query_begin = tokens;
    entry.num_query_tokens = static_cast<int32_t>(rng.between(1, std::min(left, 40)));
    entry.sample = rng.below(3) > 0;
    entry.input_logprob_targets.resize(
        rng.below(4) == 0 ? rng.below(static_cast<uint64_t>(entry.num_query_tokens)) : 0);
    const size_t adapter = rng.below(adapters.size() + 1);
    out.parts.push_back(adapter == adapters.size() ? nullptr : &adapters[adapter]);
    tokens += entry.num_query_tokens;
    if (out.parts.back() == nullptr) continue;
    for (int32_t t = 0; t < entry.num_query_tokens; ++t)
      out.tokens[entry.query_begin + t] = out.parts.back();
  }
  int32_t row = 0;
  const auto want = [&](size_t entry) {
    if (out.parts[entry] != nullptr) out.wanted[row] = out.parts[entry];
    ++row;
  };
  for (size_t i = 0; i < out.parts.size(); ++i)
    if (out.batch.entries[i].sample) want(i);
  for (size_t i = 0; i < out.parts.size(); ++i)
    for (size_t t = 0; t < out.batch.entries[i].input_logprob_targets.size(); ++t) want(i);
  return out;
}

TEST(AdapterTiles, HoldEachAdaptedRowOnce) {
  const uint64_t seed = kernels::test::fresh_seed();
  SCOPED_TRACE("ESPALIER_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  const std::vector<LoraPart> adapters(7);
  AdapterTiles arranger;
  for (int round = 0; round < 300; ++round) {
    constexpr int32_t kEntries = 20, kTokens = 300;
    const RandomBatch drawn = draw_batch(rng, adapters, kEntries, kTokens);
    std::vector<LoraTile> tiles(static_cast<size_t>(AdapterTiles::capacity(kEntries, kTokens)));
    const bool with_wanted = round % 2 == 0;
    const ArrangedTiles arranged =
        arranger.arrange(drawn.batch, drawn.parts, with_wanted, tiles.data());
    ASSERT_LE(arranged.size, std::ssize(tiles));
    ASSERT_EQ(arranged.empty(), drawn.tokens.empty());
    ASSERT_EQ(adapters_in(arranged.tokens, tiles), drawn.tokens);
    if (with_wanted) {
      ASSERT_EQ(adapters_in(arranged.wanted, tiles), drawn.wanted);
    } else {
      ASSERT_EQ(arranged.wanted.count, 0);
    }
  }
}

// As few tiles as the rows of each adapter fill.
TEST(AdapterTiles, AreFull) {
  const std::vector<LoraPart> adapters(2);
  ForwardBatch batch;
  std::vector<const LoraPart*> parts;
  for (int32_t i = 0; i < 64; ++i) {
    batch.entries.push_back({.num_query_tokens = 1, .query_begin = i, .sample = true});
    parts.push_back(&adapters[static_cast<size_t>(i % 2)]);
  }
  std::vector<LoraTile> tiles(static_cast<size_t>(AdapterTiles::capacity(64, 64)));
  AdapterTiles arranger;
  const ArrangedTiles& arranged = arranger.arrange(batch, parts, false, tiles.data());
  EXPECT_EQ(arranged.tokens.count, 4);
  EXPECT_EQ(arranged.tokens.num_rows, 64);
}

}  // namespace
}  // namespace espalier
