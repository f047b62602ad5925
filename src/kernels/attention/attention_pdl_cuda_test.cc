// Decode steps with programmatic dependent launch against the same steps with each kernel after the
// other: new keys appended, attention over the pages, step after step, entries and plans changing.
// Where attention prefetches cached keys before it waits, the bits are the same only if every key
// it reads early is complete.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/attention/cuda.h"
#include "kernels/cuda/test_device.h"
#include "kernels/kv_append/cuda.h"
#include "kernels/random/cuda.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;

struct Shape {
  int dim, kv_heads, group, page_size;
  int window = 0;
  int shared = 0;  // positions that all sequences share in the same pages; or 0
};
constexpr int kSteps = 12, kLayers = 3;

class CudaPdlAttention : public test::OnDevice {
 protected:
  // One step's entries on the device.
  struct Step {
    std::vector<int32_t> sequences;  // of each entry
    DeviceArray<int32_t> query_begin, prefix_len, page_begin, num_segments, members, memberships,
        own_begin;
    DeviceArray<cuda::SharedSegment> segments;
  };

  struct Model {
    Shape shape;
    int width = 0;      // of a token's keys
    int max_pages = 0;  // of a sequence
    int64_t plane = 0;  // elements of a layer's keys, and of its values
    std::vector<Step> steps;
    DeviceArray<int32_t> page_tables;
    DeviceArray<BFloat16> q, new_rows;  // [steps][layers][entries][...], random
  };

  // Sequences come and go from step to step; each sequence of a step gets one token.
  Model make(const Shape& shape, std::vector<int> lengths) {
    const auto num = static_cast<int>(lengths.size());
    const int longest = *std::ranges::max_element(lengths) + kSteps;
    const int max_pages = (longest + shape.page_size - 1) / shape.page_size;
    std::vector<int32_t> tables(static_cast<size_t>(num * max_pages));
    std::iota(tables.begin(), tables.end(), 0);
    for (size_t i = tables.size(); i > 1; --i) std::swap(tables[i - 1], tables[rng_.below(i)]);
    for (int s = 1; s < num; ++s)
      std::copy_n(tables.begin(), shape.shared / shape.page_size, tables.begin() + s * max_pages);
    const int width = shape.kv_heads * shape.dim;
    std::vector<Step> steps;
    for (int step = 0; step < kSteps; ++step) steps.push_back(make_step(shape, max_pages, lengths));
    const int64_t rows = int64_t{kSteps} * kLayers * num;
    const int64_t plane = int64_t{num} * max_pages * shape.page_size * width;
    return {.shape = shape,
            .width = width,
            .max_pages = max_pages,
            .plane = plane,
            .steps = std::move(steps),
            .page_tables = DeviceArray<int32_t>(tables),
            .q = drawn(rows * width * shape.group, 1),
            .new_rows = drawn(rows * 2 * width, 2)};
  }

  static DeviceArray<BFloat16> drawn(int64_t count, uint64_t key) {
    DeviceArray<BFloat16> values(static_cast<size_t>(count));
    EXPECT_TRUE(
        cuda::draw({.type = DType::kBFloat16, .out = values.get(), .count = count, .key = key}, {})
            .ok());
    return values;
  }

  Step make_step(const Shape& shape, int max_pages, std::vector<int>& lengths) {
    std::vector<int32_t> sequences, begins{0}, prefixes, page_begins;
    for (size_t s = 0; s < lengths.size(); ++s)
      if (s < 2 || rng_.below(4) != 0) sequences.push_back(static_cast<int32_t>(s));
    for (size_t i = sequences.size(); i > 1; --i)
      std::swap(sequences[i - 1], sequences[rng_.below(i)]);
    for (const int32_t s : sequences) {
      begins.push_back(begins.back() + 1);
      prefixes.push_back(lengths[static_cast<size_t>(s)]++);
      page_begins.push_back(s * max_pages);
    }
    const size_t entries = sequences.size();
    std::vector<int32_t> members(entries), memberships(entries * 2 * cuda::kSegmentsPerEntry, -1);
    std::iota(members.begin(), members.end(), 0);
    for (size_t i = 0; i < entries; ++i) {
      memberships[i * 2 * cuda::kSegmentsPerEntry] = 0;
      memberships[i * 2 * cuda::kSegmentsPerEntry + 1] = static_cast<int32_t>(i);
    }
    const std::vector<cuda::SharedSegment> segments{{.end = shape.shared,
                                                     .page_begin = page_begins[0],
                                                     .num_members = static_cast<int32_t>(entries)}};
    return {sequences,
            DeviceArray<int32_t>(begins),
            DeviceArray<int32_t>(prefixes),
            DeviceArray<int32_t>(page_begins),
            DeviceArray<int32_t>(std::vector<int32_t>{1}),
            DeviceArray<int32_t>(members),
            DeviceArray<int32_t>(memberships),
            DeviceArray<int32_t>(std::vector<int32_t>(entries, shape.shared)),
            DeviceArray<cuda::SharedSegment>(segments)};
  }

  static cuda::EntryArrays entries_of(const Model& m, const Step& step) {
    const auto entries = static_cast<int32_t>(step.sequences.size());
    cuda::EntryArrays arrays{.query_begin = step.query_begin.get(),
                             .prefix_len = step.prefix_len.get(),
                             .page_begin = step.page_begin.get(),
                             .page_tables = m.page_tables.get(),
                             .num_entries = entries,
                             .num_tokens = entries,
                             .max_query_tokens = 1};
    if (m.shape.shared > 0)
      arrays.shared = {step.num_segments.get(), step.segments.get(), step.members.get(),
                       step.memberships.get(), step.own_begin.get()};
    return arrays;
  }

  // The output of all layers of all steps, as bits.
  static std::vector<BFloat16> run(const Model& m, bool pdl) {
    const Shape& shape = m.shape;
    const auto num = static_cast<int32_t>(m.page_tables.size()) / m.max_pages;
    const int heads = shape.kv_heads * shape.group;
    const cuda::AttentionShape planned{.num_heads = heads,
                                       .num_kv_heads = shape.kv_heads,
                                       .head_dim = shape.dim,
                                       .page_size = shape.page_size,
                                       .sliding_window = shape.window};
    const auto bytes = cuda::attention_workspace_bytes(planned, num, num);
    EXPECT_TRUE(bytes);
    const DeviceArray<uint8_t> workspace(*bytes);
    const DeviceArray<int32_t> kv_rows(static_cast<size_t>(num));
    const DeviceArray<BFloat16> pages = drawn(2 * kLayers * m.plane, 3);
    const int64_t q_width = int64_t{heads} * shape.dim;
    DeviceArray<BFloat16> out(m.q.size());
    cudaMemset(out.get(), 0, out.size() * 2);
    const auto must = [](const Status& status) { ASSERT_TRUE(status.ok()) << status.message(); };
    const cuda::LaunchOptions pdl_launch{.pdl = pdl};
    for (size_t at = 0; at < m.steps.size(); ++at) {
      const cuda::EntryArrays entries = entries_of(m, m.steps[at]);
      must(cuda::attention_plan(planned, entries, workspace.get(), *bytes, pdl_launch));
      // After the plan's end, as AttentionArgs::prefetch_cached_kv requires.
      must(cuda::token_rows(
          {.entries = entries, .page_size = shape.page_size, .kv_rows = kv_rows.get()}, {}));
      for (int layer = 0; layer < kLayers; ++layer) {
        const int64_t row = (static_cast<int64_t>(at) * kLayers + layer) * num;
        const BFloat16* new_rows = m.new_rows.get() + row * 2 * m.width;
        BFloat16* k = pages.get() + 2 * layer * m.plane;
        const cuda::KvPlanes kv{.k = k,
                                .v = k + m.plane,
                                .page_size = shape.page_size,
                                .num_kv_heads = shape.kv_heads,
                                .head_dim = shape.dim,
                                .page_stride = int64_t{shape.page_size} * m.width,
                                .token_stride = m.width,
                                .head_stride = shape.dim};
        must(cuda::qk_rope_append({.k = new_rows,
                                   .k_stride = 2 * m.width,
                                   .v = new_rows + m.width,
                                   .v_stride = 2 * m.width,
                                   .tokens = entries.num_tokens,
                                   .kv = kv,
                                   .kv_rows = kv_rows.get()},
                                  pdl_launch));
        must(cuda::attention({.shape = planned,
                              .entries = entries,
                              .kv = kv,
                              .q = m.q.get() + row * q_width,
                              .q_stride = q_width,
                              .out = out.get() + row * q_width,
                              .out_stride = q_width,
                              .scale = 1 / std::sqrt(static_cast<float>(shape.dim)),
                              .workspace = workspace.get(),
                              .workspace_bytes = *bytes,
                              .prefetch_cached_kv = pdl},
                             pdl_launch));
      }
    }
    return out.read();
  }

  void check(const Shape& shape, const std::vector<int>& lengths) {
    SCOPED_TRACE(fmt::format("dim {}, group {}, pages of {}, window {}, {} shared, {} sequences",
                             shape.dim, shape.group, shape.page_size, shape.window, shape.shared,
                             lengths.size()));
    const Model m = make(shape, lengths);
    const std::vector<BFloat16> want = run(m, false), got = run(m, true);
    ASSERT_EQ(got.size(), want.size());
    int64_t differ = 0;
    for (size_t i = 0; i < got.size(); ++i) differ += got[i].bits != want[i].bits ? 1 : 0;
    EXPECT_EQ(differ, 0);
  }
};

TEST_F(CudaPdlAttention, CachedKeysAreThoseOfTheStepsBefore) {
  check({.dim = 128, .kv_heads = 2, .group = 4, .page_size = 1}, {900, 3, 64, 500, 15, 16, 0});
  check({.dim = 128, .kv_heads = 8, .group = 4, .page_size = 1}, std::vector<int>(16, 1000));
  check({.dim = 64, .kv_heads = 2, .group = 1, .page_size = 16}, {31, 32, 33, 47, 48, 49, 1, 0});
  check({.dim = 256, .kv_heads = 1, .group = 16, .page_size = 16, .window = 70},
        {900, 3, 64, 500, 130, 79, 80});
}

TEST_F(CudaPdlAttention, CachedKeysThatEntriesShareToo) {
  for (const int dim : {64, 128})
    check({.dim = dim, .kv_heads = 2, .group = 4, .page_size = 1, .shared = 600},
          {600, 601, 640, 700, 731, 732, 733, 900, 1000});
  std::vector<int> lengths;
  for (int i = 0; i < 100; ++i) lengths.push_back(512 + static_cast<int>(rng_.below(300)));
  check({.dim = 128, .kv_heads = 2, .group = 8, .page_size = 16, .shared = 512}, lengths);
}

}  // namespace
}  // namespace espalier::kernels
