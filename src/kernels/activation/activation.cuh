// The activations on the device, of one element. Device code only.
#pragma once

#include "kernels/activation/op.h"
#include "kernels/cuda/device.cuh"

namespace espalier::kernels::cuda {

__device__ __forceinline__ float gelu_tanh(float v) {
  constexpr float kRoot = 0.7978845608028654f;  // sqrt(2 / pi)
  return 0.5f * v * (1.0f + tanhf(kRoot * (v + 0.044715f * v * v * v)));
}

template <Activation ACTIVATION>
__device__ __forceinline__ float activated(float gate, float up, float limit) {
  if constexpr (ACTIVATION == Activation::kSilu) {
    // __fdividef costs two units in the last place more than a division, which takes most of the
    // instructions.
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
  } else if constexpr (ACTIVATION == Activation::kGeluTanh) {
    return gelu_tanh(gate) * up;
  } else {
    gate = fminf(gate, limit);
    up = fminf(fmaxf(up, -limit), limit);
    return gate / (1.0f + __expf(-1.702f * gate)) * (up + 1.0f);
  }
}

// As above, for an activation that is known only at run time.
__device__ __forceinline__ float activated(Activation activation, float gate, float up,
                                           float limit) {
  switch (activation) {
    case Activation::kSilu:
      return activated<Activation::kSilu>(gate, up, limit);
    case Activation::kGeluTanh:
      return activated<Activation::kGeluTanh>(gate, up, limit);
    default:
      return activated<Activation::kClampedSwiglu>(gate, up, limit);
  }
}

}  // namespace espalier::kernels::cuda
