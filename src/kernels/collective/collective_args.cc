#include "kernels/collective/collective_args.h"

#include <algorithm>
#include <span>

#include "kernels/cuda/launch.h"
#include "kernels/norm/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int32_t kReducedDimMax = 32768;  // of rms_norm()

}  // namespace

Status check_all_reduce(const AllReduceArgs& args) {
  if (args.type != DType::kBFloat16 && args.type != DType::kFloat32)
    return error(StatusCode::kUnimplemented, "all_reduce: {} is not supported",
                 dtype_name(args.type));
  if (args.rows < 0 || args.dim < 8 || args.dim % 8 != 0 || args.dim > kReducedDimMax)
    return invalid_argument("all_reduce: {} rows of {}, which must be a multiple of 8 up to {}",
                            args.rows, args.dim, kReducedDimMax);
  const bool aligned_rows = aligned(args.x, 16) && aligned(args.residual, 16) &&
                            args.residual_stride % 8 == 0 && aligned(args.y, 16) &&
                            args.y_stride % 8 == 0 && aligned(args.norm_weight, 16);
  if (!aligned_rows) return invalid_argument("all_reduce: rows are not aligned to 16 bytes");
  if ((args.y != nullptr) != (args.norm_weight != nullptr) ||
      (args.y != nullptr && args.residual == nullptr))
    return invalid_argument("all_reduce: a norm takes a weight, a residual and a result");
  return {};
}

Status check_all_gather(const AllGatherArgs& args, int32_t num_ranks) {
  if (args.rows < 0 || args.columns < 1 || args.part_stride < args.columns ||
      args.out_stride < int64_t{args.columns} * num_ranks)
    return invalid_argument("all_gather: {} rows of {} columns, {} apart, into rows {} apart",
                            args.rows, args.columns, args.part_stride, args.out_stride);
  if (!aligned(args.part, 16) || !aligned(args.out, 16))
    return invalid_argument("all_gather: rows are not aligned to 16 bytes");
  return {};
}

Status check_rank_rows(const char* name, const RankRowsArgs& args, const Ranks& ranks) {
  if (args.type != DType::kBFloat16 && args.type != DType::kFloat32)
    return error(StatusCode::kUnimplemented, "{}: {} is not supported", name,
                 dtype_name(args.type));
  const auto counts = std::span(args.counts).first(static_cast<size_t>(ranks.num_ranks));
  if (args.columns < 8 || args.columns % 8 != 0 || std::ranges::min(counts) < 0)
    return invalid_argument("{}: rows of {} columns, which must be a multiple of 8", name,
                            args.columns);
  if (!aligned(args.own, 16) || !aligned(args.all, 16))
    return invalid_argument("{}: rows are not aligned to 16 bytes", name);
  return {};
}

Status check_share_tokens(const ShareTokensArgs& args, int32_t tokens_max) {
  if (args.rows < 0 || args.rows > tokens_max)
    return invalid_argument("share_tokens: {} rows, at most {}", args.rows, tokens_max);
  return {};
}

Status finish_all_reduce(const AllReduceArgs& args, const LaunchOptions& launch) {
  if (args.residual == nullptr) return {};
  return rms_norm({.type = args.type,
                   .x = args.x,
                   .x_stride = args.dim,
                   .residual = args.residual,
                   .residual_stride = args.residual_stride,
                   .weight = args.norm_weight,
                   .weight_offset = args.norm_offset,
                   .y = args.y,
                   .y_stride = args.y_stride,
                   .rows = args.rows,
                   .dim = args.dim,
                   .epsilon = args.norm_epsilon},
                  launch);
}

}  // namespace espalier::kernels::cuda
