#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/attention/op.h"
#include "kernels/cpu/test_support.h"
#include "kernels/kv_append/op.h"

namespace espalier::kernels {
namespace {

using test::random_floats;

struct Heads {
  int32_t heads, kv_heads, head_dim;
};

// A pool of pages in random order, and sequences whose keys and values are written through
// kv_append.
class Cache {
 public:
  Cache(Rng& rng, const Heads& heads, KvType type, int32_t page_size, int32_t num_pages)
      : free_(static_cast<size_t>(num_pages)) {
    const size_t elements =
        static_cast<size_t>(num_pages) * page_size * heads.kv_heads * heads.head_dim;
    // Rubbish that would show: pages hold whatever their last owner left.
    k_.assign(elements * 4, std::byte{0x7f});
    v_.assign(elements * 4, std::byte{0x7f});
    view_.page_size = page_size;
    view_.layers = {{.type = type,
                     .k = k_.data(),
                     .v = v_.data(),
                     .num_pages = num_pages,
                     .num_kv_heads = heads.kv_heads,
                     .head_dim = heads.head_dim}};
    view_.layers[0].set_dense_strides(page_size);
    std::iota(free_.begin(), free_.end(), 0);
    for (size_t i = free_.size(); i > 1; --i) std::swap(free_[i - 1], free_[rng.below(i)]);
  }

  const KvView& view() const { return view_; }
  void share_planes() {
    v_.clear();
    view_.layers[0].v = k_.data();
    view_.layers[0].kind = KvLayerKind::kLatent;
  }
  std::vector<PageId> take_pages(int32_t tokens) {
    const int32_t count = (tokens + view_.page_size - 1) / view_.page_size;
    std::vector<PageId> pages(free_.end() - count, free_.end());
    free_.resize(free_.size() - static_cast<size_t>(count));
    return pages;
  }

 private:
  std::vector<std::byte> k_, v_;
  KvView view_;
  std::vector<PageId> free_;
};

// All queries, keys and values of one sequence: [tokens, heads or kv_heads, head_dim].
struct Sequence {
  int32_t tokens = 0;
  std::vector<float> q, k, v;
  std::vector<PageId> pages;
};

class AttentionTest : public test::EachIsa {
 protected:
  bool by_offsets_ = false;  // step() names pages by page_offsets

  Sequence make_sequence(Cache& cache, const Heads& h, int32_t tokens) {
    Sequence s;
    s.tokens = tokens;
    s.q = random_floats(rng_, static_cast<int64_t>(tokens) * h.heads * h.head_dim);
    s.k = random_floats(rng_, static_cast<int64_t>(tokens) * h.kv_heads * h.head_dim);
    s.v = random_floats(rng_, static_cast<int64_t>(tokens) * h.kv_heads * h.head_dim);
    s.pages = cache.take_pages(tokens);
    return s;
  }

  // Which tokens of which sequence an entry runs.
  struct Part {
    const Sequence* sequence;
    int32_t begin, end;
  };

  // Runs the parts as one step; returns [tokens of all parts, heads, head_dim].
  std::vector<float> step(CpuBackend& backend, const Cache& cache, const Heads& h,
                          const std::vector<Part>& parts, AttentionArgs args, bool slow = false) {
    std::vector<BatchEntry> entries;
    std::vector<PageId> tables;
    std::vector<float> q, k, v;
    int32_t tokens = 0;
    const auto take = [](std::vector<float>& to, const std::vector<float>& from, int64_t begin,
                         int64_t end, int64_t width) {
      to.insert(to.end(), from.begin() + begin * width, from.begin() + end * width);
    };
    for (const Part& part : parts) {
      BatchEntry entry;
      entry.num_query_tokens = part.end - part.begin;
      entry.prefix_len = part.begin;
      entry.query_begin = tokens;
      entry.page_begin = static_cast<int32_t>(tables.size());
      entry.num_pages = (part.end + cache.view().page_size - 1) / cache.view().page_size;
      tables.insert(tables.end(), part.sequence->pages.begin(),
                    part.sequence->pages.begin() + entry.num_pages);
      entries.push_back(entry);
      take(q, part.sequence->q, part.begin, part.end, h.heads * h.head_dim);
      take(k, part.sequence->k, part.begin, part.end, h.kv_heads * h.head_dim);
      take(v, part.sequence->v, part.begin, part.end, h.kv_heads * h.head_dim);
      tokens += part.end - part.begin;
    }
    kv_append(backend,
              {.k = k.data(),
               .k_stride = h.kv_heads * h.head_dim,
               .v = cache.view().layers[0].k == cache.view().layers[0].v ? nullptr : v.data(),
               .v_stride = h.kv_heads * h.head_dim,
               .entries = entries,
               .page_tables = tables,
               .kv = &cache.view(),
               .layer = 0});
    std::vector<float> out(q.size(), std::numeric_limits<float>::quiet_NaN());
    args.q = q.data();
    args.q_stride = args.out_stride = h.heads * h.head_dim;
    args.out = out.data();
    args.heads = h.heads;
    args.entries = entries;
    args.page_tables = tables;
    args.kv = &cache.view();
    args.layer = 0;
    std::vector<int64_t> offsets;
    if (by_offsets_) {
      for (const PageId page : tables) offsets.push_back(page * cache.view().layers[0].page_stride);
      args.page_offsets = offsets;
      args.page_tables = {};
    }
    slow ? reference::attention(args) : attention(backend, args);
    return out;
  }

  // Weights are sums and quotients of exp(score); a score's error e moves its weight by a factor
  // exp(e). Scores are sums of head_dim terms in float32: |e| <= head_dim 2^-24 sum|q k| scale.
  // Values are averages, so the result is off by at most about 2 e max|v|, plus the sums' own
  // rounding.
  static double tolerance(const Heads& h, const AttentionArgs& args, int32_t tokens) {
    const double largest = 5.5;  // of a few hundred thousand standard normals
    const double score_error =
        (h.head_dim + 4) * 0x1.0p-24 * h.head_dim * 0.65 * args.scale + 16 * 0x1.0p-24;
    const double sum_error = 3 * (tokens / 64.0 + 64 + 16) * 0x1.0p-24;
    return (2 * score_error + sum_error) * largest;
  }

  static AttentionArgs scaled(const Heads& h) {
    AttentionArgs args;
    args.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(h.head_dim)));
    return args;
  }
};

void expect_near(const std::vector<float>& actual, const std::vector<float>& expected,
                 double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance) << "element " << i;
  }
}

TEST_P(AttentionTest, AgreesWithTheReference) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const Heads cases[] = {{4, 2, 64}, {3, 3, 16}, {8, 1, 128}, {6, 2, 80}, {2, 2, 20}, {1, 1, 256}};
  for (const Heads& h : cases) {
    for (const KvType type : {KvType::kFloat32, KvType::kBFloat16}) {
      for (const int32_t page_size : {1, type == KvType::kFloat32 ? 7 : 16}) {
        SCOPED_TRACE(testing::Message() << h.heads << "/" << h.kv_heads << "x" << h.head_dim
                                        << " pages of " << page_size << " type " << int(type));
        Cache cache(rng_, h, type, page_size, 600);
        const Sequence a = make_sequence(cache, h, 1), b = make_sequence(cache, h, 130),
                       c = make_sequence(cache, h, 70), d = make_sequence(cache, h, 64);
        const AttentionArgs args = scaled(h);
        step(*backend, cache, h, {{&c, 0, 69}, {&b, 0, 37}, {&d, 0, 63}}, args);
        const std::vector<Part> parts = {{&a, 0, 1}, {&b, 37, 130}, {&c, 69, 70}, {&d, 63, 64}};
        expect_near(step(*backend, cache, h, parts, args),
                    step(*backend, cache, h, parts, args, /*slow=*/true), tolerance(h, args, 130));
      }
    }
  }
}

TEST_P(AttentionTest, PagesByTheirOffsetsGiveTheSameBits) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const Heads h = {4, 2, 32};
  for (const KvType type : {KvType::kFloat32, KvType::kBFloat16}) {
    Cache cache(rng_, h, type, 17, 200);
    const Sequence a = make_sequence(cache, h, 90), b = make_sequence(cache, h, 1300);
    const AttentionArgs args = scaled(h);
    step(*backend, cache, h, {{&a, 0, 80}, {&b, 0, 1299}}, args);
    const std::vector<Part> parts = {{&a, 80, 90}, {&b, 1299, 1300}};
    const auto by_tables = step(*backend, cache, h, parts, args);
    const auto slow = step(*backend, cache, h, parts, args, true);
    by_offsets_ = true;
    EXPECT_EQ(step(*backend, cache, h, parts, args), by_tables);
    EXPECT_EQ(step(*backend, cache, h, parts, args, true), slow);
    by_offsets_ = false;
  }
}

TEST_P(AttentionTest, LongContextsAreSplitAndCombined) {
  WorkPool pool(3);
  auto backend = backend_on(pool);
  const Heads h = {4, 2, 32};
  Cache cache(rng_, h, KvType::kBFloat16, 1, 6000);
  const Sequence a = make_sequence(cache, h, 2100), b = make_sequence(cache, h, 3072);
  const AttentionArgs args = scaled(h);
  step(*backend, cache, h, {{&a, 0, 2095}, {&b, 0, 3071}}, args);
  const std::vector<Part> parts = {{&a, 2095, 2100}, {&b, 3071, 3072}};
  expect_near(step(*backend, cache, h, parts, args), step(*backend, cache, h, parts, args, true),
              tolerance(h, args, 3072));
}

TEST_P(AttentionTest, WindowAndSoftcapAgreeWithTheReference) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const Heads h = {4, 2, 48};
  for (const int32_t window : {0, 1, 5, 64, 100}) {
    for (const float softcap : {0.0f, 2.0f}) {
      SCOPED_TRACE(testing::Message() << "window " << window << " softcap " << softcap);
      Cache cache(rng_, h, KvType::kFloat32, 4, 400);
      const Sequence a = make_sequence(cache, h, 230), b = make_sequence(cache, h, 1100);
      AttentionArgs args = scaled(h);
      args.sliding_window = window;
      args.softcap = softcap;
      step(*backend, cache, h, {{&a, 0, 150}, {&b, 0, 1095}}, args);
      const std::vector<Part> parts = {{&a, 150, 230}, {&b, 1095, 1100}};
      expect_near(step(*backend, cache, h, parts, args),
                  step(*backend, cache, h, parts, args, true), tolerance(h, args, 1100));
    }
  }
}

TEST_P(AttentionTest, SinksAgreeWithTheReference) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const Heads h = {6, 2, 32};
  // Scores stay within a few units: sinks far below, among and far above them.
  const std::vector<float> sinks = {-200, -1, 0, 1.5f, 4, 200};
  Cache cache(rng_, h, KvType::kFloat32, 4, 1400);
  const Sequence a = make_sequence(cache, h, 130), b = make_sequence(cache, h, 1100);
  AttentionArgs args = scaled(h);
  args.sinks = sinks.data();
  step(*backend, cache, h, {{&a, 0, 60}, {&b, 0, 1095}}, args);
  const std::vector<Part> parts = {{&a, 60, 130}, {&b, 1095, 1100}};
  const std::vector<float> out = step(*backend, cache, h, parts, args);
  expect_near(out, step(*backend, cache, h, parts, args, true), tolerance(h, args, 1100));
  args.sinks = nullptr;
  const std::vector<float> without = step(*backend, cache, h, parts, args);
  EXPECT_EQ(std::memcmp(out.data(), without.data(), 32 * sizeof(float)), 0);  // of weight 0
  EXPECT_NE(std::memcmp(out.data() + 32, without.data() + 32, 32 * sizeof(float)), 0);
}

// Keys that are values too, wider than any plain head: what latent attention caches.
TEST_P(AttentionTest, OnePlaneServesForBoth) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const Heads h = {16, 1, 576};
  Cache two(rng_, h, KvType::kBFloat16, 1, 400), one(rng_, h, KvType::kBFloat16, 1, 400);
  Sequence s = make_sequence(two, h, 130);
  s.v = s.k;
  const AttentionArgs args = scaled(h);
  step(*backend, two, h, {{&s, 0, 125}}, args);
  const std::vector<float> expected = step(*backend, two, h, {{&s, 125, 130}}, args);
  one.share_planes();
  step(*backend, one, h, {{&s, 0, 125}}, args);
  const std::vector<float> out = step(*backend, one, h, {{&s, 125, 130}}, args);
  EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0);
  expect_near(out, step(*backend, one, h, {{&s, 125, 130}}, args, true), tolerance(h, args, 130));
}

// The requirement that greedy output stands on: every query alone, token by token on one thread,
// against chunks of all sizes in company on several.
TEST_P(AttentionTest, AQueryIsTheSameInAnyBatchChunkingPageSizeAndThreads) {
  const Heads h = {6, 2, 32};
  for (const int32_t window : {0, 90}) {
    AttentionArgs args = scaled(h);
    args.sliding_window = window;
    const int32_t tokens = 1100;
    Sequence first;
    std::vector<float> alone;
    const int64_t width = static_cast<int64_t>(h.heads) * h.head_dim;
    for (int threads = 1; threads <= 4; ++threads) {
      WorkPool pool(threads);
      auto backend = backend_on(pool);
      const int32_t page_size = threads == 1 ? 1 : static_cast<int32_t>(rng_.between(1, 40));
      Cache cache(rng_, h, KvType::kBFloat16, page_size, 3 * tokens);
      Sequence s = threads == 1 ? make_sequence(cache, h, tokens) : first;
      if (threads == 1) {
        first = s;
        for (int32_t i = 0; i < tokens; ++i) {
          const std::vector<float> out = step(*backend, cache, h, {{&s, i, i + 1}}, args);
          alone.insert(alone.end(), out.begin(), out.end());
        }
        continue;
      }
      s.pages = cache.take_pages(tokens);
      const Sequence other = make_sequence(cache, h, 500);
      for (int32_t begin = 0, other_begin = 0; begin < tokens;) {
        const int32_t end =
            std::min<int32_t>(tokens, begin + static_cast<int32_t>(rng_.between(1, 250)));
        const int32_t other_end =
            std::min<int32_t>(500, other_begin + static_cast<int32_t>(rng_.between(1, 40)));
        std::vector<Part> parts = {{&s, begin, end}};
        if (other_end > other_begin) parts.insert(parts.begin(), {&other, other_begin, other_end});
        const std::vector<float> out = step(*backend, cache, h, parts, args);
        const float* mine = out.data() + (other_end - other_begin) * width;
        for (int32_t i = begin; i < end; ++i) {
          ASSERT_EQ(std::memcmp(mine + (i - begin) * width, alone.data() + i * width,
                                static_cast<size_t>(width) * sizeof(float)),
                    0)
              << "token " << i << " of chunk " << begin << "-" << end << " on " << threads
              << " threads, pages of " << page_size << ", window " << window;
        }
        begin = end;
        other_begin = other_end;
      }
    }
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  WorkPool pool(1);
  auto backend = backend_on(pool);
  const Heads h = {2, 1, 16};
  Cache cache(rng_, h, KvType::kFloat32, 1, 200);
  Sequence s = make_sequence(cache, h, 150);
  for (float& value : s.q) value *= 1000;
  AttentionArgs args = scaled(h);
  step(*backend, cache, h, {{&s, 0, 149}}, args);
  const std::vector<float> out = step(*backend, cache, h, {{&s, 149, 150}}, args);
  for (float value : out) ASSERT_TRUE(std::isfinite(value));
}

TEST_P(AttentionTest, ANanStaysInItsSequence) {
  WorkPool pool(2);
  auto backend = backend_on(pool);
  const Heads h = {4, 2, 32};
  Cache cache(rng_, h, KvType::kFloat32, 1, 400);
  Sequence sick = make_sequence(cache, h, 100);
  const Sequence well = make_sequence(cache, h, 100);
  sick.k[40] = std::nanf("");
  const std::vector<float> out =
      step(*backend, cache, h, {{&sick, 0, 100}, {&well, 0, 100}}, scaled(h));
  const size_t half = out.size() / 2;
  EXPECT_TRUE(std::any_of(out.begin(), out.begin() + static_cast<int64_t>(half),
                          [](float value) { return std::isnan(value); }));
  for (size_t i = half; i < out.size(); ++i) ASSERT_TRUE(std::isfinite(out[i]));
}

ESP_EACH_ISA(AttentionTest);

}  // namespace
}  // namespace espalier::kernels
