// Rewrites of programs. Each is a pure function: it takes a well-formed program and returns one
// that computes the same. A back end chooses the passes whose operations its interpreter has; see
// CpuModel for the CPU's list.
#pragma once

#include <functional>

#include "models/program/program.h"

namespace espalier::program {

// Whether a back end's GEMM applies this activation itself.
using TakesActivation = std::function<bool(const Matmul& matmul, const Activation& activation)>;

// matmul, activation -> matmul with the activation: the result needs no [gate; up] in memory. Also
// of the first GEMM of experts where fuse_moe_experts() has run.
Program fuse_activation(Program program, const TakesActivation& takes);

// matmul, residual_add -> matmul that adds to the residual, where the sum is not scaled.
Program fuse_residual(Program program);

// norm, matmul -> matmul with the norm, where `takes` agrees and nothing else reads the norm's
// result. The operation keeps the norm's buffer as its second output: an interpreter whose GEMM has
// no norm at some number of rows writes it.
using TakesNorm = std::function<bool(const Norm& norm, const Matmul& matmul)>;
Program fuse_norm(Program program, const TakesNorm& takes);

// all_reduce, residual_add -> all_reduce that adds its sum to the residual, where that is not
// scaled; and the RMS norm behind it, where a matmul comes next. A norm in front of a router stays:
// it begins a block of experts (gpu_passes.h).
Program fuse_all_reduce(Program program);

// norm of q's heads, norm of k's heads, rope, kv_append -> qk_rope_append; norms over all heads
// together stay in front.
Program fuse_qk_rope_append(Program program);

// moe_matmul, activation, moe_matmul, moe_combine -> moe_experts, whose interpreter decides how
// many pairs it holds at once.
Program fuse_moe_experts(Program program);

// moe_combine, additions of the shared expert and of the residual -> moe_combine with them, where
// nothing comes between.
Program fuse_moe_combine(Program program);

// The GEMMs of layers add what a row's LoRA adapter has for their matrix, where it has something.
// Experts, embeddings and heads have none. Runs before fuse_activation(), which must leave these
// GEMMs alone: an adapter adds to what the activation is applied to.
Program gain_adapters(Program program);

// Where the rows that nobody needs are dropped in the last layer.
enum class Selection : uint8_t {
  kBeforeAttention,  // queries of wanted rows alone
  kAfterAttention,   // the plan of a batch's attention stays one; of latents after the values
  kBehindLayers,     // all rows of the last layer are computed
};
// After the last layer's keys and values are written, only wanted rows are computed; where states
// behind that layer are kept for a draft head, behind those.
Program drop_unwanted_rows(Program program, Selection where);

// Leaves out what puts the rows of a text together (kPool), which the caller does: the program ends
// with the rows behind the final norm. REQUIRES: no head's layers stand behind it.
Program drop_pooling(Program program);

// Removes buffers and storages that no operation uses.
Program remove_unused_buffers(Program program);

// The weights whose GEMM has its activation fused: loaders that pack weights interleave gate and up
// there.
std::vector<WeightId> weights_with_activation(const Program& program);

}  // namespace espalier::program
