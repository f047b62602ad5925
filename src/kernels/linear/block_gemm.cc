#include "kernels/linear/block_gemm.h"

#include <algorithm>
#include <optional>

#include "kernels/cuda/launch.h"
#include "kernels/linear/gemm_small_batch.h"
#include "kernels/linear/quantize_rows.h"

namespace espalier::kernels::cuda {
namespace {

// A GEMM of rows that are rounded already, or as if they were.
LinearArgs with_rounded_rows(LinearArgs args, const void* codes, const float* scales) {
  args.x = codes, args.x_scales = scales;
  args.x_stride = args.in_features;
  args.x_scale_stride = group_scale_stride(args.rows);
  args.norm_weight = nullptr;
  return args;
}

// Row-invariant: the configuration of the most rows, which walks the inputs in one order.
std::optional<SmallBatchConfig> block_gemm_config(LinearArgs args, const DeviceTraits& traits,
                                                  bool row_invariant) {
  if (row_invariant) args.rows = kSmallBatchRowsE4m3;
  return small_batch_config(args, traits);
}

Status round_gemm_rows(LinearArgs& args, void* scratch, const LaunchOptions& launch) {
  auto* codes = static_cast<uint8_t*>(scratch);
  const int64_t code_bytes = int64_t{args.rows} * args.in_features;
  auto* scales = reinterpret_cast<float*>(codes + (code_bytes + 255) / 256 * 256);
  ESP_RETURN_IF_ERROR(quantize_rows({.type = args.type,
                                     .x = args.x,
                                     .x_stride = args.x_stride,
                                     .norm_weight = args.norm_weight,
                                     .norm_epsilon = args.norm_epsilon,
                                     .y = codes,
                                     .scales = scales,
                                     .group_stride = group_scale_stride(args.rows),
                                     .rows = args.rows,
                                     .dim = args.in_features},
                                    launch));
  args = with_rounded_rows(args, codes, scales);
  return {};
}

}  // namespace

LinearArgs gemm_rows_of(const LinearArgs& args, int32_t first, int32_t rows) {
  const auto advance = [&](const void* data, int64_t stride, size_t size) -> const void* {
    return data == nullptr
               ? nullptr
               : static_cast<const char*>(data) + static_cast<size_t>(first * stride) * size;
  };
  LinearArgs out = args;
  out.rows = rows;
  out.x = advance(args.x, args.x_stride, args.x_scales != nullptr ? 1 : dtype_size(args.type));
  if (args.x_scales != nullptr) out.x_scales += first;
  out.y = const_cast<void*>(advance(args.y, args.y_stride, dtype_size(args.out_type)));
  out.residual = advance(args.residual, args.y_stride, dtype_size(args.type));
  return out;
}

bool block_gemm_supports(const LinearArgs& args, const DeviceTraits& traits, bool row_invariant) {
  if (!args.block_scales || (args.rows > kSmallBatchRowsE4m3 && !row_invariant)) return false;
  LinearArgs gemm = args;
  gemm.rows = std::min(args.rows, kSmallBatchRowsE4m3);
  if (args.x_scales == nullptr) gemm = with_rounded_rows(gemm, nullptr, args.weight_scales);
  return block_gemm_config(gemm, traits, row_invariant).has_value();
}

Status block_gemm(const LinearArgs& args, const DeviceTraits& traits, bool row_invariant,
                  void* scratch, const LaunchOptions& launch) {
  for (int32_t first = 0; first < args.rows; first += kSmallBatchRowsE4m3) {
    LinearArgs part = gemm_rows_of(args, first, std::min(kSmallBatchRowsE4m3, args.rows - first));
    if (part.x_scales == nullptr) ESP_RETURN_IF_ERROR(round_gemm_rows(part, scratch, launch));
    const std::optional<SmallBatchConfig> config = block_gemm_config(part, traits, row_invariant);
    if (!config || !gemm_small_batch_supports(part, *config, traits))
      return error(StatusCode::kUnimplemented,
                   "linear: no kernel multiplies {} rows of {} x {} with scales of blocks",
                   part.rows, args.out_features, args.in_features);
    ESP_RETURN_IF_ERROR(gemm_small_batch(part, *config, traits, launch));
  }
  return {};
}

}  // namespace espalier::kernels::cuda
