// Eight elements a thread. Bytes: silu_mul 3 x rows x dim x size, add_bias 2.
#include "kernels/activation/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) silu_mul_kernel(SiluMulArgs args) {
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.y;
  const int at = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) * 8;
  if (at >= args.dim) return;
  const T* gate = static_cast<const T*>(args.gate) + row * args.gate_stride + at;
  const T* up = static_cast<const T*>(args.up) + row * args.up_stride + at;
  T* y = static_cast<T*>(args.y) + row * args.y_stride + at;
  float g[8], u[8];
  load8(gate, g);
  load8(up, u);
#pragma unroll
  for (int i = 0; i < 8; ++i) g[i] = silu(g[i]) * u[i];
  store8(y, g);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) silu_mul_any_kernel(SiluMulArgs args) {
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.dim) return;
  const float gate = to_float(static_cast<const T*>(args.gate)[row * args.gate_stride + i]);
  const float up = to_float(static_cast<const T*>(args.up)[row * args.up_stride + i]);
  static_cast<T*>(args.y)[row * args.y_stride + i] = from_float<T>(silu(gate) * up);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) add_bias_kernel(AddBiasArgs args) {
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.dim) return;
  T& x = static_cast<T*>(args.x)[row * args.x_stride + i];
  x = from_float<T>(to_float(x) + to_float(static_cast<const T*>(args.bias)[i]));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) scale_kernel(ScaleArgs args) {
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.dim) return;
  T& x = static_cast<T*>(args.x)[row * args.x_stride + i];
  float value = to_float(x) * args.scale;
  if (args.softcap > 0) value = args.softcap * tanhf(value / args.softcap);
  x = from_float<T>(value);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) add_scaled_kernel(AddScaledArgs args) {
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i >= args.dim) return;
  T& y = static_cast<T*>(args.y)[row * args.y_stride + i];
  y = from_float<T>(to_float(y) +
                    args.scale * to_float(static_cast<const T*>(args.x)[row * args.x_stride + i]));
}

Status check_rows(const char* operation, DType type, int32_t rows, int32_t dim) {
  if (type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "{}: F16 is not supported", operation);
  if (rows < 0 || rows > 65535 || dim < 0)
    return invalid_argument("{}: {} rows of {}, but at most 65535 rows are taken at once",
                            operation, rows, dim);
  return {};
}

dim3 cover(int32_t units, int32_t rows) {
  return dim3(static_cast<unsigned>((units + kThreads - 1) / kThreads),
              static_cast<unsigned>(rows));
}

}  // namespace

Status silu_mul(const SiluMulArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_rows("silu_mul", args.type, args.rows, args.dim));
  if (args.rows == 0 || args.dim == 0) return {};
  const bool by_eights = args.dim % 8 == 0 && args.gate_stride % 8 == 0 &&
                         args.up_stride % 8 == 0 && args.y_stride % 8 == 0 &&
                         aligned(args.gate, 16) && aligned(args.up, 16) && aligned(args.y, 16);
  const bool half = args.type == DType::kBFloat16;
  if (by_eights)
    return launch_kernel("silu_mul", half ? silu_mul_kernel<bf16> : silu_mul_kernel<float>,
                         cover(args.dim / 8, args.rows), kThreads, 0, launch, args);
  return launch_kernel("silu_mul", half ? silu_mul_any_kernel<bf16> : silu_mul_any_kernel<float>,
                       cover(args.dim, args.rows), kThreads, 0, launch, args);
}

Status add_bias(const AddBiasArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_rows("add_bias", args.type, args.rows, args.dim));
  if (args.rows == 0 || args.dim == 0) return {};
  return launch_kernel(
      "add_bias", args.type == DType::kBFloat16 ? add_bias_kernel<bf16> : add_bias_kernel<float>,
      cover(args.dim, args.rows), kThreads, 0, launch, args);
}

Status scale(const ScaleArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_rows("scale", args.type, args.rows, args.dim));
  if (args.rows == 0 || args.dim == 0) return {};
  return launch_kernel("scale",
                       args.type == DType::kBFloat16 ? scale_kernel<bf16> : scale_kernel<float>,
                       cover(args.dim, args.rows), kThreads, 0, launch, args);
}

Status add_scaled(const AddScaledArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_rows("add_scaled", args.type, args.rows, args.dim));
  if (args.rows == 0 || args.dim == 0) return {};
  return launch_kernel(
      "add_scaled",
      args.type == DType::kBFloat16 ? add_scaled_kernel<bf16> : add_scaled_kernel<float>,
      cover(args.dim, args.rows), kThreads, 0, launch, args);
}

}  // namespace espalier::kernels::cuda
