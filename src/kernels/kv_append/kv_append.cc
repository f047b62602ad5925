#include <cstring>

#include "base/check.h"
#include "kernels/cpu/share_rows.h"
#include "kernels/cpu/table.h"
#include "kernels/kv_append/op.h"
#include "kernels/kv_layer.h"

namespace espalier::kernels {
namespace {

// One token's heads to `at` (in elements) of a plane.
void write_token(const CpuTable& table, const KvView::Layer& layer, void* plane, int64_t at,
                 const float* from) {
  for (int64_t head = 0; head < layer.num_kv_heads; ++head) {
    const int64_t to = at + head * layer.head_stride;
    const float* row = from + head * layer.head_dim;
    if (layer.type == KvType::kFloat32) {
      std::memcpy(static_cast<float*>(plane) + to, row,
                  static_cast<size_t>(layer.head_dim) * sizeof(float));
    } else {
      table.to_bf16(row, static_cast<uint16_t*>(plane) + to, layer.head_dim);
    }
  }
}

// Query tokens [begin, end) of one entry.
void append_entry(const CpuTable& table, const KvAppendArgs& args, const BatchEntry& entry,
                  int64_t begin, int64_t end) {
  const KvView::Layer& layer = args.kv->layer(args.layer);
  const int64_t page_size = args.kv->page_size;
  const PageId* pages = args.page_tables.data() + entry.page_begin;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t position = entry.prefix_len + i;
    const int64_t at =
        pages[position / page_size] * layer.page_stride + position % page_size * layer.token_stride;
    const int64_t token = entry.query_begin + i;
    write_token(table, layer, layer.k, at, args.k + token * args.k_stride);
    if (args.v != nullptr) write_token(table, layer, layer.v, at, args.v + token * args.v_stride);
  }
}

}  // namespace

void kv_append(CpuBackend& backend, const KvAppendArgs& args) {
  const KvView::Layer& layer = args.kv->layer(args.layer);
  const Status taken = check_kv_layer(layer);
  ESP_CHECK(taken.ok(), "{}", taken.message());
  const int64_t page_size = args.kv->page_size;
  for (const BatchEntry& entry : args.entries) {
    ESP_CHECK(entry.num_pages * page_size >= entry.prefix_len + entry.num_query_tokens,
              "{} pages of {} for {} + {} tokens", entry.num_pages, page_size, entry.prefix_len,
              entry.num_query_tokens);
  }
  // An entry of many tokens is shared among the threads, entries of few go many to a thread.
  const int64_t token_elements = 2 * static_cast<int64_t>(layer.num_kv_heads) * layer.head_dim;
  constexpr int64_t kManyTokens = 16;
  for (const BatchEntry& entry : args.entries) {
    if (entry.num_query_tokens < kManyTokens) continue;
    share_rows(backend, entry.num_query_tokens, token_elements, [&](int64_t begin, int64_t end) {
      append_entry(backend.table(), args, entry, begin, end);
    });
  }
  share_rows(backend, static_cast<int64_t>(args.entries.size()), token_elements,
             [&](int64_t begin, int64_t end) {
               for (int64_t i = begin; i < end; ++i) {
                 const BatchEntry& entry = args.entries[static_cast<size_t>(i)];
                 if (entry.num_query_tokens >= kManyTokens) continue;
                 append_entry(backend.table(), args, entry, 0, entry.num_query_tokens);
               }
             });
}

}  // namespace espalier::kernels
