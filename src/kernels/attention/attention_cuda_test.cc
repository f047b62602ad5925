// Attention on the GPU against the slow reference, over a table of shapes and random entries.
#include "kernels/attention/cuda.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kernels/attention/op.h"
#include "kernels/cuda/test_device.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;

struct EntryLength {
  int prefix, tokens;
};

// Random queries and pages for some entries, on both sides.
struct Problem {
  KvView view;
  std::vector<BatchEntry> entries;
  std::vector<PageId> pages;
  std::vector<float> q;
  std::vector<BFloat16> k, v;
  std::vector<float> sinks;
  int tokens = 0;
  std::vector<int32_t> begins{0}, prefixes, page_begins;
};

class CudaAttention : public test::OnDevice {
 protected:
  struct Shape {
    int dim, kv_heads, group, page_size;
    int window = 0;
    float softcap = 0;
    bool sinks = false;
    DType type = DType::kBFloat16;
    int fixed_split = 0;
    bool latent = false;    // keys are values too, in one plane
    bool in_order = false;  // pages follow each other in memory
    bool with_new = false;  // new keys and values are given besides their pages
    float later_keys = 1;   // keys from position 300 on are so much larger, from 600 on twice that
    bool e4m3 = false;      // keys and values, in pages of one byte an element
    int widened = 0;        // AttentionShape::widened_positions
  };

  // Pages are drawn from a pool without order, each used once.
  Problem make(const Shape& shape, const std::vector<EntryLength>& lengths) {
    Problem p;
    const int heads = shape.kv_heads * shape.group;
    int num_pages = 3;
    for (const EntryLength& entry : lengths)
      num_pages += (entry.prefix + entry.tokens + shape.page_size - 1) / shape.page_size;
    std::vector<PageId> free(static_cast<size_t>(num_pages));
    std::iota(free.begin(), free.end(), 0);
    for (size_t i = free.size(); i > 1; --i) std::swap(free[i - 1], free[rng_.below(i)]);
    if (shape.in_order) std::ranges::sort(free, std::greater());
    for (const EntryLength& entry : lengths) {
      const int needed = (entry.prefix + entry.tokens + shape.page_size - 1) / shape.page_size;
      p.entries.push_back({.num_query_tokens = entry.tokens,
                           .prefix_len = entry.prefix,
                           .query_begin = p.tokens,
                           .page_begin = static_cast<int32_t>(p.pages.size()),
                           .num_pages = needed});
      p.prefixes.push_back(entry.prefix);
      p.page_begins.push_back(static_cast<int32_t>(p.pages.size()));
      for (int i = 0; i < needed; ++i) {
        p.pages.push_back(free.back());
        free.pop_back();
      }
      p.pages.push_back(-1);  // a gap
      p.tokens += entry.tokens;
      p.begins.push_back(p.tokens);
    }
    const int64_t token_stride = shape.kv_heads * shape.dim;
    const auto elements = static_cast<size_t>(num_pages * shape.page_size * token_stride);
    p.k.resize(elements), p.v.resize(elements);
    for (size_t i = 0; i < elements; ++i) {
      // Uniform values of deviation 1: cheap, and as good as normal ones here.
      p.k[i] = to_bfloat16(static_cast<float>(3.46 * (rng_.uniform() - 0.5)));
      p.v[i] = to_bfloat16(static_cast<float>(3.46 * (rng_.uniform() - 0.5)));
    }
    if (shape.latent) std::ranges::copy(p.k, p.v.begin());
    if (shape.later_keys != 1) enlarge_later_keys(shape, token_stride, p);
    if (shape.e4m3)
      for (auto* plane : {&p.k, &p.v})
        for (BFloat16& value : *plane)
          value = to_bfloat16(test::of_e4m3(test::to_e4m3(to_float(value))));
    p.q = test::random_floats(rng_, int64_t{p.tokens} * heads * shape.dim, 1.5);
    for (float& value : p.q) value = to_float(to_bfloat16(value));
    if (shape.sinks) p.sinks = test::random_floats(rng_, heads, 2.0);
    p.view = {.layers = {{.k = p.k.data(),
                          .v = p.v.data(),
                          .num_pages = num_pages,
                          .num_kv_heads = shape.kv_heads,
                          .head_dim = shape.dim,
                          .page_stride = shape.page_size * token_stride,
                          .token_stride = token_stride,
                          .head_stride = shape.dim}},
              .page_size = shape.page_size};
    return p;
  }

  static void enlarge_later_keys(const Shape& shape, int64_t token_stride, Problem& p) {
    for (const BatchEntry& entry : p.entries)
      for (int position = 300; position < entry.prefix_len + entry.num_query_tokens; ++position) {
        const auto page =
            p.pages[static_cast<size_t>(entry.page_begin + position / shape.page_size)];
        const float by = position < 600 ? shape.later_keys : 2 * shape.later_keys;
        const auto key =
            p.k.begin() + (page * shape.page_size + position % shape.page_size) * token_stride;
        std::transform(key, key + token_stride, key,
                       [&](BFloat16 value) { return to_bfloat16(to_float(value) * by); });
      }
  }

  // [tokens, kv_heads, dim] of the entries' new tokens, with a gap behind each token's heads.
  static constexpr int kNewGap = 8;
  static std::vector<BFloat16> new_rows(const Shape& shape, const Problem& p,
                                        const std::vector<BFloat16>& plane) {
    const int width = shape.kv_heads * shape.dim;
    std::vector<BFloat16> rows(static_cast<size_t>(p.tokens * (width + kNewGap)));
    for (const BatchEntry& entry : p.entries)
      for (int t = 0; t < entry.num_query_tokens; ++t) {
        const int position = entry.prefix_len + t;
        const auto page =
            p.pages[static_cast<size_t>(entry.page_begin + position / shape.page_size)];
        std::copy_n(plane.begin() + page * p.view.layer(0).page_stride +
                        position % shape.page_size * p.view.layer(0).token_stride,
                    width, rows.begin() + int64_t{entry.query_begin + t} * (width + kNewGap));
      }
    return rows;
  }

  // A sink is a key of that score without a value.
  static void scale_by_sinks(const Shape& shape, const Problem& p, float scale,
                             std::vector<float>& out) {
    const int heads = shape.kv_heads * shape.group;
    const auto key = [&](const BatchEntry& entry, int position, int head, int i) {
      const auto page = p.pages[static_cast<size_t>(entry.page_begin + position / shape.page_size)];
      return to_float(
          p.k[static_cast<size_t>(page * p.view.layer(0).page_stride +
                                  position % shape.page_size * p.view.layer(0).token_stride +
                                  head / shape.group * shape.dim + i)]);
    };
    for (const BatchEntry& entry : p.entries)
      for (int t = 0; t < entry.num_query_tokens; ++t)
        for (int head = 0; head < heads; ++head) {
          const size_t row = static_cast<size_t>((entry.query_begin + t) * heads + head) *
                             static_cast<size_t>(shape.dim);
          double sum = 0;
          const int last = entry.prefix_len + t;
          const int first = shape.window > 0 ? std::max(0, last - shape.window + 1) : 0;
          for (int position = first; position <= last; ++position) {
            double score = 0;
            for (int i = 0; i < shape.dim; ++i)
              score += p.q[row + static_cast<size_t>(i)] * key(entry, position, head, i);
            score *= scale;
            if (shape.softcap > 0) score = shape.softcap * std::tanh(score / shape.softcap);
            sum += std::exp(score);
          }
          const double keep = sum / (sum + std::exp(p.sinks[static_cast<size_t>(head)]));
          for (int i = 0; i < shape.dim; ++i)
            out[row + static_cast<size_t>(i)] *= static_cast<float>(keep);
        }
  }

  std::vector<float> reference_of(const Shape& shape, Problem& p, float scale) {
    const int heads = shape.kv_heads * shape.group;
    std::vector<float> want(p.q.size());
    reference::attention({.q = p.q.data(),
                          .q_stride = heads * shape.dim,
                          .out = want.data(),
                          .out_stride = heads * shape.dim,
                          .heads = heads,
                          .entries = p.entries,
                          .page_tables = p.pages,
                          .kv = &p.view,
                          .scale = scale,
                          .sliding_window = shape.window,
                          .softcap = shape.softcap});
    if (shape.sinks) scale_by_sinks(shape, p, scale, want);
    return want;
  }

  // A shared prefix segment: positions that some entries have in the same pages. An entry's
  // segments are adjacent.
  struct Segment {
    int begin, end;
    std::vector<int> entries;
  };

  // Gives the entries of each segment the pages of its first entry.
  static void share_pages(const Shape& shape, const std::vector<Segment>& segments, Problem& p) {
    for (const Segment& segment : segments)
      for (const int entry : segment.entries)
        for (int i = segment.begin / shape.page_size; i < segment.end / shape.page_size; ++i)
          p.pages[static_cast<size_t>(p.page_begins[static_cast<size_t>(entry)] + i)] =
              p.pages[static_cast<size_t>(p.page_begins[static_cast<size_t>(segment.entries[0])] +
                                          i)];
  }

  // The segments as the kernels take them.
  struct SharedOnDevice {
    std::vector<cuda::SharedSegment> segments;
    std::vector<int32_t> members, memberships, own_begins;
    std::vector<DeviceArray<int32_t>> arrays;
    std::vector<DeviceArray<cuda::SharedSegment>> segment_array;

    SharedOnDevice(const std::vector<Segment>& given, const Problem& p) {
      const size_t entries = p.prefixes.size();
      const auto levels = static_cast<size_t>(cuda::kSegmentsPerEntry);
      memberships.assign(entries * levels * 2, -1);
      own_begins.assign(entries, 0);
      for (size_t r = 0; r < given.size(); ++r) {
        segments.push_back({.begin = given[r].begin,
                            .end = given[r].end,
                            .page_begin = p.page_begins[static_cast<size_t>(given[r].entries[0])],
                            .first_member = static_cast<int32_t>(members.size()),
                            .num_members = static_cast<int32_t>(given[r].entries.size())});
        for (size_t i = 0; i < given[r].entries.size(); ++i) {
          const auto entry = static_cast<size_t>(given[r].entries[i]);
          size_t at = entry * levels * 2;
          while (memberships[at] >= 0) at += 2;
          memberships[at] = static_cast<int32_t>(r);
          memberships[at + 1] = static_cast<int32_t>(i);
          own_begins[entry] = given[r].end;
          members.push_back(static_cast<int32_t>(entry));
        }
      }
      arrays.emplace_back(std::vector<int32_t>{static_cast<int32_t>(segments.size())});
      arrays.emplace_back(members);
      arrays.emplace_back(memberships);
      arrays.emplace_back(own_begins);
      segment_array.emplace_back(segments);
    }
    cuda::SharedSegments view() const {
      return {arrays[0].get(), segment_array[0].get(), arrays[1].get(), arrays[2].get(),
              arrays[3].get()};
    }
  };

  // `padding`: entries without tokens behind the others, as in a graph captured for more.
  void check(const Shape& shape, const std::vector<EntryLength>& lengths, int padding = 0,
             bool overlap = false, const std::vector<Segment>& segments = {}) {
    SCOPED_TRACE(fmt::format(
        "dim {}, kv heads {}, group {}, pages of {}, window {}, softcap {}, "
        "sinks {}, {} entries from {}+{}",
        shape.dim, shape.kv_heads, shape.group, shape.page_size, shape.window, shape.softcap,
        shape.sinks, lengths.size(), lengths[0].prefix, lengths[0].tokens));
    Problem p = make(shape, lengths);
    share_pages(shape, segments, p);
    const int heads = shape.kv_heads * shape.group;
    const float scale = 1 / std::sqrt(static_cast<float>(shape.dim));
    const std::vector<float> want = reference_of(shape, p, scale);
    for (int i = 0; i < padding; ++i) {
      p.begins.push_back(p.tokens);
      p.prefixes.push_back(0);
      p.page_begins.push_back(0);
    }
    int most = 0;
    for (const EntryLength& entry : lengths) most = std::max(most, entry.tokens);
    const DeviceArray<int32_t> begins(p.begins), prefixes(p.prefixes), page_begins(p.page_begins),
        pages(p.pages);
    const bool half = shape.type == DType::kBFloat16;
    const DeviceArray<float> k32(half ? std::vector<float>() : test::to_floats(p.k)),
        v32(half ? std::vector<float>() : test::to_floats(p.v)), q32(p.q), sinks(p.sinks);
    const DeviceArray<BFloat16> k(p.k), v(p.v), q(test::to_bfloat16s(p.q));
    const DeviceArray<uint8_t> k8(codes_of(shape, p.k)), v8(codes_of(shape, p.v));
    const DeviceArray<BFloat16> new_keys(new_rows(shape, p, p.k)),
        new_values(new_rows(shape, p, p.v));
    DeviceArray<BFloat16> out(p.q.size());
    DeviceArray<float> out32(p.q.size());
    const cuda::AttentionShape planned{.num_heads = heads,
                                       .num_kv_heads = shape.kv_heads,
                                       .head_dim = shape.dim,
                                       .page_size = shape.page_size,
                                       .sliding_window = shape.window,
                                       .type = shape.type,
                                       .kv_e4m3 = shape.e4m3,
                                       .widened_positions = shape.widened,
                                       .fixed_split = shape.fixed_split,
                                       .max_context = longest(lengths)};
    const SharedOnDevice shared(segments, p);
    const cuda::EntryArrays entries{
        .query_begin = begins.get(),
        .prefix_len = prefixes.get(),
        .page_begin = page_begins.get(),
        .page_tables = pages.get(),
        .num_entries = static_cast<int32_t>(p.prefixes.size()),
        .num_tokens = p.tokens + padding,
        .max_query_tokens = most,
        .shared = segments.empty() ? cuda::SharedSegments() : shared.view()};
    const auto bytes =
        cuda::attention_workspace_bytes(planned, entries.num_entries, entries.num_tokens);
    ASSERT_TRUE(bytes);
    const DeviceArray<uint8_t> workspace(*bytes);
    const cuda::LaunchOptions launch{.pdl = overlap};
    Status status = cuda::attention_plan(planned, entries, workspace.get(), *bytes, launch);
    ASSERT_TRUE(status.ok()) << status.message();
    const cuda::AttentionArgs args{.shape = planned,
                                   .entries = entries,
                                   .kv = {.type = shape.e4m3 ? KvType::kFloat8E4M3
                                                  : half     ? KvType::kBFloat16
                                                             : KvType::kFloat32,
                                          .k = shape.e4m3 ? static_cast<void*>(k8.get())
                                               : half     ? static_cast<void*>(k.get())
                                                          : k32.get(),
                                          .v = shape.e4m3     ? static_cast<void*>(v8.get())
                                               : shape.latent ? static_cast<void*>(k.get())
                                               : half         ? static_cast<void*>(v.get())
                                                              : v32.get(),
                                          .page_size = shape.page_size,
                                          .num_kv_heads = shape.kv_heads,
                                          .head_dim = shape.dim,
                                          .page_stride = p.view.layer(0).page_stride,
                                          .token_stride = p.view.layer(0).token_stride,
                                          .head_stride = p.view.layer(0).head_stride},
                                   .new_keys = shape.with_new ? new_keys.get() : nullptr,
                                   .new_values = shape.with_new ? new_values.get() : nullptr,
                                   .new_kv_stride = shape.kv_heads * shape.dim + kNewGap,
                                   .q = half ? static_cast<const void*>(q.get()) : q32.get(),
                                   .q_stride = heads * shape.dim,
                                   .out = half ? static_cast<void*>(out.get()) : out32.get(),
                                   .out_stride = heads * shape.dim,
                                   .scale = scale,
                                   .softcap = shape.softcap,
                                   .sinks = shape.sinks ? sinks.get() : nullptr,
                                   .workspace = workspace.get(),
                                   .workspace_bytes = *bytes};
    for (int layer = 0; layer < 2; ++layer) {  // a plan serves all layers
      status = cuda::attention(args, launch);
      ASSERT_TRUE(status.ok()) << status.message();
    }
    const auto got = half ? test::to_floats(out.read()) : out32.read();
    // Weights and outputs are rounded to bfloat16; outputs of long entries are small, their errors
    // are relative to their size all the same.
    EXPECT_LT(test::relative_error(got, want), half ? 0.006 : 1e-5);
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i)
      worst = std::max(worst, std::abs(double{got[i]} - want[i]));
    EXPECT_LT(worst, half ? 0.05 : 1e-4);
  }

  // The codes of a plane's values; one byte where the shape has none.
  static std::vector<uint8_t> codes_of(const Shape& shape, const std::vector<BFloat16>& plane) {
    std::vector<uint8_t> codes(shape.e4m3 ? plane.size() : 1);
    if (shape.e4m3)
      std::ranges::transform(plane, codes.begin(),
                             [](BFloat16 value) { return test::to_e4m3(to_float(value)); });
    return codes;
  }

  static int longest(const std::vector<EntryLength>& lengths) {
    int most = 0;
    for (const EntryLength& entry : lengths) most = std::max(most, entry.prefix + entry.tokens);
    return most;
  }

  // One prompt's output where its tokens are cut into entries that begin at `cuts`, all in one
  // step; `before` entries of other lengths precede it on the same pages, and their output is
  // dropped.
  std::vector<float> in_chunks(const Shape& shape, const Problem& p, const std::vector<int>& cuts,
                               const std::vector<int>& before) {
    const int heads = shape.kv_heads * shape.group, width = heads * shape.dim;
    std::vector<int32_t> begins{0}, prefixes;
    std::vector<BFloat16> queries;
    const auto whole = test::to_bfloat16s(p.q);
    for (const int prefix : before) {
      prefixes.push_back(prefix);
      begins.push_back(begins.back() + 1);
      queries.insert(queries.end(), whole.begin(), whole.begin() + width);
    }
    for (size_t i = 0; i < cuts.size(); ++i) {
      const int end = i + 1 < cuts.size() ? cuts[i + 1] : p.tokens;
      prefixes.push_back(cuts[i]);
      begins.push_back(begins.back() + end - cuts[i]);
    }
    queries.insert(queries.end(), whole.begin(), whole.end());
    int most = 0;
    for (size_t i = 1; i < begins.size(); ++i) most = std::max(most, begins[i] - begins[i - 1]);
    const DeviceArray<int32_t> begin_array(begins), prefix_array(prefixes),
        page_begins(std::vector<int32_t>(prefixes.size(), 0)), pages(p.pages);
    const DeviceArray<BFloat16> k(p.k), v(p.v), q(queries);
    const DeviceArray<float> sinks(p.sinks);
    DeviceArray<BFloat16> out(queries.size());
    const cuda::AttentionShape planned{.num_heads = heads,
                                       .num_kv_heads = shape.kv_heads,
                                       .head_dim = shape.dim,
                                       .page_size = shape.page_size,
                                       .sliding_window = shape.window,
                                       .fixed_split = shape.fixed_split,
                                       .max_context = p.tokens};
    const cuda::EntryArrays entries{.query_begin = begin_array.get(),
                                    .prefix_len = prefix_array.get(),
                                    .page_begin = page_begins.get(),
                                    .page_tables = pages.get(),
                                    .num_entries = static_cast<int32_t>(prefixes.size()),
                                    .num_tokens = begins.back(),
                                    .max_query_tokens = most};
    const auto bytes =
        cuda::attention_workspace_bytes(planned, entries.num_entries, entries.num_tokens);
    EXPECT_TRUE(bytes);
    const DeviceArray<uint8_t> workspace(*bytes);
    EXPECT_TRUE(cuda::attention_plan(planned, entries, workspace.get(), *bytes, {}).ok());
    EXPECT_TRUE(cuda::attention({.shape = planned,
                                 .entries = entries,
                                 .kv = {.k = k.get(),
                                        .v = v.get(),
                                        .page_size = shape.page_size,
                                        .num_kv_heads = shape.kv_heads,
                                        .head_dim = shape.dim,
                                        .page_stride = p.view.layer(0).page_stride,
                                        .token_stride = p.view.layer(0).token_stride,
                                        .head_stride = p.view.layer(0).head_stride},
                                 .q = q.get(),
                                 .q_stride = width,
                                 .out = out.get(),
                                 .out_stride = width,
                                 .scale = 1 / std::sqrt(static_cast<float>(shape.dim)),
                                 .softcap = shape.softcap,
                                 .sinks = shape.sinks ? sinks.get() : nullptr,
                                 .workspace = workspace.get(),
                                 .workspace_bytes = *bytes},
                                {})
                    .ok());
    auto got = test::to_floats(out.read());
    got.erase(got.begin(), got.begin() + std::ssize(before) * width);
    return got;
  }

  std::vector<EntryLength> random_entries(bool decode, int most) {
    std::vector<EntryLength> lengths;
    for (int i = static_cast<int>(rng_.between(1, 5)); i > 0; --i)
      lengths.push_back({static_cast<int>(rng_.below(static_cast<uint64_t>(most))),
                         decode ? 1 : static_cast<int>(rng_.between(1, 24))});
    return lengths;
  }
};

TEST_F(CudaAttention, TableOfShapes) {
  int round = 0;
  for (const int dim : {64, 80, 96, 128, 256})
    for (const int group : {1, 2, 3, 4, 6, 8, 16})
      for (const int page_size : {1, 16, 64}) {
        Shape shape{.dim = dim, .kv_heads = 1 + round % 2, .group = group, .page_size = page_size};
        if (round % 3 == 1) shape.window = static_cast<int>(rng_.between(1, 150));
        if (round % 5 == 2) shape.softcap = 5.0f;
        shape.sinks = round % 4 == 3;
        check(shape, random_entries(round % 2 == 0, 200), round % 3, round % 2 == 1);
        ++round;
      }
}

// Adjacent rows take another path than scattered ones, and so do new ones; there is more work than
// the GPU's blocks take at once.
TEST_F(CudaAttention, PromptsFromPagesInAndOutOfOrderAndFromNewRows) {
  int round = 0;
  for (const int dim : {64, 128})
    for (const int page_size : {1, 16, 64})
      for (const bool in_order : {false, true})
        for (const bool with_new : {false, true}) {
          Shape shape{.dim = dim,
                      .kv_heads = 2,
                      .group = 1 << round % 4,
                      .page_size = page_size,
                      .window = round % 3 == 2 ? 200 : 0,
                      .softcap = round % 5 == 4 ? 5.0f : 0.0f,
                      .in_order = in_order,
                      .with_new = with_new};
          check(shape, {{0, 300}, {3, 1}, {130, 200}, {64, 33}, {0, 128}, {1000, 40}, {31, 2}},
                round % 3, round % 2 == 1);
          ++round;
        }
  std::vector<EntryLength> many;
  for (int i = 0; i < 30; ++i)
    many.push_back({static_cast<int>(rng_.below(200)), static_cast<int>(rng_.between(1, 400))});
  check({.dim = 64, .kv_heads = 8, .group = 1, .page_size = 1, .with_new = true}, many);
  check({.dim = 128, .kv_heads = 4, .group = 2, .page_size = 1, .in_order = true}, many);
}

// Entries [begin, end).
std::vector<int> entries_of(int begin, int end) {
  std::vector<int> entries(static_cast<size_t>(end - begin));
  std::iota(entries.begin(), entries.end(), begin);
  return entries;
}

// Sums weighed by scores far below the largest are rescaled, also where weights would be infinite.
TEST_F(CudaAttention, ScoresThatRiseFromBlockToBlock) {
  for (const int dim : {64, 128})
    for (const float later_keys : {3.0f, 20.0f, 100.0f})
      for (const float softcap : {0.0f, 60.0f})
        check({.dim = dim,
               .kv_heads = 2,
               .group = 4,
               .page_size = 1,
               .softcap = softcap,
               .with_new = true,
               .later_keys = later_keys},
              {{0, 900}, {700, 60}, {5, 3}});
  const Shape shape{.dim = 128, .kv_heads = 1, .group = 4, .page_size = 16, .later_keys = 20};
  check(shape, std::vector<EntryLength>(30, {900, 1}), 0, false, {{0, 896, entries_of(0, 30)}});
}

TEST_F(CudaAttention, EmptyPrefixesAndEdgesOfBlocks) {
  const Shape shape{.dim = 128, .kv_heads = 2, .group = 4, .page_size = 16};
  for (const int prefix : {0, 1, 15, 16, 62, 63, 64, 127, 128, 129}) {
    check(shape, {{prefix, 1}});
    check(shape, {{prefix, 4}, {0, 1}, {prefix, 33}});
  }
  check(shape, {{0, 1}, {0, 1}, {0, 1}}, 5);
}

TEST_F(CudaAttention, LongAndSkewedEntries) {
  const Shape shape{.dim = 128, .kv_heads = 2, .group = 2, .page_size = 16};
  check(shape, {{20000, 1}, {3, 1}, {700, 1}, {1500, 1}});
  check({.dim = 64, .kv_heads = 1, .group = 1, .page_size = 64}, {{131071, 1}, {5, 1}});
  check({.dim = 128, .kv_heads = 1, .group = 2, .page_size = 1}, {{5000, 40}, {9000, 1}});
  check({.dim = 256, .kv_heads = 1, .group = 2, .page_size = 16, .window = 300},
        {{5000, 20}, {9000, 1}});
}

TEST_F(CudaAttention, ManyEntries) {
  std::vector<EntryLength> lengths;
  for (int i = 0; i < 1500; ++i) lengths.push_back({static_cast<int>(rng_.below(40)), 1});
  check({.dim = 64, .kv_heads = 2, .group = 2, .page_size = 16}, lengths, 7);
  lengths.resize(40);
  for (auto& entry : lengths) entry = {static_cast<int>(rng_.below(400)), 1};
  lengths[17].tokens = 100;
  lengths[3].tokens = 9;
  check({.dim = 128, .kv_heads = 2, .group = 4, .page_size = 16}, lengths, 3, true);
}

TEST_F(CudaAttention, SharedSegmentsAreReadOnceForAll) {
  for (const int dim : {64, 128})
    for (const int group : {1, 3, 4, 8, 16}) {
      const Shape shape{.dim = dim,
                        .kv_heads = 2,
                        .group = group,
                        .page_size = group == 4 ? 1 : 16,
                        .softcap = group == 3 ? 5.0f : 0.0f,
                        .sinks = group == 8};
      // One segment of few rows; one that ends within a block; segments of more than a tile; two
      // levels.
      std::vector<EntryLength> lengths(6, {530, 1});
      check(shape, lengths, 2, false, {{0, 512, entries_of(1, 4)}});
      check(shape, lengths, 0, true, {{0, 16, {0, 5}}, {0, 528, {1, 3, 4}}});
      lengths.assign(70, {400, 1});
      for (size_t i = 0; i < lengths.size(); ++i) lengths[i].prefix += static_cast<int>(7 * i);
      check(shape, lengths, 1, false,
            {{0, 144, entries_of(0, 70)},
             {144, 400, entries_of(3, 36)},
             {144, 304, entries_of(40, 42)}});
    }
}

TEST_F(CudaAttention, SharedSegmentsOfManyLevelsBesideEntriesOfAllKinds) {
  const Shape shape{.dim = 128, .kv_heads = 2, .group = 4, .page_size = 1};
  std::vector<EntryLength> lengths(40, {700, 1});
  lengths[2] = {650, 40};  // a chunk of a prompt
  lengths[5] = {0, 1};
  lengths[9] = {4000, 1};
  check(shape, lengths, 4, false,
        {{0, 100, entries_of(10, 40)},
         {100, 101, entries_of(10, 30)},
         {101, 333, entries_of(12, 24)},
         {333, 700, {20, 13}},
         {0, 600, {9, 3}}});
  // One segment over many blocks of the grid, and rows of many tiles.
  std::vector<EntryLength> many(150, {6000, 1});
  for (size_t i = 0; i < many.size(); ++i) many[i].prefix += static_cast<int>(i % 5);
  check({.dim = 128, .kv_heads = 1, .group = 4, .page_size = 16}, many, 0, false,
        {{0, 5984, entries_of(0, 150)}});
}

// Multi-head latent attention (DeepSeek): one key for all heads, which is the value too.
TEST_F(CudaAttention, Latents) {
  Shape shape{.dim = 576, .kv_heads = 1, .group = 16, .page_size = 1, .latent = true};
  for (const int prefix : {0, 1, 30, 31, 32, 33, 63, 64, 100, 700, 9000})
    check(shape, {{prefix, 1}}, prefix % 3);
  check(shape, {{0, 1}, {5, 1}, {4000, 1}, {31, 1}, {128, 1}}, 3, true);
  check(shape, {{0, 130}});
  check(shape, {{77, 60}, {400, 1}, {0, 33}}, 2, true);
  shape.page_size = 16;
  check(shape, std::vector<EntryLength>(300, {50, 1}), 4);  // more rows than partial results
  shape.group = 128;                                        // DeepSeek V3's
  check(shape, {{200, 1}, {3, 1}});
  check(shape, {{40, 20}}, 1, true);
  for (const int group : {1, 8, 20, 40}) {  // a last tile of fewer than 16 heads
    shape.group = group;
    check(shape, {{100, 1}, {0, 20}}, group % 3);
    check(shape, {{9000, 1}});
    check(shape, std::vector<EntryLength>(300, {50, 1}), 4);
  }
  // Shapes that attention_mla does not support go to attention_generic.
  shape.group = 16, shape.softcap = 5;
  check(shape, {{100, 1}, {0, 20}});
}

// Prompts, chunks, decode and shared segments over codes: as exact as over bfloat16 of the same
// values.
TEST_F(CudaAttention, KeysAndValuesOfE4m3) {
  int round = 0;
  for (const int dim : {64, 128})
    for (const int group : {1, 3, 4, 8, 16})
      for (const int page_size : {1, 16}) {
        Shape shape{.dim = dim, .kv_heads = 2, .group = group, .page_size = page_size};
        shape.e4m3 = true;
        // Of all prompts, of those that come first, and of none.
        shape.widened = std::array{100000, 600, 0}[static_cast<size_t>(round % 3)];
        shape.in_order = round % 2 == 0;
        if (round % 4 == 1) shape.window = static_cast<int>(rng_.between(1, 150));
        if (round % 5 == 2) shape.softcap = 5.0f;
        shape.sinks = round % 4 == 3;
        check(shape, random_entries(true, 700), round % 3, round % 2 == 1);
        check(shape, {{0, 300}, {3, 1}, {130, 200}, {64, 33}, {0, 128}, {1000, 40}, {31, 2}},
              round % 3, round % 2 == 1);
        ++round;
      }
  Shape shape{.dim = 128, .kv_heads = 2, .group = 4, .page_size = 16};
  shape.e4m3 = true;
  check(shape, std::vector<EntryLength>(30, {900, 1}), 1, true,
        {{0, 512, entries_of(0, 30)}, {512, 896, entries_of(3, 9)}});
  for (const float later_keys : {3.0f, 20.0f}) {
    shape.later_keys = later_keys;
    check(shape, {{0, 900}, {700, 60}, {5, 3}, {2000, 1}});
  }
  check({.dim = 32, .kv_heads = 2, .group = 3, .page_size = 4, .e4m3 = true},
        random_entries(false, 100));
}

// Small weights of many keys must not be lost beside one that is large.
TEST_F(CudaAttention, LongContextsOfE4m3) {
  Shape shape{.dim = 128, .kv_heads = 1, .group = 2, .page_size = 16};
  shape.e4m3 = true;
  check(shape, {{131071, 1}, {5, 1}, {20000, 3}});
  shape.later_keys = 4;
  check(shape, {{30000, 1}});
}

TEST_F(CudaAttention, RefusesE4m3WhereNoKernelTakesIt) {
  const auto code = [](const cuda::AttentionShape& shape) {
    const auto bytes = cuda::attention_workspace_bytes(shape, 4, 4);
    return bytes ? StatusCode::kOk : bytes.error().code();
  };
  const cuda::AttentionShape taken{
      .num_heads = 8, .num_kv_heads = 2, .head_dim = 128, .kv_e4m3 = true};
  EXPECT_EQ(code(taken), StatusCode::kOk);
  cuda::AttentionShape other = taken;
  other.head_dim = 256;
  EXPECT_EQ(code(other), StatusCode::kUnimplemented);
  other.head_dim = 40;
  EXPECT_EQ(code(other), StatusCode::kUnimplemented);
  other = taken;
  other.fixed_split = 256;
  EXPECT_EQ(code(other), StatusCode::kUnimplemented);
  other = taken;
  other.type = DType::kFloat32;
  EXPECT_EQ(code(other), StatusCode::kUnimplemented);
}

TEST_F(CudaAttention, EveryOtherShapeToo) {
  check({.dim = 72, .kv_heads = 2, .group = 3, .page_size = 4}, random_entries(false, 100));
  check({.dim = 128, .kv_heads = 1, .group = 20, .page_size = 4}, random_entries(false, 100));
  check({.dim = 32,
         .kv_heads = 2,
         .group = 1,
         .page_size = 1,
         .window = 20,
         .softcap = 3.0f,
         .sinks = true,
         .type = DType::kFloat32},
        random_entries(false, 100));
}

// A prompt in one chunk, in chunks of every kind and token by token: the same bits.
TEST_F(CudaAttention, WithFixedSplitsARowDependsOnItselfAlone) {
  int round = 0;
  for (const int dim : {64, 80, 96, 128, 256})
    for (const int group : {1, 3, 4, 16}) {
      const Shape shape{.dim = dim,
                        .kv_heads = 1 + round % 2,
                        .group = group,
                        .page_size = round % 3 == 0 ? 16 : 1,
                        .window = round % 4 == 3 ? static_cast<int>(rng_.between(20, 300)) : 0,
                        .softcap = round % 5 == 2 ? 5.0f : 0.0f,
                        .sinks = round % 4 == 1,
                        .fixed_split = 64 << round % 3};
      ++round;
      check(shape, random_entries(round % 2 == 0, 400), round % 3, round % 2 == 1);
      const int tokens = static_cast<int>(rng_.between(150, 500));
      SCOPED_TRACE(fmt::format("dim {}, group {}, split {}, window {}, {} tokens", dim, group,
                               shape.fixed_split, shape.window, tokens));
      const Problem p = make(shape, {{0, tokens}});
      const std::vector<float> whole = in_chunks(shape, p, {0}, {});
      std::vector<int> alone(static_cast<size_t>(tokens)), chunks;
      std::iota(alone.begin(), alone.end(), 0);
      for (int at = 0; at < tokens; at += static_cast<int>(rng_.between(1, 40)))
        chunks.push_back(at);
      EXPECT_EQ(in_chunks(shape, p, alone, {}), whole);
      EXPECT_EQ(in_chunks(shape, p, chunks, {}), whole);
      EXPECT_EQ(in_chunks(shape, p, {0, tokens - 1}, {tokens - 1, 3, 77}), whole);
    }
}

TEST_F(CudaAttention, AGraphRunsOtherLengths) {
  const Shape shape{.dim = 128, .kv_heads = 2, .group = 4, .page_size = 16};
  const int heads = 8, most = 4;
  const float scale = 0.09f;
  Problem p = make(shape, {{900, 1}, {900, 1}, {900, 1}, {900, 1}});
  const DeviceArray<BFloat16> k(p.k), v(p.v), q(test::to_bfloat16s(p.q));
  DeviceArray<BFloat16> out(p.q.size());
  DeviceArray<int32_t> begins(p.begins), prefixes(p.prefixes), page_begins(p.page_begins),
      pages(p.pages);
  const cuda::AttentionShape planned{
      .num_heads = heads, .num_kv_heads = 2, .head_dim = 128, .page_size = 16};
  const cuda::EntryArrays entries{
      begins.get(), prefixes.get(), page_begins.get(), pages.get(), most, most, 1};
  const auto bytes = cuda::attention_workspace_bytes(planned, most, most);
  ASSERT_TRUE(bytes);
  const DeviceArray<uint8_t> workspace(*bytes);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  const cuda::LaunchOptions launch{stream, true};
  const auto step = [&] {
    Status planning = cuda::attention_plan(planned, entries, workspace.get(), *bytes, launch);
    if (!planning.ok()) return planning;
    return cuda::attention({.shape = planned,
                            .entries = entries,
                            .kv = {.k = k.get(),
                                   .v = v.get(),
                                   .page_size = 16,
                                   .num_kv_heads = 2,
                                   .head_dim = 128,
                                   .page_stride = p.view.layer(0).page_stride,
                                   .token_stride = p.view.layer(0).token_stride,
                                   .head_stride = 128},
                            .q = q.get(),
                            .q_stride = heads * 128,
                            .out = out.get(),
                            .out_stride = heads * 128,
                            .scale = scale,
                            .workspace = workspace.get(),
                            .workspace_bytes = *bytes},
                           launch);
  };
  ASSERT_TRUE(step().ok());
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_TRUE(step().ok());
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (const std::vector<int32_t>& now :
       std::vector<std::vector<int32_t>>{{900, 3, 64, 500}, {0, 0, 0, 899}, {63, 64, 65, 66}}) {
    prefixes.set(now);
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    const auto got = test::to_floats(out.read());
    for (size_t i = 0; i < now.size(); ++i) p.entries[i].prefix_len = now[i];
    EXPECT_LT(test::relative_error(got, reference_of(shape, p, scale)), 0.006);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace espalier::kernels
