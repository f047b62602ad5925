// add_control: one block a row, 8 elements a thread. Blocks of rows without a vector end at once.
// Roof: memory, 2 x rows x dim x size bytes; at decode a launch's time.
#include "kernels/control/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) add_control_kernel(AddControlArgs args) {
  release_next();
  wait_for_previous();
  const int row = static_cast<int>(blockIdx.x);
  const int slot = args.token_slots[args.tokens != nullptr ? args.tokens[row] : row];
  if (slot < 0) return;
  const ControlUse use = args.slots[slot];
  if (use.index < 0 || args.layer < use.first_layer || args.layer > use.last_layer) return;
  const int64_t at = int64_t{use.index} * args.num_layers + args.layer;
  const float* from = args.vectors + at * args.dim;
  T* to = static_cast<T*>(args.x) + row * args.x_stride;
  for (int i = static_cast<int>(threadIdx.x) * 8; i < args.dim; i += kThreads * 8) {
    float v[8];
    load8(to + i, v);
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] += use.scale * from[i + k];
    store8(to + i, v);
  }
}

}  // namespace

Status add_control(const AddControlArgs& args, const LaunchOptions& launch) {
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "add_control: F16 is not supported");
  if (args.rows < 0 || args.dim < 8 || args.dim % 8 != 0 || args.x_stride % 8 != 0)
    return invalid_argument("add_control: {} rows of {}, {} apart, which must be multiples of 8",
                            args.rows, args.dim, args.x_stride);
  if (args.rows == 0) return {};
  return launch_kernel(
      "add_control",
      args.type == DType::kBFloat16 ? add_control_kernel<bf16> : add_control_kernel<float>,
      dim3(static_cast<unsigned>(args.rows)), dim3(kThreads), 0, launch, args);
}

}  // namespace espalier::kernels::cuda
