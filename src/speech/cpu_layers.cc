#include "speech/cpu_layers.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/activation/gelu.h"
#include "kernels/attention/op.h"
#include "kernels/norm/op.h"

namespace espalier::speech {
namespace {

// Rows that are processed at once: the kernel's tile.
constexpr int64_t kTileRows = 64;

}  // namespace

void layer_norm(kernels::CpuBackend& backend, const LayerNormWeights& norm, const float* x,
                float* y, int64_t rows) {
  const auto width = std::ssize(norm.weight);
  kernels::layer_norm(backend, {.x = x,
                                .x_stride = width,
                                .y = y,
                                .y_stride = width,
                                .rows = rows,
                                .dim = width,
                                .weight = norm.weight.data(),
                                .bias = norm.bias.data(),
                                .epsilon = 1e-5f});
}

void linear(kernels::CpuBackend& backend, const LinearWeights& weights, const float* x, float* y,
            int64_t rows, bool accumulate) {
  kernels::linear(backend, weights.matrix,
                  {.x = x,
                   .x_stride = weights.matrix.in_features(),
                   .y = y,
                   .y_stride = weights.matrix.out_features(),
                   .rows = rows,
                   .bias = weights.bias.empty() ? nullptr : weights.bias.data(),
                   .accumulate = accumulate});
}

void gelu(kernels::CpuBackend& backend, float* y, int64_t rows, int64_t width) {
  kernels::gelu(backend, {.kind = kernels::Gelu::kErf,
                          .x = y,
                          .x_stride = width,
                          .y = y,
                          .y_stride = width,
                          .rows = rows,
                          .dim = width});
}

void mlp(kernels::CpuBackend& backend, const MlpWeights& weights, float* x, float* normed,
         float* wide, int64_t rows) {
  layer_norm(backend, weights.norm, x, normed, rows);
  linear(backend, weights.up, normed, wide, rows);
  gelu(backend, wide, rows, weights.up.matrix.out_features());
  linear(backend, weights.down, wide, x, rows, true);
}

// To the kernel a tile of rows under one head is a group of query heads that share a key head, all
// at the last position: so it reads the keys once a tile, and masks nothing.
void BidirectionalAttention::run(kernels::CpuBackend& backend, const float* qkv, float* out,
                                 int64_t rows, int32_t num_heads, int32_t head_dim) {
  const int64_t width = int64_t{num_heads} * head_dim, tiles = (rows + kTileRows - 1) / kTileRows;
  const int64_t tile_floats = width * kTileRows;
  float* const queries = queries_.reserve(tiles, tile_floats);
  float* const results = results_.reserve(tiles, tile_floats);
  const auto place = [&](int64_t row, int64_t head) {
    return row / kTileRows * tile_floats + (head * kTileRows + row % kTileRows) * head_dim;
  };
  const size_t head_bytes = static_cast<size_t>(head_dim) * sizeof(float);
  backend.pool().parallel_for(tiles * kTileRows, kTileRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const from = qkv + std::min(row, rows - 1) * 3 * width;
      for (int64_t head = 0; head < num_heads; ++head) {
        std::memcpy(queries + place(row, head), from + head * head_dim, head_bytes);
      }
    }
  });
  KvView kv{.layers = {{.type = KvType::kFloat32,
                        .k = const_cast<float*>(qkv) + width,  // attention() only reads
                        .v = const_cast<float*>(qkv) + 2 * width,
                        .num_pages = 1,
                        .num_kv_heads = num_heads,
                        .head_dim = head_dim,
                        .page_stride = rows * 3 * width,
                        .token_stride = 3 * width,
                        .head_stride = head_dim}},
            .page_size = static_cast<int32_t>(rows)};
  std::vector<BatchEntry> entries(static_cast<size_t>(tiles));
  for (size_t i = 0; i < entries.size(); ++i) {
    entries[i].num_query_tokens = 1;
    entries[i].prefix_len = static_cast<int32_t>(rows - 1);
    entries[i].query_begin = static_cast<int32_t>(i);
    entries[i].num_pages = 1;
  }
  const PageId page = 0;
  kernels::attention(backend, {.q = queries,
                               .q_stride = tile_floats,
                               .out = results,
                               .out_stride = tile_floats,
                               .heads = static_cast<int32_t>(num_heads * kTileRows),
                               .entries = entries,
                               .page_tables = {&page, 1},
                               .kv = &kv,
                               .scale = 1 / std::sqrt(static_cast<float>(head_dim))});
  backend.pool().parallel_for(rows, kTileRows, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < num_heads; ++head) {
        std::memcpy(out + row * width + head * head_dim, results + place(row, head), head_bytes);
      }
    }
  });
}

}  // namespace espalier::speech
