// RMS norm (with an optional residual sum in front) and layer norm of rows [rows, dim]; bfloat16 or
// float32, computed in float32, rounded once.
// Parallel: one block a row; the row stays in registers between the sum of squares and the scaling.
// The weight is loaded before wait_for_previous().
// Roof: memory, 2 x rows x dim x size bytes, 4 with a residual; at decode a launch's time, from 64
// rows on a copy. 256 rows of 4,096 with a residual 3.2 us on an H200. History:
// docs/notes/elementwise.md.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/norm/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kNormThreads = 512;
constexpr int kNormMaxDim = 32768;

// CHUNKS: vectors of eight elements that each thread holds.
template <typename T, int CHUNKS>
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(RmsNormArgs args) {
  __shared__ float scratch[32];
  release_next();
  constexpr bool kEarly = CHUNKS <= 2;  // more would not fit in registers
  Eight<T> weights[kEarly ? CHUNKS : 1];
  if (kEarly && args.y != nullptr) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      const int at = (c * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
      if (at < args.dim) weights[c].load(static_cast<const T*>(args.weight) + at);
    }
  }
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  T* residual = args.residual == nullptr
                    ? nullptr
                    : static_cast<T*>(args.residual) + row * args.residual_stride;
  float values[CHUNKS][8];
  float sum = 0;
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const int at = (c * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
    if (at >= args.dim) continue;
    load8(x + at, values[c]);
    if (residual != nullptr) {
      float other[8];
      load8(residual + at, other);
#pragma unroll
      for (int i = 0; i < 8; ++i) values[c][i] = to_float(from_float<T>(values[c][i] + other[i]));
      store8(residual + at, values[c]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += values[c][i] * values[c][i];
  }
  if (args.y == nullptr) return;
  const float mean = block_sum(sum, scratch) / static_cast<float>(args.dim);
  const float scale = 1.0f / sqrtf(mean + args.epsilon);
  T* y = static_cast<T*>(args.y) + row * args.y_stride;
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const int at = (c * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * 8;
    if (at >= args.dim) continue;
    if constexpr (!kEarly) weights[0].load(static_cast<const T*>(args.weight) + at);
    float weight[8];
    weights[kEarly ? c : 0].unpack(weight);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      values[c][i] = values[c][i] * scale * (weight[i] + args.weight_offset);
    store8(y + at, values[c]);
  }
}

// For rows that are no multiple of eight elements or not aligned: one element at a time.
template <typename T>
__global__ void __launch_bounds__(kNormThreads) rms_norm_any_kernel(RmsNormArgs args) {
  __shared__ float scratch[32];
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  T* residual = args.residual == nullptr
                    ? nullptr
                    : static_cast<T*>(args.residual) + row * args.residual_stride;
  float sum = 0;
  for (int i = threadIdx.x; i < args.dim; i += blockDim.x) {
    float value = to_float(x[i]);
    if (residual != nullptr) {
      residual[i] = from_float<T>(value + to_float(residual[i]));
      value = to_float(residual[i]);
    }
    sum += value * value;
  }
  if (args.y == nullptr) return;
  const float mean = block_sum(sum, scratch) / static_cast<float>(args.dim);
  const float scale = 1.0f / sqrtf(mean + args.epsilon);
  T* y = static_cast<T*>(args.y) + row * args.y_stride;
  for (int i = threadIdx.x; i < args.dim; i += blockDim.x) {
    const float value = to_float(residual != nullptr ? residual[i] : x[i]);
    const float weight = to_float(static_cast<const T*>(args.weight)[i]) + args.weight_offset;
    y[i] = from_float<T>(value * scale * weight);
  }
}

// Three passes over a row that stays in L1: model families with layer norms are small.
template <typename T>
__global__ void __launch_bounds__(kNormThreads) layer_norm_kernel(LayerNormArgs args) {
  __shared__ float scratch[32];
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const auto dim = static_cast<float>(args.dim);
  float sum = 0, squares = 0;
  for (int i = threadIdx.x; i < args.dim; i += blockDim.x) sum += to_float(x[i]);
  const float mean = block_sum(sum, scratch) / dim;
  for (int i = threadIdx.x; i < args.dim; i += blockDim.x) {
    const float value = to_float(x[i]) - mean;
    squares += value * value;
  }
  const float scale = 1.0f / sqrtf(block_sum(squares, scratch) / dim + args.epsilon);
  T* y = static_cast<T*>(args.y) + row * args.y_stride;
  for (int i = threadIdx.x; i < args.dim; i += blockDim.x) {
    const float weight = to_float(static_cast<const T*>(args.weight)[i]);
    const float bias = to_float(static_cast<const T*>(args.bias)[i]);
    y[i] = from_float<T>((to_float(x[i]) - mean) * scale * weight + bias);
  }
}

template <typename T>
__global__ void __launch_bounds__(kNormThreads) scale_columns_kernel(ScaleColumnsArgs args) {
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  T* y = static_cast<T*>(args.y) + row * args.y_stride;
  for (int i = threadIdx.x; i < args.dim; i += blockDim.x)
    y[i] = from_float<T>(to_float(x[i]) * to_float(static_cast<const T*>(args.weight)[i]));
}

template <typename T>
__global__ void __launch_bounds__(kNormThreads) mean_parts_kernel(MeanPartsArgs args) {
  release_next();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  T* y = static_cast<T*>(args.y) + row * args.y_stride;
  for (int i = threadIdx.x; i < args.dim; i += blockDim.x) {
    float sum = 0;
    for (int part = 0; part < args.parts; ++part) sum += to_float(x[part * args.dim + i]);
    y[i] = from_float<T>(sum / static_cast<float>(args.parts));
  }
}

template <typename T>
__global__ void __launch_bounds__(kNormThreads) pool_rows_kernel(PoolRowsArgs args) {
  release_next();
  wait_for_previous();
  const int i = static_cast<int>(blockIdx.y * kNormThreads + threadIdx.x);
  if (i >= args.dim) return;
  const int begin = args.begins[blockIdx.x], end = args.begins[blockIdx.x + 1];
  const T* const x = static_cast<const T*>(args.x) + i;
  float pooled = to_float(x[begin * args.x_stride]);
  for (int row = begin + 1; row < end; ++row) {
    const float value = to_float(x[row * args.x_stride]);
    pooled = args.largest ? fmaxf(pooled, value) : pooled + value;
  }
  if (!args.largest) pooled /= static_cast<float>(end - begin);
  args.y[int64_t{blockIdx.x} * args.dim + i] = pooled;
}

template <typename T>
Status launch_rows(const RmsNormArgs& args, const LaunchOptions& launch) {
  const auto grid = dim3(static_cast<unsigned>(args.rows));
  const auto fits = [](const void* pointer, int64_t stride) {
    return pointer == nullptr || (aligned(pointer, 16) && stride % 8 == 0);
  };
  const bool by_eights = args.dim % 8 == 0 && fits(args.x, args.x_stride) &&
                         fits(args.residual, args.residual_stride) && fits(args.y, args.y_stride) &&
                         fits(args.weight, 0);
  if (!by_eights)
    return launch_kernel("rms_norm", rms_norm_any_kernel<T>, grid, kNormThreads, 0, launch, args);
  const int eights = args.dim / 8;
  const auto start = [&](auto kernel, int chunks) {
    const int threads = ((eights + chunks - 1) / chunks + 31) / 32 * 32;
    return launch_kernel("rms_norm", kernel, grid, dim3(static_cast<unsigned>(threads)), 0, launch,
                         args);
  };
  if (eights <= kNormThreads) return start(rms_norm_kernel<T, 1>, 1);
  if (eights <= 2 * kNormThreads) return start(rms_norm_kernel<T, 2>, 2);
  return start(rms_norm_kernel<T, 8>, 8);
}

}  // namespace

Status rms_norm(const RmsNormArgs& args, const LaunchOptions& launch) {
  if (args.dim < 1 || args.dim > kNormMaxDim)
    return invalid_argument("rms_norm: dim is {}, but must be in [1, {}]", args.dim, kNormMaxDim);
  if (args.rows < 0) return invalid_argument("rms_norm: rows is {}", args.rows);
  if (args.y == nullptr && args.residual == nullptr)
    return invalid_argument("rms_norm: neither y nor residual is given");
  if (args.rows == 0) return {};
  switch (args.type) {
    case DType::kBFloat16:
      return launch_rows<bf16>(args, launch);
    case DType::kFloat32:
      return launch_rows<float>(args, launch);
    default:
      return error(StatusCode::kUnimplemented, "rms_norm: {} is not supported",
                   dtype_name(args.type));
  }
}

Status layer_norm(const LayerNormArgs& args, const LaunchOptions& launch) {
  if (args.dim < 1 || args.rows < 0)
    return invalid_argument("layer_norm: {} rows of {}", args.rows, args.dim);
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "layer_norm: F16 is not supported");
  if (args.rows == 0) return {};
  return launch_kernel(
      "layer_norm",
      args.type == DType::kBFloat16 ? layer_norm_kernel<bf16> : layer_norm_kernel<float>,
      dim3(static_cast<unsigned>(args.rows)), kNormThreads, 0, launch, args);
}

Status scale_columns(const ScaleColumnsArgs& args, const LaunchOptions& launch) {
  if (args.dim < 1 || args.rows < 0)
    return invalid_argument("scale_columns: {} rows of {}", args.rows, args.dim);
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "scale_columns: F16 is not supported");
  if (args.rows == 0) return {};
  return launch_kernel(
      "scale_columns",
      args.type == DType::kBFloat16 ? scale_columns_kernel<bf16> : scale_columns_kernel<float>,
      dim3(static_cast<unsigned>(args.rows)), kNormThreads, 0, launch, args);
}

Status mean_parts(const MeanPartsArgs& args, const LaunchOptions& launch) {
  if (args.dim < 1 || args.rows < 0 || args.parts < 1)
    return invalid_argument("mean_parts: {} rows of {} parts of {}", args.rows, args.parts,
                            args.dim);
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "mean_parts: F16 is not supported");
  if (args.rows == 0) return {};
  return launch_kernel(
      "mean_parts",
      args.type == DType::kBFloat16 ? mean_parts_kernel<bf16> : mean_parts_kernel<float>,
      dim3(static_cast<unsigned>(args.rows)), kNormThreads, 0, launch, args);
}

Status pool_rows(const PoolRowsArgs& args, const LaunchOptions& launch) {
  if (args.dim < 1 || args.texts < 0)
    return invalid_argument("pool_rows: {} texts of {} columns", args.texts, args.dim);
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "pool_rows: F16 is not supported");
  if (args.texts == 0) return {};
  const dim3 grid(static_cast<unsigned>(args.texts),
                  static_cast<unsigned>((args.dim + kNormThreads - 1) / kNormThreads));
  return launch_kernel(
      "pool_rows", args.type == DType::kBFloat16 ? pool_rows_kernel<bf16> : pool_rows_kernel<float>,
      grid, kNormThreads, 0, launch, args);
}

}  // namespace espalier::kernels::cuda
