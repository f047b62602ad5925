// Routing of a mixture of experts on the CPU: the top-k experts of each token and their weights,
// and the results of experts back to tokens. Arguments are borrowed for the call.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/backend.h"

namespace espalier::kernels {

struct RouterSpec {
  enum class Scoring : uint8_t {
    kSoftmax,  // over all experts: Mixtral, Qwen, DeepSeek-V2, gpt-oss
    kSigmoid,  // each by itself: DeepSeek-V3
  };
  int32_t num_experts = 0;
  int32_t top_k = 0;  // experts of a token
  Scoring scoring = Scoring::kSoftmax;
  bool normalise = false;  // the weights of the selected experts are divided by their sum
  float scale = 1;         // then multiplied by this
  // With more than one group the experts form groups of equal size, and only those of the
  // `top_groups` best groups can be selected. A group is as good as its best expert, or as the sum
  // of its best two (group_by_two).
  int32_t num_groups = 1;
  int32_t top_groups = 1;
  bool group_by_two = false;
  // A value for each expert is added to its score for the selection, not for the weight.
  bool correction = false;
};

struct RouteArgs {
  const float* logits = nullptr;  // [rows, num_experts]
  int64_t rows = 0;
  const float* correction = nullptr;  // [num_experts], where the spec has it
  int32_t* experts = nullptr;         // [rows, top_k], ascending in a row
  float* weights = nullptr;           // [rows, top_k], beside them
};

// Among equal scores the smaller index is selected. A row does not depend on the others. A NaN
// among the logits makes the row's weights NaN. REQUIRES: 0 < top_k <= the experts of top_groups
// groups, num_experts a multiple of num_groups, at most kMaxExperts.
void route(const RouterSpec& spec, const RouteArgs& args);
inline constexpr int32_t kMaxExperts = 1024;

// Experts lie in slots, busy ones in several (replicas). Of table, [num_experts + 1] begins and
// behind them slots, expert e has the slots [begins[e], begins[e + 1]). The replica that a token
// takes: they take turns by position, so that it depends on the token and its position alone, and
// those of several experts do not coincide.
constexpr int32_t replica_of(int32_t expert, int32_t position, int32_t num_replicas) {
  return static_cast<int32_t>((static_cast<uint32_t>(position) + static_cast<uint32_t>(expert)) %
                              static_cast<uint32_t>(num_replicas));
}
struct ReplicasArgs {
  const int32_t* table = nullptr;
  int32_t num_experts = 0;
  std::span<const int32_t> positions;  // [rows], of the tokens
  int32_t* experts = nullptr;          // [rows, top_k]: become slots, ascending in a row
  float* weights = nullptr;            // [rows, top_k], beside them
  int32_t top_k = 0;
};
void choose_replicas(const ReplicasArgs& args);

// Adds what one expert computed to its tokens: y[rows[i]] += weights[i] * x[i].
struct ScatterArgs {
  const float* x = nullptr;        // [rows.size(), dim], rows adjacent
  std::span<const int32_t> rows;   // each once
  const float* weights = nullptr;  // [rows.size()]
  float* y = nullptr;              // [any, dim], rows y_stride elements apart
  int64_t y_stride = 0;
  int64_t dim = 0;
};
void scatter_add(CpuBackend& backend, const ScatterArgs& args);

// Adds what several experts computed to their tokens: y[row] += weight * x[slot] for each of the
// row's top-k experts, in their order. Rows of x are slots [first_slot, first_slot + num_slots);
// pairs of other slots add nothing.
struct CombineArgs {
  const float* x = nullptr;        // [num_slots, dim]
  const int32_t* slots = nullptr;  // [rows, top_k]
  const float* weights = nullptr;  // [rows, top_k]
  float* y = nullptr;              // [rows, dim]
  int64_t rows = 0;
  int64_t top_k = 0;
  int64_t dim = 0;
  int64_t first_slot = 0, num_slots = 0;
};
void combine_experts(CpuBackend& backend, const CombineArgs& args);

}  // namespace espalier::kernels
