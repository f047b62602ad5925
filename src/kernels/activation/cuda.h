// Elementwise operations between the GEMMs, on the GPU. Thread-safe; pointers are borrowed device
// memory; requirements of streams as kernels/cuda/stream.h.
#pragma once

#include "kernels/activation/gelu.h"
#include "kernels/activation/op.h"
#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

struct GatedArgs {
  DType type = DType::kBFloat16;  // of all three: kBFloat16 or kFloat32
  const void* gate = nullptr;     // [rows, dim], rows gate_stride apart
  int64_t gate_stride = 0;
  const void* up = nullptr;  // null: the activation of gate alone
  int64_t up_stride = 0;
  void* y = nullptr;  // may be gate or up
  int64_t y_stride = 0;
  int32_t rows = 0;  // 0 does nothing
  int32_t dim = 0;
  Activation activation = Activation::kSilu;
  float limit = 0;  // kClampedSwiglu, which needs up
};
// y = activation(gate) * up, in float32, rounded once.
Status gated(const GatedArgs& args, const LaunchOptions& launch);

using SiluMulArgs = GatedArgs;
inline Status silu_mul(const SiluMulArgs& args, const LaunchOptions& launch) {
  return gated(args, launch);
}

// y = gelu(x) * up, in float32, rounded once.
struct GeluRowsArgs {
  DType type = DType::kBFloat16;  // of both: kBFloat16 or kFloat32
  Gelu kind = Gelu::kErf;
  const void* x = nullptr;  // [rows, dim], rows x_stride apart
  int64_t x_stride = 0;
  const void* up = nullptr;  // the same shape; null: the GELU alone
  int64_t up_stride = 0;
  void* y = nullptr;  // may be x
  int64_t y_stride = 0;
  int32_t rows = 0;  // 0 does nothing
  int32_t dim = 0;
};
Status gelu(const GeluRowsArgs& args, const LaunchOptions& launch);

// x = softcap * tanh(scale * x / softcap), or scale * x where softcap is 0; in place.
struct ScaleArgs {
  DType type = DType::kBFloat16;  // kBFloat16 or kFloat32
  void* x = nullptr;              // [rows, dim], rows x_stride apart
  int64_t x_stride = 0;
  int32_t rows = 0;  // 0 does nothing
  int32_t dim = 0;
  float scale = 1;
  float softcap = 0;
};
Status scale(const ScaleArgs& args, const LaunchOptions& launch);

// y += scale * x, rounded once.
struct AddScaledArgs {
  DType type = DType::kBFloat16;
  const void* x = nullptr;  // [rows, dim]
  int64_t x_stride = 0;
  void* y = nullptr;  // [rows, dim]
  int64_t y_stride = 0;
  int32_t rows = 0;  // 0 does nothing
  int32_t dim = 0;
  float scale = 1;
};
Status add_scaled(const AddScaledArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
