// Elementwise kernels between the GEMMs on [rows, dim]: gated activations, scale with softcap,
// scaled sum; bfloat16 or float32, computed in float32, rounded once.
// Parallel: eight elements a thread where rows allow it. Roof: memory; gated 3 x rows x dim x size
// bytes.
#include <algorithm>

#include "kernels/activation/activation.cuh"
#include "kernels/activation/cuda.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kActivationThreads = 256;
constexpr int32_t kMostRows = 65535;  // of a grid (its y dimension)

// What a kernel applies to each element of gate and up.
template <Activation ACTIVATION>
struct Gated {
  __device__ static float of(float gate, float up, float limit) {
    return activated<ACTIVATION>(gate, up, limit);
  }
};
template <Gelu GELU>
struct Plain {
  __device__ static float of(float v, float up, float) {
    if constexpr (GELU == Gelu::kErf) return 0.5f * v * (1.0f + erff(v * 0.7071067811865476f)) * up;
    return __fdividef(v, 1.0f + __expf(-1.702f * v)) * up;
  }
};

template <typename T, typename Function>
__global__ void __launch_bounds__(kActivationThreads) gated_kernel(GatedArgs args) {
  release_next();
  wait_for_previous();
  const int at = static_cast<int>(blockIdx.x * kActivationThreads + threadIdx.x) * 8;
  if (at >= args.dim) return;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    float g[8], u[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    load8(static_cast<const T*>(args.gate) + row * args.gate_stride + at, g);
    if (args.up != nullptr) load8(static_cast<const T*>(args.up) + row * args.up_stride + at, u);
#pragma unroll
    for (int i = 0; i < 8; ++i) g[i] = Function::of(g[i], u[i], args.limit);
    store8(static_cast<T*>(args.y) + row * args.y_stride + at, g);
  }
}

template <typename T, typename Function>
__global__ void __launch_bounds__(kActivationThreads) gated_any_kernel(GatedArgs args) {
  release_next();
  wait_for_previous();
  const int i = static_cast<int>(blockIdx.x * kActivationThreads + threadIdx.x);
  if (i >= args.dim) return;
  for (int64_t row = blockIdx.y; row < args.rows; row += gridDim.y) {
    const float gate = to_float(static_cast<const T*>(args.gate)[row * args.gate_stride + i]);
    const float up = args.up == nullptr
                         ? 1.0f
                         : to_float(static_cast<const T*>(args.up)[row * args.up_stride + i]);
    static_cast<T*>(args.y)[row * args.y_stride + i] =
        from_float<T>(Function::of(gate, up, args.limit));
  }
}

template <typename T>
__global__ void __launch_bounds__(kActivationThreads) scale_kernel(ScaleArgs args) {
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * kActivationThreads + threadIdx.x);
  if (i >= args.dim) return;
  T& x = static_cast<T*>(args.x)[row * args.x_stride + i];
  float value = to_float(x) * args.scale;
  if (args.softcap > 0) value = args.softcap * tanhf(value / args.softcap);
  x = from_float<T>(value);
}

template <typename T>
__global__ void __launch_bounds__(kActivationThreads) add_scaled_kernel(AddScaledArgs args) {
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.y;
  const int i = static_cast<int>(blockIdx.x * kActivationThreads + threadIdx.x);
  if (i >= args.dim) return;
  T& y = static_cast<T*>(args.y)[row * args.y_stride + i];
  y = from_float<T>(to_float(y) +
                    args.scale * to_float(static_cast<const T*>(args.x)[row * args.x_stride + i]));
}

Status check_rows(const char* operation, DType type, int32_t rows, int32_t dim) {
  if (type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "{}: F16 is not supported", operation);
  if (rows < 0 || rows > kMostRows || dim < 0)
    return invalid_argument("{}: {} rows of {}, but at most {} rows are taken at once", operation,
                            rows, dim, kMostRows);
  return {};
}

dim3 cover(int32_t units, int32_t rows) {
  return dim3(static_cast<unsigned>((units + kActivationThreads - 1) / kActivationThreads),
              static_cast<unsigned>(rows));
}

}  // namespace

namespace {

template <typename Function>
Status launch_gated(const GatedArgs& args, const LaunchOptions& launch) {
  const bool by_eights = args.dim % 8 == 0 && args.gate_stride % 8 == 0 &&
                         args.up_stride % 8 == 0 && args.y_stride % 8 == 0 &&
                         aligned(args.gate, 16) && aligned(args.up, 16) && aligned(args.y, 16);
  const bool half = args.type == DType::kBFloat16;
  const int32_t rows = std::min(args.rows, kMostRows);
  if (by_eights)
    return launch_kernel("gated",
                         half ? gated_kernel<bf16, Function> : gated_kernel<float, Function>,
                         cover(args.dim / 8, rows), kActivationThreads, 0, launch, args);
  return launch_kernel("gated",
                       half ? gated_any_kernel<bf16, Function> : gated_any_kernel<float, Function>,
                       cover(args.dim, rows), kActivationThreads, 0, launch, args);
}

}  // namespace

Status gated(const GatedArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_rows("gated", args.type, std::min(args.rows, kMostRows), args.dim));
  if (args.rows == 0 || args.dim == 0) return {};
  switch (args.activation) {
    case Activation::kSilu:
      return launch_gated<Gated<Activation::kSilu>>(args, launch);
    case Activation::kGeluTanh:
      return launch_gated<Gated<Activation::kGeluTanh>>(args, launch);
    case Activation::kClampedSwiglu:
      if (args.up == nullptr) return invalid_argument("gated: a clamped SwiGLU needs up");
      return launch_gated<Gated<Activation::kClampedSwiglu>>(args, launch);
  }
  return invalid_argument("gated: there is no activation {}", static_cast<int>(args.activation));
}

Status gelu(const GeluRowsArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_rows("gelu", args.type, std::min(args.rows, kMostRows), args.dim));
  if (args.rows == 0 || args.dim == 0) return {};
  const GatedArgs gated{.type = args.type,
                        .gate = args.x,
                        .gate_stride = args.x_stride,
                        .up = args.up,
                        .up_stride = args.up_stride,
                        .y = args.y,
                        .y_stride = args.y_stride,
                        .rows = args.rows,
                        .dim = args.dim};
  return args.kind == Gelu::kErf ? launch_gated<Plain<Gelu::kErf>>(gated, launch)
                                 : launch_gated<Plain<Gelu::kQuick>>(gated, launch);
}

Status scale(const ScaleArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_rows("scale", args.type, args.rows, args.dim));
  if (args.rows == 0 || args.dim == 0) return {};
  return launch_kernel("scale",
                       args.type == DType::kBFloat16 ? scale_kernel<bf16> : scale_kernel<float>,
                       cover(args.dim, args.rows), kActivationThreads, 0, launch, args);
}

Status add_scaled(const AddScaledArgs& args, const LaunchOptions& launch) {
  if (args.rows > kMostRows) {
    const auto behind = [&](auto* rows, int64_t stride) {
      return static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(rows))) +
             kMostRows * stride * static_cast<int64_t>(dtype_size(args.type));
    };
    AddScaledArgs first = args, rest = args;
    first.rows = kMostRows;
    rest.rows = args.rows - kMostRows;
    rest.x = behind(args.x, args.x_stride);
    rest.y = behind(args.y, args.y_stride);
    ESP_RETURN_IF_ERROR(add_scaled(first, launch));
    return add_scaled(rest, launch);
  }
  ESP_RETURN_IF_ERROR(check_rows("add_scaled", args.type, args.rows, args.dim));
  if (args.rows == 0 || args.dim == 0) return {};
  return launch_kernel(
      "add_scaled",
      args.type == DType::kBFloat16 ? add_scaled_kernel<bf16> : add_scaled_kernel<float>,
      cover(args.dim, args.rows), kActivationThreads, 0, launch, args);
}

}  // namespace espalier::kernels::cuda
