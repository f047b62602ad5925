// Elementwise operations between the GEMMs, on the CPU. Each call runs in parallel on the back
// end's pool; arguments are borrowed for the call.
#pragma once

#include <cstdint>

#include "kernels/cpu/backend.h"

namespace espalier::kernels {

enum class Activation : uint8_t {
  kSilu,      // v / (1 + exp(-v))
  kGeluTanh,  // v / 2 * (1 + tanh(sqrt(2 / pi) * (v + 0.044715 v^3))): GPT-2's and Gemma's
  // gpt-oss: g / (1 + exp(-1.702 g)) * (u + 1), where g is the gate, at most `limit`, and u is up,
  // within -limit and limit. Only with a gate.
  kClampedSwiglu,
};

// y[row, i] = activation(gate[row, i]) * up[row, i], for i < dim; without up (null) the activation
// alone. gate, up, y: [rows, dim] float32, strides in elements; y may be gate or up. Where gate and
// up come from one GEMM and the activation is SiLU, linear_silu_mul does both.
struct GatedArgs {
  Activation activation = Activation::kSilu;
  float limit = 0;  // kClampedSwiglu
  const float* gate = nullptr;
  int64_t gate_stride = 0;
  const float* up = nullptr;
  int64_t up_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  int64_t rows = 0;
  int64_t dim = 0;
};
void gated(CpuBackend& backend, const GatedArgs& args);

// y[i] += x[i], i < count: a residual. linear() can accumulate instead.
void add(CpuBackend& backend, float* y, const float* x, int64_t count);

// y[i] *= factor, i < count.
void scale(CpuBackend& backend, float* y, float factor, int64_t count);

// y[i] += factor * x[i], i < count.
void add_scaled(CpuBackend& backend, float* y, const float* x, float factor, int64_t count);

// y[i] = cap * tanh(y[i] / cap), i < count: a limit that logits come near and never pass.
void softcap(CpuBackend& backend, float* y, float cap, int64_t count);

namespace reference {
void gated(const GatedArgs& args);
}  // namespace reference

}  // namespace espalier::kernels
