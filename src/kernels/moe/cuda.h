// Mixture of experts on the GPU: rows are permuted by expert (arrange), each expert multiplies its
// own rows (grouped_linear), and the results go back to the rows (combine). Nothing synchronises
// with the host: the number of rows of an expert is known on the device alone, and grids cover the
// maximum.
//
// Thread-safe; pointers are borrowed device memory; requirements of streams and strides as
// kernels/cuda/stream.h.
#pragma once

#include <optional>

#include "kernels/activation/op.h"
#include "kernels/cuda/stream.h"
#include "kernels/router/cuda.h"

namespace espalier::kernels::cuda {

// The permutation of a step. A (token, expert) pair is row * top_k + rank; a slot is its index in
// the order of experts. Device memory, laid out by the caller. Where ranks have experts of their
// own, the plan is of those that are here, from 0 on, and pairs of others have no slot.
inline constexpr int32_t kNoSlot = -1;
struct ExpertPlan {
  int32_t* slots = nullptr;   // [pairs]: of each pair, or kNoSlot
  int32_t* pairs = nullptr;   // [pairs]: of each slot
  int32_t* begins = nullptr;  // [experts + 1]: each expert's first slot
  int32_t* tiles = nullptr;   // [experts + 1]: each expert's first tile
};

struct ArrangeArgs {
  const int32_t* experts = nullptr;  // [num_pairs]: what route() chose
  int32_t num_pairs = 0;             // 0 does nothing
  // That the router selects among, or their slots where there are replicas; at most kMaxExperts.
  int32_t num_experts = 0;
  int32_t first_local = 0;  // of the experts (slots) that are here,
  int32_t num_local = 0;    // so many; 0: all
  ExpertPlan plan;
  PairCounter counts;         // where pairs are counted, if at all
  int32_t pairs_per_row = 1;  // of the counted ones, and where there are replicas
  Replicas replicas;
};
Status arrange(const ArrangeArgs& args, const LaunchOptions& launch);

// route(), and arrange() of what it chose, as one kernel where there are few rows. REQUIRES:
// args.experts = chosen.experts and args.num_pairs = chosen.rows * chosen.spec.top_k.
Status route_and_arrange(const RouteArgs& chosen, const ArrangeArgs& args,
                         const LaunchOptions& launch);

// y = x W^T (+ bias), each group of rows by its own matrix; with an activation y =
// activation(gate) * up, where gate is the first half of the outputs and up the second.
struct GroupedArgs {
  DType type = DType::kBFloat16;  // of all that has no scales: kBFloat16 or kFloat32
  int32_t num_groups = 0;
  // By a permutation, the experts that the router selects among, of which num_groups are here, so
  // that about num_groups / num_experts of the pairs have a slot; 0: num_groups.
  int32_t num_experts = 0;
  int32_t in_features = 0;   // a multiple of 8, with scales of 16
  int32_t out_features = 0;  // a multiple of 2
  const void* x = nullptr;   // rows x_stride apart, 16-byte aligned
  int64_t x_stride = 0;
  const void* weights = nullptr;  // [out_features, in_features] of a group,
  int64_t weights_stride = 0;     // elements between groups
  // Not null: x and weights are e4m3, times the scale of their rows (quantize_rows.h). On Hopper
  // alone, by a permutation, with an activation where pairs_per_row is not 0 and none where it is.
  const float* x_scales = nullptr;       // [rows of x]
  const float* weight_scales = nullptr;  // [num_groups, out_features]
  // The scales are of blocks instead, as in linear/cuda.h: of weights [num_groups][scale_blocks(
  // out_features)], with an activation y's columns are a multiple of 128.
  bool block_scales = false;
  int64_t x_scale_stride = 0;
  // The weights are records of mxfp4_weights.h, weights_stride bytes between groups, gated where
  // there is an activation; x is bfloat16. As with e4m3 on Hopper alone, and in these forms.
  bool mxfp4 = false;
  // The same of records of int4_experts.h.
  bool int4 = false;
  const void* bias = nullptr;  // [num_groups, out_features], or none
  void* y = nullptr;           // rows y_stride apart
  int64_t y_stride = 0;
  // Only where grouped_linear_fuses(args).
  std::optional<Activation> activation;
  float limit = 0;  // Activation::kClampedSwiglu
  // A row's bits may not depend on how many rows there are.
  bool row_invariant = false;
  // Either by a permutation: y has a row for each slot, and slot s reads row pairs[s] /
  // pairs_per_row of x, or row s where that is 0.
  const ExpertPlan* plan = nullptr;  // on the host
  int32_t num_pairs = 0;
  int32_t pairs_per_row = 0;
  // Or every group has `rows` rows of x and y, with these strides (elements) between groups.
  int32_t rows = 0;
  int64_t x_group_stride = 0;
  int64_t y_group_stride = 0;
  int32_t int4_group = 128;  // of int4: inputs of a group, 128 or 32
};
// The experts that the router selects among.
inline int32_t num_routed(const GroupedArgs& args) {
  return args.num_experts > 0 ? args.num_experts : args.num_groups;
}
Status grouped_linear(const GroupedArgs& args, const LaunchOptions& launch);
// Whether grouped_linear() can apply args.activation on the current device.
Result<bool> grouped_linear_fuses(const GroupedArgs& args);

// y[row] = residual[row] + scale * (sum over its pairs of weight * x[slot] + shared), in float32,
// in the order of the row's experts, rounded once.
struct CombineArgs {
  DType type = DType::kBFloat16;
  const void* x = nullptr;         // [pairs, dim]
  const int32_t* slots = nullptr;  // [rows, top_k]
  const float* weights = nullptr;  // [rows, top_k]
  int32_t top_k = 0;               // 0: the shared expert alone
  bool lacks_slots = false;        // some slots are kNoSlot, and their pairs add nothing
  // [rows, dim], or none; times sigmoid(shared_gate[row]) where that is given.
  const void* shared = nullptr;
  const float* shared_gate = nullptr;
  const void* residual = nullptr;  // [rows, dim], or none; may be y
  void* y = nullptr;               // [rows, dim]
  int32_t rows = 0;                // 0 does nothing
  int32_t dim = 0;                 // a multiple of 8
  float scale = 1;
};
Status combine(const CombineArgs& args, const LaunchOptions& launch);

// Copies columns [from_begin, from_begin + count) of every head of x
// to [to_begin, ...) of y's: y[row, head, to_begin + i] = x[row, head, from_begin + i].
struct CopyPartsArgs {
  DType type = DType::kBFloat16;
  const void* x = nullptr;  // [rows, heads, x_head]
  int64_t x_stride = 0;     // between rows, in elements
  int32_t x_head = 0;       // between heads
  int32_t from_begin = 0;
  void* y = nullptr;
  int64_t y_stride = 0;
  int32_t y_head = 0;
  int32_t to_begin = 0;
  int32_t count = 0;
  int32_t rows = 0;  // 0 does nothing
  int32_t heads = 0;
};
Status copy_parts(const CopyPartsArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
