// Small-batch mixture of experts on Hopper: up to four rows (decode of one to four entries) as
// three kernels. Thread-safe; pointers are borrowed device memory; requirements of streams and
// strides as kernels/cuda/stream.h.
#pragma once

#include "kernels/activation/op.h"
#include "kernels/cuda/stream.h"
#include "kernels/router/cuda.h"
#include "kernels/router/op.h"

namespace espalier::kernels::cuda {

// The most rows, and the most (row, expert) pairs (rows x top_k). Beyond these bounds an expert's
// matrix multiplies several rows, and the grouped GEMMs of moe/cuda.h are as fast.
inline constexpr int32_t kSmallBatchMoeRows = 4;
inline constexpr int32_t kSmallBatchMoePairs = 32;
// With e4m3 weights and more rows than this, the grouped GEMMs of moe/cuda.h are faster.
inline constexpr int32_t kSmallBatchMoeFastRowsE4m3 = 2;

// y[row] = residual[row] + scale * (sum over its top_k experts of weight * expert(n) + gate *
// shared(n)), where n is norm(x[row]), an expert is down(activation(gate(n)) * up(n)), and its
// weight is what route() computes from the scores of n. All bfloat16 unless float is stated.
struct SmallBatchMoeArgs {
  DType type = DType::kBFloat16;
  int32_t rows = 0;                   // 0 does nothing
  int32_t dim = 0;                    // a multiple of 8
  const void* x = nullptr;            // [rows, dim]
  const void* norm_weight = nullptr;  // RMSNorm, [dim]; null: x is not normalised
  float norm_offset = 0;              // added to each weight
  float norm_epsilon = 1e-6f;

  RouterSpec router;
  // The experts that have matrices here, so many from the first on; 0: all. Those of other ranks
  // add nothing.
  int32_t first_local = 0, num_local = 0;
  Replicas replicas;                      // where they are slots; REQUIRES then: num_local is not 0
  const float* router_weights = nullptr;  // [experts, dim]
  const float* router_bias = nullptr;     // [experts], or none
  const float* correction = nullptr;      // [experts], where the router has it

  int32_t ffn = 0;  // a multiple of 8
  Activation activation = Activation::kSilu;
  float limit = 0;  // kClampedSwiglu
  // Of the experts that are here:
  const void* gate_up = nullptr;       // [experts, 2 ffn, dim]
  const void* gate_up_bias = nullptr;  // [experts, 2 ffn], or none
  const void* down = nullptr;          // [experts, dim, ffn]
  const void* down_bias = nullptr;     // [experts, dim], or none
  // Not null: the matrices of all experts are e4m3, a scale for each of their rows, and dim and all
  // ffn are multiples of 16.
  const float* gate_up_scales = nullptr;  // [experts, 2 ffn]
  const float* down_scales = nullptr;     // [experts, dim]

  // The experts' matrices are records of int4_experts.h or of mxfp4_weights.h, so many bytes
  // between experts; for one row alone, without a shared expert.
  bool int4 = false, mxfp4 = false;
  int32_t int4_group = 128;  // inputs: 128 or 32
  int64_t gate_up_stride = 0, down_stride = 0;

  int32_t shared_ffn = 0;                        // 0: no shared expert; a multiple of 8
  const void* shared_gate_up = nullptr;          // [2 shared_ffn, dim]
  const void* shared_down = nullptr;             // [dim, shared_ffn]
  const float* shared_gate_up_scales = nullptr;  // [2 shared_ffn], where the others have scales
  const float* shared_down_scales = nullptr;     // [dim]
  // The shared expert's gate is sigmoid(n . shared_gate_weights), [dim] float; null: 1.
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

  PairCounter counts;
};

// Whether small_batch_moe() supports these arguments on this device; it does on Hopper.
Result<bool> small_batch_moe_supports(const SmallBatchMoeArgs& args);
// REQUIRES: small_batch_moe_supports(args).
Status small_batch_moe(const SmallBatchMoeArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
