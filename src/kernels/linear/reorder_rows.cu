// Rows with their inputs in another order, normalised on the way where a norm's weight is given.
// Parallel: one block a row, which lies in shared memory between the sum of squares and the
// gathering. The order is read before wait_for_previous() as far as it fits into registers.
// Roof: memory; at decode a launch's time, which a norm of its own would take as well.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/linear/reorder_rows.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kReorderThreads = 512;

__global__ void __launch_bounds__(kReorderThreads) reorder_rows_kernel(const ReorderRowsArgs args) {
  extern __shared__ __align__(16) char raw[];
  __shared__ float scratch[32];
  auto* row = reinterpret_cast<bf16*>(raw);
  const int first = static_cast<int>(threadIdx.x) * 8;
  constexpr int kStep = kReorderThreads * 8;
  const auto* columns = reinterpret_cast<const int4*>(args.columns);
  int4 early[2];
  if (first < args.dim) early[0] = columns[first / 4], early[1] = columns[first / 4 + 1];
  release_next();
  wait_for_previous();
  const bf16* x = static_cast<const bf16*>(args.x) + int64_t{blockIdx.x} * args.x_stride;
  float sum = 0;
  for (int at = first; at < args.dim; at += kStep) {
    float values[8];
    load8(x + at, values);
    store8(row + at, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += values[i] * values[i];
  }
  float scale = 1;
  if (args.norm_weight != nullptr)
    scale =
        1.0f / sqrtf(block_sum(sum, scratch) / static_cast<float>(args.dim) + args.norm_epsilon);
  __syncthreads();
  const auto* norm = static_cast<const bf16*>(args.norm_weight);
  bf16* y = static_cast<bf16*>(args.y) + int64_t{blockIdx.x} * args.dim;
  for (int at = first; at < args.dim; at += kStep) {
    const int4 low = at == first ? early[0] : columns[at / 4];
    const int4 high = at == first ? early[1] : columns[at / 4 + 1];
    const int from[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = to_float(row[from[i]]);
      if (norm != nullptr) values[i] = values[i] * scale * to_float(norm[from[i]]);
    }
    store8(y + at, values);
  }
}

}  // namespace

Status reorder_rows(const ReorderRowsArgs& args, const LaunchOptions& launch) {
  if (args.rows == 0) return {};
  if (args.dim < 8 || args.dim % 8 != 0 || args.dim > kReorderedRowMax || args.x_stride % 8 != 0 ||
      !aligned(args.x, 16) || !aligned(args.y, 16) || !aligned(args.columns, 16))
    return invalid_argument(
        "reorder_rows: {} inputs, but a multiple of 8 up to {} is taken, aligned to 16 bytes",
        args.dim, kReorderedRowMax);
  const size_t bytes = static_cast<size_t>(args.dim) * sizeof(bf16);
  ESP_RETURN_IF_ERROR(allow_shared("reorder_rows", reorder_rows_kernel, bytes));
  return launch_kernel("reorder_rows", reorder_rows_kernel, dim3(static_cast<unsigned>(args.rows)),
                       dim3(kReorderThreads), bytes, launch, args);
}

}  // namespace espalier::kernels::cuda
