// Chains of draft tokens against a plain loop, on random steps.
#include "kernels/draft/cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "kernels/cuda/test_device.h"

namespace espalier::kernels::cuda {
namespace {

using test::DeviceArray;

constexpr int32_t kPadding = 3, kChainMax = 5, kVocab = 3000, kStride = 3008;

// A step of entries with up to four draft tokens each, some of which are right.
struct RandomStep {
  explicit RandomStep(uint64_t seed, int32_t num_entries) {
    Rng rng(seed);
    const auto below = [&](int32_t n) { return static_cast<int32_t>(rng.uniform() * n); };
    for (int32_t e = 0; e < num_entries; ++e) {
      const int32_t known = 1 + below(3), drafts = below(5), position = below(100);
      const auto token = static_cast<int32_t>(ids.size()) + known - 1;
      ChainStart start{.row = static_cast<int32_t>(sampled.size()),
                       .num_rows = 1 + drafts,
                       .token = token,
                       .position = position,
                       .position_max = position + below(10),
                       .page_begin = 64 * e,
                       .length = 1 + below(kChainMax)};
      for (int32_t i = 0; i < known + drafts; ++i) {
        ids.push_back(below(4));
        next.push_back(i + 1 < known ? 100 + below(4) : -1 - static_cast<int32_t>(sampled.size()));
        if (i + 1 >= known) sampled.push_back(below(20) == 0 ? -1 : below(4));
      }
      starts.push_back(start);
    }
  }
  std::vector<int32_t> ids, next, sampled;
  std::vector<ChainStart> starts;
};

struct Want {
  std::vector<int32_t> drafted;
  int32_t wanted = 0, prefix_len = 0;
};

using DraftKernelsCuda = test::OnDevice;

TEST_F(DraftKernelsCuda, DoWhatAPlainLoopDoes) {
  Rng rng(11);
  std::vector<int32_t> draft_ids(kVocab);
  for (int32_t i = 0; i < kVocab; ++i) draft_ids[static_cast<size_t>(i)] = 7 * i;
  const DeviceArray<int32_t> device_ids(draft_ids);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto count = static_cast<int32_t>(1 + seed % 7 * 5);
    const RandomStep step(seed, count);
    const int32_t most = count + kPadding;
    std::vector<ChainStart> padded = step.starts;
    padded.resize(static_cast<size_t>(most));
    const DeviceArray<int32_t> num(std::vector{count}), sampled(step.sampled), ids(step.ids),
        next(step.next), head_ids(step.ids.size()), wanted(static_cast<size_t>(most)),
        drafted(static_cast<size_t>(most * kChainMax)), counts(static_cast<size_t>(most)),
        last(static_cast<size_t>(most)), query_begin(static_cast<size_t>(most + 1)),
        prefix_len(static_cast<size_t>(most)), page_begin(static_cast<size_t>(most));
    const DeviceArray<ChainStart> starts(padded);
    const ChainArrays chains{.num_chains = num.get(),
                             .starts = starts.get(),
                             .max_chains = most,
                             .chain_max = kChainMax,
                             .drafted = drafted.get(),
                             .counts = counts.get(),
                             .ids = last.get(),
                             .query_begin = query_begin.get(),
                             .prefix_len = prefix_len.get(),
                             .page_begin = page_begin.get()};
    ASSERT_TRUE(begin_chains({.chains = chains,
                              .sampled = sampled.get(),
                              .step_ids = ids.get(),
                              .next_ids = next.get(),
                              .tokens = static_cast<int32_t>(step.ids.size()),
                              .ids = head_ids.get(),
                              .wanted = wanted.get()},
                             {})
                    .ok());
    std::vector<Want> want(static_cast<size_t>(count));
    for (size_t c = 0; c < want.size(); ++c) {
      const ChainStart& s = step.starts[c];
      const auto at = [](const std::vector<int32_t>& of, int32_t i) {
        return of[static_cast<size_t>(i)];
      };
      int32_t accepted = 0;
      for (; accepted + 1 < s.num_rows; ++accepted)
        if (at(step.ids, s.token + 1 + accepted) != at(step.sampled, s.row + accepted)) break;
      want[c].wanted = s.token + accepted;
      want[c].prefix_len = std::min(s.position + accepted + 1, s.position_max);
    }
    const std::vector<int32_t> got_ids = head_ids.read(), begins = query_begin.read();
    for (size_t i = 0; i < got_ids.size(); ++i) {
      const int32_t id = step.next[i];
      EXPECT_EQ(got_ids[i], id >= 0 ? id : step.sampled[static_cast<size_t>(-1 - id)]) << i;
    }
    for (int32_t c = 0; c <= most; ++c)
      EXPECT_EQ(begins[static_cast<size_t>(c)], std::min(c, count)) << c;
    for (int32_t pass = 0; pass < kChainMax + 1; ++pass) {
      std::vector<float> logits(static_cast<size_t>(most * kStride));
      for (float& x : logits) x = static_cast<float>(static_cast<int>(rng.uniform() * 400));
      for (size_t i = 0; i < logits.size(); i += 977)
        logits[i] = std::numeric_limits<float>::quiet_NaN();
      const DeviceArray<float> device_logits(logits);
      ASSERT_TRUE(extend_chains({.chains = chains,
                                 .logits = device_logits.get(),
                                 .logits_stride = kStride,
                                 .draft_ids = device_ids.get(),
                                 .draft_vocab_size = kVocab},
                                {})
                      .ok());
      const std::vector<int32_t> prefixes = prefix_len.read(), ids_now = last.read(),
                                 tokens = drafted.read(), lengths = counts.read();
      for (int32_t c = 0; c < count; ++c) {
        const auto at = static_cast<size_t>(c);
        Want& w = want[at];
        int32_t best = -1;
        for (int32_t i = 0; i < kVocab; ++i) {
          const float x = logits[at * kStride + static_cast<size_t>(i)];
          if (x == x && (best < 0 || x > logits[at * kStride + static_cast<size_t>(best)]))
            best = i;
        }
        const ChainStart& s = step.starts[at];
        if (pass < s.length) {
          w.drafted.push_back(7 * best);
          if (pass > 0)
            w.prefix_len = std::min(w.prefix_len + 1, std::max(w.prefix_len, s.position_max));
        }
        EXPECT_EQ(ids_now[at], 7 * best) << "seed " << seed << ", chain " << c;
        EXPECT_EQ(prefixes[at], w.prefix_len) << "seed " << seed << ", chain " << c;
        ASSERT_EQ(lengths[at], std::ssize(w.drafted)) << "seed " << seed << ", chain " << c;
        for (size_t i = 0; i < w.drafted.size(); ++i)
          EXPECT_EQ(tokens[at * kChainMax + i], w.drafted[i]) << "seed " << seed << ", chain " << c;
      }
    }
    EXPECT_EQ(wanted.read().front(), want.front().wanted);
    EXPECT_EQ(wanted.read()[want.size() - 1], want.back().wanted);
    EXPECT_EQ(page_begin.read()[want.size() - 1], 64 * (count - 1));
  }
}

TEST_F(DraftKernelsCuda, NameWhatIsWrong) {
  EXPECT_EQ(begin_chains({.tokens = -1}, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(extend_chains({.chains = {.max_chains = 1, .chain_max = 4}}, {}).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier::kernels::cuda
