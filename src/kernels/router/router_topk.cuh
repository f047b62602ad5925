// The top-k experts of one row, by a warp; computes what kernels::route does (router/op.h). Device
// code only.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/router/op.h"

namespace espalier::kernels::cuda {

// Words of shared memory that a row needs: its logits, which become its scores; the scores by which
// experts are selected; and those of groups.
__host__ __device__ inline int route_words(const RouterSpec& spec) {
  return 2 * spec.num_experts + spec.num_groups;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

// Maps floats to integers of the same order, all above 0, which marks a taken entry.
__device__ __forceinline__ uint32_t route_key(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 is 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Takes the largest of keys[0, count), the first among equals, and returns its index.
__device__ __forceinline__ int take_best(uint32_t* keys, int count, int lane) {
  uint32_t best = 0;
  int at = 0x7fffffff;
#pragma unroll 4
  for (int i = lane; i < count; i += 32)
    if (keys[i] > best) best = keys[i], at = i;
  const uint32_t most = __reduce_max_sync(~0u, best);
  at = __reduce_min_sync(~0u, best == most ? at : 0x7fffffff);
  if (lane == at % 32) keys[at] = 0;
  __syncwarp();
  return at;
}

// Masks the experts of all groups but the best top_groups.
__device__ __forceinline__ void mask_groups(const RouterSpec& spec, float* selection_score,
                                            uint32_t* groups, int lane) {
  const int size = spec.num_experts / spec.num_groups;
#pragma unroll 1
  for (int g = lane; g < spec.num_groups; g += 32) {
    float first = -INFINITY, second = -INFINITY;
#pragma unroll 1
    for (int i = g * size; i < (g + 1) * size; ++i) {
      second = fmaxf(second, fminf(first, selection_score[i]));
      first = fmaxf(first, selection_score[i]);
    }
    groups[g] = route_key(spec.group_by_two ? first + second : first);
  }
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < spec.top_groups; ++i) take_best(groups, spec.num_groups, lane);
#pragma unroll 1
  for (int i = lane; i < spec.num_experts; i += 32)
    if (groups[i / size] != 0) selection_score[i] = -INFINITY;
  __syncwarp();
}

// Turns logits into scores; returns whether one of them is NaN.
__device__ __forceinline__ bool score_row(const RouterSpec& spec, float* scores, int lane) {
  const int count = spec.num_experts;
  float largest = -INFINITY, sum = 0;
  bool nan = false;
#pragma unroll 4
  for (int i = lane; i < count; i += 32) {
    largest = fmaxf(largest, scores[i]);
    nan |= scores[i] != scores[i];
  }
  nan = __any_sync(~0u, nan);
  if (spec.scoring == RouterSpec::Scoring::kSigmoid) {
#pragma unroll 1
    for (int i = lane; i < count; i += 32) scores[i] = 1.0f / (1.0f + expf(-scores[i]));
    return nan;
  }
  largest = warp_max(largest);
#pragma unroll 4
  for (int i = lane; i < count; i += 32) {
    scores[i] = expf(scores[i] - largest);
    sum += scores[i];
  }
  sum = warp_sum(sum);
#pragma unroll 1
  for (int i = lane; i < count; i += 32) scores[i] /= sum;
  return nan;
}

// The float whose route_key() this is.
__device__ __forceinline__ float value_of_key(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// route_row() of at most 32 * kExpertsOfLane experts without groups, in registers: a decode step
// waits for this chain of instructions, of which most are fetched for the first time.
inline constexpr int kExpertsOfLane = 4;

__device__ __forceinline__ void route_few(const RouterSpec& spec, const float* correction,
                                          const float* logits, int lane, int32_t* experts,
                                          float* weights) {
  float scores[kExpertsOfLane];  // of experts lane, lane + 32, ...
  uint32_t keys[kExpertsOfLane];
  const auto expert = [lane](int i) { return lane + 32 * i; };
  const bool softmax = spec.scoring == RouterSpec::Scoring::kSoftmax;
  float largest = -INFINITY, sum = 0;
  bool nan = false;
#pragma unroll
  for (int i = 0; i < kExpertsOfLane; ++i) {
    scores[i] = expert(i) < spec.num_experts ? logits[expert(i)] : -INFINITY;
    largest = fmaxf(largest, scores[i]);
    nan |= scores[i] != scores[i];
  }
  nan = __any_sync(~0u, nan);
  if (softmax) largest = value_of_key(__reduce_max_sync(~0u, route_key(largest)));
#pragma unroll
  for (int i = 0; i < kExpertsOfLane; ++i) {
    const float e = expf(softmax ? scores[i] - largest : -scores[i]);
    scores[i] = softmax ? e : 1.0f / (1.0f + e);
    sum += scores[i];
  }
  sum = softmax ? warp_sum(sum) : 1.0f;
#pragma unroll
  for (int i = 0; i < kExpertsOfLane; ++i) {
    scores[i] /= sum;
    const bool known = expert(i) < spec.num_experts;
    const float value = scores[i] + (correction != nullptr && known ? correction[expert(i)] : 0.0f);
    keys[i] = known ? route_key(value == value ? value : -INFINITY) : 0;
  }
#pragma unroll 1
  for (int taken = 0; taken < spec.top_k; ++taken) {
    uint32_t best = 0;
    int at = 0x7fffffff;
#pragma unroll
    for (int i = 0; i < kExpertsOfLane; ++i)
      if (keys[i] > best) best = keys[i], at = expert(i);
    const uint32_t most = __reduce_max_sync(~0u, best);
    at = __reduce_min_sync(~0u, best == most ? at : 0x7fffffff);
#pragma unroll
    for (int i = 0; i < kExpertsOfLane; ++i)
      if (at == expert(i)) keys[i] = 0;
  }
  sum = 0;
#pragma unroll
  for (int i = 0; i < kExpertsOfLane; ++i)
    if (expert(i) < spec.num_experts && keys[i] == 0) sum += scores[i];
  sum = spec.normalise ? warp_sum(sum) : 1.0f;
  int before = 0;  // taken experts of lower numbers
#pragma unroll
  for (int i = 0; i < kExpertsOfLane; ++i) {
    const bool taken = expert(i) < spec.num_experts && keys[i] == 0;
    const uint32_t all = __ballot_sync(~0u, taken);
    const int at = before + __popc(all & ((1u << lane) - 1));
    if (taken) experts[at] = expert(i), weights[at] = nan ? NAN : scores[i] / sum * spec.scale;
    before += __popc(all);
  }
  __syncwarp();
}

// Selects a row's experts. words: [route_words()] in shared memory, the logits first, visible to
// the whole warp. Experts and weights: [top_k] in any memory. Loops are rolled up, since kernels
// that stream weights also wait for their instructions.
__device__ __forceinline__ void route_row(const RouterSpec& spec, const float* correction,
                                          float* words, int lane, int32_t* experts,
                                          float* weights) {
  const int count = spec.num_experts;
  if (count <= 32 * kExpertsOfLane && spec.num_groups == 1)
    return route_few(spec, correction, words, lane, experts, weights);
  float* scores = words;
  float* selection_score = words + count;
  auto* keys = reinterpret_cast<uint32_t*>(selection_score);
  const bool nan = score_row(spec, scores, lane);
#pragma unroll 1
  for (int i = lane; i < count; i += 32) {
    const float value = scores[i] + (correction == nullptr ? 0.0f : correction[i]);
    selection_score[i] = value == value ? value : -INFINITY;
  }
  if (spec.num_groups > 1) {
    __syncwarp();
    mask_groups(spec, selection_score, reinterpret_cast<uint32_t*>(selection_score + count), lane);
  }
#pragma unroll 1
  for (int i = lane; i < count; i += 32) keys[i] = route_key(selection_score[i]);
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < spec.top_k; ++i) take_best(keys, count, lane);
    // Collects the taken experts in ascending order.
#pragma unroll 1
  for (int first = 0, known = 0; known < spec.top_k; first += 32) {
    const int i = first + lane;
    const bool taken = i < count && keys[i] == 0;
    const uint32_t all = __ballot_sync(~0u, taken);
    if (taken) experts[known + __popc(all & ((1u << lane) - 1))] = i;
    known += __popc(all);
  }
  __syncwarp();
  float sum = 0;
#pragma unroll 1
  for (int i = lane; i < spec.top_k; i += 32) sum += scores[experts[i]];
  sum = spec.normalise ? warp_sum(sum) : 1.0f;
#pragma unroll 1
  for (int i = lane; i < spec.top_k; i += 32)
    weights[i] = nan ? NAN : scores[experts[i]] / sum * spec.scale;
}

}  // namespace espalier::kernels::cuda
