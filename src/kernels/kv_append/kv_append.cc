#include <cstring>

#include "base/check.h"
#include "kernels/cpu/share_rows.h"
#include "kernels/cpu/table.h"
#include "kernels/kv_append/op.h"

namespace espalier::kernels {
namespace {

// One token's heads to `at` (in elements) of a plane.
void write_token(const CpuTable& table, const KvView& kv, void* plane, int64_t at,
                 const float* from) {
  for (int64_t head = 0; head < kv.num_kv_heads; ++head) {
    const int64_t to = at + head * kv.head_stride;
    const float* row = from + head * kv.head_dim;
    if (kv.type == KvType::kFloat32) {
      std::memcpy(static_cast<float*>(plane) + to, row,
                  static_cast<size_t>(kv.head_dim) * sizeof(float));
    } else {
      table.to_bf16(row, static_cast<uint16_t*>(plane) + to, kv.head_dim);
    }
  }
}

// Query tokens [begin, end) of one lane.
void append_lane(const CpuTable& table, const KvAppendArgs& args, const Lane& lane, int64_t begin,
                 int64_t end) {
  const KvView& kv = *args.kv;
  const KvView::Layer& layer = kv.layers[static_cast<size_t>(args.layer)];
  const PageId* pages = args.page_tables.data() + lane.page_begin;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t position = lane.prefix_len + i;
    const int64_t at =
        pages[position / kv.page_size] * kv.page_stride + position % kv.page_size * kv.token_stride;
    const int64_t token = lane.query_begin + i;
    write_token(table, kv, layer.k, at, args.k + token * args.k_stride);
    if (args.v != nullptr) write_token(table, kv, layer.v, at, args.v + token * args.v_stride);
  }
}

}  // namespace

void kv_append(CpuBackend& backend, const KvAppendArgs& args) {
  const KvView& kv = *args.kv;
  for (const Lane& lane : args.lanes) {
    ESP_CHECK(static_cast<int64_t>(lane.num_pages) * kv.page_size >=
                  lane.prefix_len + lane.num_query_tokens,
              "{} pages of {} for {} + {} tokens", lane.num_pages, kv.page_size, lane.prefix_len,
              lane.num_query_tokens);
  }
  // A lane of many tokens is shared among the threads, lanes of few go many to a thread.
  const int64_t token_elements = 2 * static_cast<int64_t>(kv.num_kv_heads) * kv.head_dim;
  constexpr int64_t kManyTokens = 16;
  for (const Lane& lane : args.lanes) {
    if (lane.num_query_tokens < kManyTokens) continue;
    share_rows(backend, lane.num_query_tokens, token_elements, [&](int64_t begin, int64_t end) {
      append_lane(backend.table(), args, lane, begin, end);
    });
  }
  share_rows(backend, static_cast<int64_t>(args.lanes.size()), token_elements,
             [&](int64_t begin, int64_t end) {
               for (int64_t i = begin; i < end; ++i) {
                 const Lane& lane = args.lanes[static_cast<size_t>(i)];
                 if (lane.num_query_tokens >= kManyTokens) continue;
                 append_lane(backend.table(), args, lane, 0, lane.num_query_tokens);
               }
             });
}

}  // namespace espalier::kernels
