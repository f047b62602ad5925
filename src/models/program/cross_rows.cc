#include "models/program/cross_rows.h"

#include "base/check.h"

namespace espalier::program {
namespace {

// Between rows of two pictures, which are blocks of memory of their own.
int64_t elements_between(const float* from, const float* to) {
  const auto bytes = reinterpret_cast<intptr_t>(to) - reinterpret_cast<intptr_t>(from);
  return bytes / static_cast<intptr_t>(sizeof(float));
}

}  // namespace

void CrossRows::begin(const ForwardBatch& batch, int64_t width) {
  entries_.clear();
  page_offsets_.clear();
  width_ = width;
  for (const CrossSpan& span : batch.cross_spans) {
    BatchEntry row{.num_query_tokens = 1, .page_begin = static_cast<int32_t>(page_offsets_.size())};
    row.prefix_len = add_pages(batch, span) - 1;
    row.num_pages = static_cast<int32_t>(page_offsets_.size()) - row.page_begin;
    for (int32_t i = 0; i < span.count; ++i) {
      row.query_begin = span.token_begin + i;
      entries_.push_back(row);
    }
  }
}

// Returns how many rows they are.
int32_t CrossRows::add_pages(const ForwardBatch& batch, const CrossSpan& span) {
  int32_t num_rows = 0;
  for (int32_t i = 0; i < span.num_pictures; ++i) {
    const EncodedRows& rows = *batch.cross_pictures[static_cast<size_t>(span.first_picture + i)];
    ESP_CHECK(rows.tile_rows > 0 && rows.width == width_ && rows.num_rows % rows.tile_rows == 0,
              "{} rows of {} numbers in tiles of {}, for {}", rows.num_rows, rows.width,
              rows.tile_rows, width_);
    if (page_offsets_.empty()) {
      base_ = rows.values.data();
      kv_.page_size = rows.tile_rows;
    }
    ESP_CHECK(rows.tile_rows == kv_.page_size);
    const int64_t first = elements_between(base_, rows.values.data());
    for (int32_t row = 0; row < rows.num_rows; row += rows.tile_rows)
      page_offsets_.push_back(first + row * width_);
    num_rows += rows.num_rows;
  }
  return num_rows;
}

const KvView& CrossRows::layer(int32_t index, int32_t num_kv_heads, int32_t head_dim) {
  const int64_t kv_dim = int64_t{num_kv_heads} * head_dim;
  // Kernels only read these planes.
  auto* const k = const_cast<float*>(base_ + 2 * index * kv_dim);
  kv_.layers.assign(1, {.type = KvType::kFloat32,
                        .k = k,
                        .v = k + kv_dim,
                        .num_pages = static_cast<int32_t>(page_offsets_.size()),
                        .num_kv_heads = num_kv_heads,
                        .head_dim = head_dim,
                        .page_stride = kv_.page_size * width_,
                        .token_stride = width_,
                        .head_stride = head_dim});
  return kv_;
}

}  // namespace espalier::program
