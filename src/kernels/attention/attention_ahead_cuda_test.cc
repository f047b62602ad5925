// Attention on the GPU where rows of pictures see all rows of their picture, against the slow
// reference: shapes of every kernel, windows, pictures that begin and end within an entry.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/attention/cuda.h"
#include "kernels/attention/op.h"
#include "kernels/cuda/test_device.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;

struct Case {
  int32_t dim = 64, kv_heads = 2, group = 2, window = 0;
  int32_t prefix = 0, tokens = 0;  // of the first entry; a second one is a token of decode
  int32_t first = 0, rows = 0;     // of the picture, in the first entry's tokens
};
constexpr int32_t kDecodePrefix = 33;

class CudaAttentionAhead : public test::OnDevice {
 protected:
  // Keys of position p of an entry lie in page p of its own, a position to a page.
  template <typename T>
  void check(const Case& c) {
    SCOPED_TRACE(fmt::format("dim {}, window {}, {}+{}, picture {}+{}", c.dim, c.window, c.prefix,
                             c.tokens, c.first, c.rows));
    const int32_t context = c.prefix + c.tokens, all = context + kDecodePrefix + 1;
    const int32_t num_tokens = c.tokens + 1, heads = c.kv_heads * c.group;
    std::vector<float> q = random<T>(int64_t{num_tokens} * heads * c.dim);
    std::vector<float> k = random<T>(int64_t{all} * c.kv_heads * c.dim);
    std::vector<float> v = random<T>(int64_t{all} * c.kv_heads * c.dim);
    std::vector<PageId> pages(static_cast<size_t>(all));
    std::iota(pages.begin(), pages.end(), 0);
    const std::vector<float> want = reference_of(c, q, k, v, pages);

    const DeviceArray<T> device_q(elements<T>(q)), device_k(elements<T>(k)),
        device_v(elements<T>(v)), out(q.size());
    const DeviceArray<int32_t> begins(std::vector<int32_t>{0, c.tokens, num_tokens}),
        prefixes(std::vector<int32_t>{c.prefix, kDecodePrefix}),
        page_begins(std::vector<int32_t>{0, context}), tables(pages), seen(last_seen(c));
    const cuda::AttentionShape shape{
        .num_heads = heads,
        .num_kv_heads = c.kv_heads,
        .head_dim = c.dim,
        .sliding_window = c.window,
        .type = std::is_same_v<T, float> ? DType::kFloat32 : DType::kBFloat16};
    const cuda::EntryArrays entries{.query_begin = begins.get(),
                                    .prefix_len = prefixes.get(),
                                    .page_begin = page_begins.get(),
                                    .page_tables = tables.get(),
                                    .num_entries = 2,
                                    .num_tokens = num_tokens,
                                    .max_query_tokens = c.tokens};
    const auto bytes = cuda::attention_workspace_bytes(shape, 2, num_tokens);
    ASSERT_TRUE(bytes);
    const DeviceArray<uint8_t> workspace(*bytes);
    Status status = cuda::attention_plan(shape, entries, workspace.get(), *bytes, {});
    ASSERT_TRUE(status.ok()) << status.message();
    const int64_t row = int64_t{c.kv_heads} * c.dim;
    status = cuda::attention(
        {.shape = shape,
         .entries = entries,
         .kv = {.type = std::is_same_v<T, float> ? KvType::kFloat32 : KvType::kBFloat16,
                .k = device_k.get(),
                .v = device_v.get(),
                .page_size = 1,
                .num_kv_heads = c.kv_heads,
                .head_dim = c.dim,
                .page_stride = row,
                .token_stride = row,
                .head_stride = c.dim},
         .q = device_q.get(),
         .q_stride = int64_t{heads} * c.dim,
         .out = out.get(),
         .out_stride = int64_t{heads} * c.dim,
         .scale = 1 / std::sqrt(static_cast<float>(c.dim)),
         .last_seen = seen.get(),
         .workspace = workspace.get(),
         .workspace_bytes = *bytes},
        {});
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<T> got = out.read();
    const double allowed = std::is_same_v<T, float> ? 1e-4 : 0.02;
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(value(got[i]), want[i], allowed)
          << "token " << i / static_cast<size_t>(heads * c.dim);
  }

 private:
  static float value(float element) { return element; }
  static float value(BFloat16 element) { return to_float(element); }

  template <typename T>
  std::vector<T> elements(const std::vector<float>& floats) {
    if constexpr (std::is_same_v<T, float>)
      return floats;
    else
      return test::to_bfloat16s(floats);
  }

  template <typename T>
  std::vector<float> random(int64_t count) {
    std::vector<float> out = test::random_floats(rng_, count, 1.0);
    if constexpr (!std::is_same_v<T, float>)
      for (float& x : out) x = to_float(to_bfloat16(x));
    return out;
  }

  static std::vector<int32_t> last_seen(const Case& c) {
    std::vector<int32_t> out(static_cast<size_t>(c.tokens + 1), -1);
    std::fill_n(out.begin() + c.first, c.rows, c.prefix + c.first + c.rows - 1);
    return out;
  }

  // Each token as an entry that ends with what it sees, its window from its own position on.
  static std::vector<float> reference_of(const Case& c, const std::vector<float>& q,
                                         std::vector<float>& k, std::vector<float>& v,
                                         const std::vector<PageId>& pages) {
    std::vector<BatchEntry> entries;
    std::vector<int32_t> windows;
    const std::vector<int32_t> seen = last_seen(c);
    for (int32_t t = 0; t <= c.tokens; ++t) {
      const int32_t own = t < c.tokens ? c.prefix + t : kDecodePrefix;
      const int32_t last = std::max(own, seen[static_cast<size_t>(t)]);
      entries.push_back({.num_query_tokens = 1,
                         .prefix_len = last,
                         .query_begin = t,
                         .page_begin = t < c.tokens ? 0 : c.prefix + c.tokens});
      windows.push_back(c.window > 0 ? c.window + last - own : 0);
    }
    const int64_t row = int64_t{c.kv_heads} * c.dim;
    const KvView view{.layers = {{.type = KvType::kFloat32,
                                  .k = k.data(),
                                  .v = v.data(),
                                  .num_pages = static_cast<int32_t>(pages.size()),
                                  .num_kv_heads = c.kv_heads,
                                  .head_dim = c.dim,
                                  .page_stride = row,
                                  .token_stride = row,
                                  .head_stride = c.dim}},
                      .page_size = 1};
    std::vector<float> out(q.size());
    const int64_t stride = int64_t{c.kv_heads} * c.group * c.dim;
    reference::attention({.q = q.data(),
                          .q_stride = stride,
                          .out = out.data(),
                          .out_stride = stride,
                          .heads = c.kv_heads * c.group,
                          .entries = entries,
                          .page_tables = pages,
                          .kv = &view,
                          .scale = 1 / std::sqrt(static_cast<float>(c.dim)),
                          .windows = windows});
    return out;
  }
};

TEST_F(CudaAttentionAhead, RowsOfPicturesSeeEachOther) {
  for (const int32_t dim : {16, 64, 128, 256}) {
    for (const int32_t window : {0, 40, 512}) {
      const Case within{
          .dim = dim, .window = window, .prefix = 90, .tokens = 170, .first = 3, .rows = 150};
      check<BFloat16>(within);
      check<float>(within);
      check<BFloat16>({.dim = dim, .group = 4, .window = window, .tokens = 20, .rows = 20});
    }
  }
}

}  // namespace
}  // namespace espalier::kernels
