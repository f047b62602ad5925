// Latent attention with expanded keys and values against a plain sum in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/attention/latent_prefill.h"
#include "kernels/cuda/test_device.h"
#include "tensor/dtype.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kNope = 128, kRope = 64, kValue = 128, kRank = 512;

struct Entry {
  int prefix, tokens;
};

class LatentPrefill : public test::OnDevice {
 protected:
  void SetUp() override {
    test::OnDevice::SetUp();
    if (IsSkipped()) return;
    const auto expands = expands_latents({kNope, kRope, kValue}, kRank, DType::kBFloat16);
    ASSERT_TRUE(expands);
    if (!*expands) GTEST_SKIP() << "SKIPPED: the GPU has no wgmma";
  }

  std::vector<BFloat16> draw(int64_t count, double spread = 1) {
    std::vector<BFloat16> out(static_cast<size_t>(count));
    for (BFloat16& value : out)
      value = to_bfloat16(static_cast<float>(spread * 3.46 * (rng_.uniform() - 0.5)));
    return out;
  }

  struct Step {
    std::vector<int32_t> query_begin{0}, prefix_len, page_begin, pages, row_begin{0};
    int tokens = 0, rows = 0;
  };
  static Step step_of(const std::vector<Entry>& entries) {
    Step step;
    for (const Entry& entry : entries) {
      step.prefix_len.push_back(entry.prefix);
      step.tokens += entry.tokens;
      step.query_begin.push_back(step.tokens);
      step.rows += static_cast<int>(expanded_rows(entry.prefix, entry.tokens));
      step.row_begin.push_back(step.rows);
      step.page_begin.push_back(static_cast<int32_t>(step.pages.size()));
      for (int i = 0; i < entry.prefix + entry.tokens; ++i) step.pages.push_back(0);
    }
    std::iota(step.pages.rbegin(), step.pages.rend(), 1);  // backwards; page 0 is of no entry
    return step;
  }

  // One step's arrays on the device; pages of one token.
  struct OnGpu {
    explicit OnGpu(const Step& step)
        : query_begin(step.query_begin),
          prefix_len(step.prefix_len),
          page_begin(step.page_begin),
          pages(step.pages),
          row_begin(step.query_begin.size()),
          tile_begin(step.query_begin.size()),
          counters(2) {
      entries = {.query_begin = query_begin.get(),
                 .prefix_len = prefix_len.get(),
                 .page_begin = page_begin.get(),
                 .page_tables = pages.get(),
                 .num_entries = static_cast<int32_t>(step.prefix_len.size()),
                 .num_tokens = step.tokens};
      plan = {row_begin.get(), tile_begin.get(), counters.get()};
    }
    test::DeviceArray<int32_t> query_begin, prefix_len, page_begin, pages, row_begin, tile_begin,
        counters;
    EntryArrays entries;
    ExpandedPlan plan;
  };

  void check(const std::vector<Entry>& lengths, int heads, double spread = 1) {
    SCOPED_TRACE(testing::Message() << lengths.size() << " entries, " << heads << " heads");
    const Step step = step_of(lengths);
    OnGpu gpu(step);
    const int head_width = kNope + kRope, kv_width = kNope + kValue, latent = kRank + kRope;
    const auto q = draw(int64_t{step.tokens} * heads * head_width, spread);
    auto kv = draw(int64_t{step.rows} * heads * kv_width, spread);
    const auto pool = draw((std::ssize(step.pages) + 1) * latent, spread);
    // Rows behind an entry's last position are zeros, as a GEMM of zeros leaves them.
    for (size_t e = 0; e < lengths.size(); ++e) {
      const int64_t end = step.row_begin[e] + lengths[e].prefix + lengths[e].tokens;
      for (int64_t i = end * heads * kv_width;
           i < int64_t{step.row_begin[e + 1]} * heads * kv_width; ++i)
        kv[static_cast<size_t>(i)] = to_bfloat16(0);
    }
    test::DeviceArray<BFloat16> q_gpu(q), kv_gpu(kv), pool_gpu(pool);
    test::DeviceArray<BFloat16> latents(static_cast<size_t>(step.rows) * latent);
    const auto nothing = to_bfloat16(-7);
    test::DeviceArray<BFloat16> out(
        std::vector<BFloat16>(static_cast<size_t>(step.tokens) * heads * kValue, nothing));
    ASSERT_TRUE(plan_expanded(gpu.entries, gpu.plan, {}).ok());
    const KvPlanes planes{.k = pool_gpu.get(),
                          .v = pool_gpu.get(),
                          .num_kv_heads = 1,
                          .head_dim = latent,
                          .page_stride = latent,
                          .token_stride = latent,
                          .head_stride = latent};
    ASSERT_TRUE(gather_latents({gpu.entries, gpu.plan, planes, step.rows, latents.get()}, {}).ok());
    const ExpandedAttentionArgs args{.entries = gpu.entries,
                                     .plan = gpu.plan,
                                     .num_heads = heads,
                                     .q_nope = q_gpu.get(),
                                     .q_rope = q_gpu.get() + kNope,
                                     .q_nope_stride = heads * head_width,
                                     .q_nope_head = head_width,
                                     .q_rope_stride = heads * head_width,
                                     .q_rope_head = head_width,
                                     .rows = step.rows,
                                     .keys_values = kv_gpu.get(),
                                     .k_rope = latents.get() + kRank,
                                     .k_rope_stride = latent,
                                     .out = out.get(),
                                     .out_stride = heads * kValue,
                                     .scale = 0.07f};
    for (int i = 0; i < 2; ++i) {  // the counters are ready for the next launch
      const Status status = attention_expanded(args, {});
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
    EXPECT_EQ(gpu.row_begin.read(), step.row_begin);
    const auto got = out.read();
    std::vector<float> wanted, found;
    for (size_t e = 0; e < lengths.size(); ++e)
      for (int t = 0; t < lengths[e].tokens; ++t)
        for (int head = 0; head < heads; ++head) {
          const int64_t token = step.query_begin[e] + t;
          const auto* row = got.data() + (token * heads + head) * kValue;
          if (lengths[e].tokens < kExpandedTokens) {
            for (int i = 0; i < kValue; ++i) ASSERT_EQ(to_float(row[i]), -7);
            continue;
          }
          for (int i = 0; i < kValue; ++i) found.push_back(to_float(row[i]));
          append_expected(step, e, lengths[e].prefix + t,
                          q.data() + (token * heads + head) * head_width,
                          kv.data() + head * kv_width, heads * kv_width, pool, wanted);
        }
    EXPECT_LE(test::relative_error(found, wanted), 4e-3);
    check_latents(step, lengths, latents.read(), pool);
  }

  // The attention of one query at `position` of entry e; kv: of its head, rows kv_stride apart.
  static void append_expected(const Step& step, size_t e, int position, const BFloat16* q,
                              const BFloat16* kv, int64_t kv_stride,
                              const std::vector<BFloat16>& pool, std::vector<float>& out) {
    std::vector<double> weights, sums(kValue, 0);
    double largest = -std::numeric_limits<double>::infinity(), total = 0;
    for (int key = 0; key <= position; ++key) {
      const BFloat16* k = kv + (step.row_begin[e] + key) * kv_stride;
      const BFloat16* rope = page(step, e, key, pool) + kRank;
      double score = 0;
      for (int i = 0; i < kNope; ++i) score += double{to_float(q[i])} * to_float(k[i]);
      for (int i = 0; i < kRope; ++i) score += double{to_float(q[kNope + i])} * to_float(rope[i]);
      weights.push_back(score * 0.07);
      largest = std::max(largest, weights.back());
    }
    for (int key = 0; key <= position; ++key) {
      const double weight = std::exp(weights[static_cast<size_t>(key)] - largest);
      const BFloat16* v = kv + (step.row_begin[e] + key) * kv_stride + kNope;
      total += weight;
      for (int i = 0; i < kValue; ++i) sums[static_cast<size_t>(i)] += weight * to_float(v[i]);
    }
    for (const double sum : sums) out.push_back(static_cast<float>(sum / total));
  }

  static const BFloat16* page(const Step& step, size_t e, int position,
                              const std::vector<BFloat16>& pool) {
    const auto at = static_cast<size_t>(step.page_begin[e] + position);
    return pool.data() + int64_t{step.pages[at]} * (kRank + kRope);
  }

  static void check_latents(const Step& step, const std::vector<Entry>& lengths,
                            const std::vector<BFloat16>& got, const std::vector<BFloat16>& pool) {
    constexpr int kWidth = kRank + kRope;
    for (size_t e = 0; e < lengths.size(); ++e)
      for (int row = step.row_begin[e]; row < step.row_begin[e + 1]; ++row) {
        const int position = row - step.row_begin[e];
        const bool exists = position < lengths[e].prefix + lengths[e].tokens;
        for (int i = 0; i < kWidth; i += 37)
          ASSERT_EQ(to_float(got[static_cast<size_t>(row * kWidth + i)]),
                    exists ? to_float(page(step, e, position, pool)[i]) : 0)
              << "entry " << e << ", position " << position;
      }
  }
};

TEST_F(LatentPrefill, OneEntryOfEveryLength) {
  for (const int tokens : {32, 63, 64, 65, 127, 128, 129, 300}) check({{0, tokens}}, 4);
  for (const int prefix : {1, 95, 96, 128, 500}) check({{prefix, 40}}, 2);
  check({{300, 200}}, 16);
  check({{0, 700}}, 3);
}

TEST_F(LatentPrefill, LongAndShortEntriesTogether) {
  check({{50, 1}, {0, 100}, {7, 31}, {200, 32}, {3, 1}, {0, 129}}, 4);
  std::vector<Entry> many(70, {20, 1});
  many[3] = {0, 33};
  many[31] = {64, 64};
  many[32] = {1, 90};
  many[69] = {10, 200};
  check(many, 8);
}

// Scores that rise by hundreds from one block of keys to the next move the softmax's base.
TEST_F(LatentPrefill, LargeScores) { check({{100, 300}, {0, 260}}, 4, 6); }

}  // namespace
}  // namespace espalier::kernels::cuda
