// A mixture of experts of few rows as three kernels: what one request and a handful of them decode.
#pragma once

#include "kernels/activation/op.h"
#include "kernels/cuda/stream.h"
#include "kernels/router/op.h"

namespace espalier::kernels::cuda {

// Of more rows, or of more choices (rows x top_k), matrices are read for so many rows that tiles of
// tensor cores (moe/cuda.h) do as well.
inline constexpr int32_t kSmallBatchMoeRows = 4;
inline constexpr int32_t kSmallBatchMoePairs = 32;

// y[row] = residual[row] + scale * (sum over its experts of weight * expert(n) + gate * shared(n)),
// where n is norm(x[row]), an expert down(activation(gate(n)) * up(n)), and its weight what
// route() makes of the scores of n. All of bfloat16 but what is said to be float.
struct SmallBatchMoeArgs {
  DType type = DType::kBFloat16;
  int32_t rows = 0;                   // 0 does nothing
  int32_t dim = 0;                    // a multiple of 8
  const void* x = nullptr;            // [rows, dim]
  const void* norm_weight = nullptr;  // RMSNorm, [dim]; none: x is taken as it is
  float norm_offset = 0;              // added to each weight
  float norm_epsilon = 1e-6f;

  RouterSpec router;
  const float* router_weights = nullptr;  // [experts, dim]
  const float* router_bias = nullptr;     // [experts], or none
  const float* correction = nullptr;      // [experts], where the router has it

  int32_t ffn = 0;  // a multiple of 8
  Activation activation = Activation::kSilu;
  float limit = 0;                     // kClampedSwiglu
  const void* gate_up = nullptr;       // [experts, 2 ffn, dim]
  const void* gate_up_bias = nullptr;  // [experts, 2 ffn], or none
  const void* down = nullptr;          // [experts, dim, ffn]
  const void* down_bias = nullptr;     // [experts, dim], or none

  int32_t shared_ffn = 0;                // 0: none is shared; a multiple of 8
  const void* shared_gate_up = nullptr;  // [2 shared_ffn, dim]
  const void* shared_down = nullptr;     // [dim, shared_ffn]
  // Its gate is sigmoid(n . shared_gate_weights), [dim] of float; none: 1.
  const float* shared_gate_weights = nullptr;

  const void* residual = nullptr;  // [rows, dim], or none; may be y
  void* y = nullptr;               // [rows, dim]; may be x
  float scale = 1;

  // Scratch, 16-byte aligned.
  void* normed = nullptr;        // [rows, dim]
  float* scores = nullptr;       // [rows, experts]
  float* shared_gate = nullptr;  // [rows]
  void* inner = nullptr;         // [rows, top_k, ffn]
  void* shared_inner = nullptr;  // [rows, shared_ffn]
};

// Whether small_batch_moe() does this here; it does on Hopper.
Result<bool> small_batch_moe_supports(const SmallBatchMoeArgs& args);
// REQUIRES: small_batch_moe_supports(args).
Status small_batch_moe(const SmallBatchMoeArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
