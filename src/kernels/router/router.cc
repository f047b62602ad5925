#include "kernels/router/op.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/check.h"
#include "kernels/cpu/share_rows.h"
#include "kernels/cpu/table.h"

namespace espalier::kernels {
namespace {

void score(const RouterSpec& spec, const float* logits, std::span<float> scores) {
  if (spec.scoring == RouterSpec::Scoring::kSigmoid) {
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = 1.0f / (1.0f + std::exp(-logits[i]));
    return;
  }
  const float largest = *std::max_element(logits, logits + scores.size());
  float sum = 0;
  for (size_t i = 0; i < scores.size(); ++i) sum += scores[i] = std::exp(logits[i] - largest);
  for (float& value : scores) value /= sum;
}

// The largest of `values` whose `taken` is false, marked as taken; the first among equals. -1 where
// all are taken.
int32_t take_best(std::span<const float> values, std::span<bool> taken) {
  int32_t best = -1;
  for (size_t i = 0; i < values.size(); ++i) {
    if (taken[i]) continue;
    if (best < 0 || values[i] > values[static_cast<size_t>(best)]) best = static_cast<int32_t>(i);
  }
  if (best >= 0) taken[static_cast<size_t>(best)] = true;
  return best;
}

float group_score(const RouterSpec& spec, std::span<const float> selection_scores) {
  float first = -INFINITY, second = -INFINITY;
  for (const float value : selection_scores) {
    if (value > first) {
      second = first;
      first = value;
    } else if (value > second) {
      second = value;
    }
  }
  return spec.group_by_two ? first + second : first;
}

// Marks the experts of all groups but the best ones as taken.
void mask_groups(const RouterSpec& spec, std::span<const float> selection_scores,
                 std::span<bool> taken) {
  const size_t size = selection_scores.size() / static_cast<size_t>(spec.num_groups);
  float scores[kMaxExperts];
  bool open[kMaxExperts] = {};
  const auto groups = static_cast<size_t>(spec.num_groups);
  for (size_t i = 0; i < groups; ++i)
    scores[i] = group_score(spec, selection_scores.subspan(i * size, size));
  for (int32_t i = 0; i < spec.top_groups; ++i) take_best({scores, groups}, {open, groups});
  for (size_t i = 0; i < groups; ++i) {
    if (!open[i]) std::ranges::fill(taken.subspan(i * size, size), true);
  }
}

void route_row(const RouterSpec& spec, const float* logits, const float* correction,
               int32_t* experts, float* weights) {
  const auto count = static_cast<size_t>(spec.num_experts);
  float scores[kMaxExperts], selection_scores[kMaxExperts];
  bool taken[kMaxExperts] = {};
  score(spec, logits, {scores, count});
  for (size_t i = 0; i < count; ++i)
    selection_scores[i] = scores[i] + (correction ? correction[i] : 0.0f);
  if (spec.num_groups > 1) mask_groups(spec, {selection_scores, count}, {taken, count});
  for (int32_t i = 0; i < spec.top_k; ++i)
    experts[i] = take_best({selection_scores, count}, {taken, count});
  std::sort(experts, experts + spec.top_k);
  float sum = 0;
  for (int32_t i = 0; i < spec.top_k; ++i) sum += weights[i] = scores[experts[i]];
  if (!spec.normalise) sum = 1;
  for (int32_t i = 0; i < spec.top_k; ++i) weights[i] = weights[i] / sum * spec.scale;
}

}  // namespace

void route(const RouterSpec& spec, const RouteArgs& args) {
  ESP_CHECK(spec.num_experts > 0 && spec.num_experts <= kMaxExperts && spec.top_k > 0 &&
                spec.num_groups > 0 && spec.num_experts % spec.num_groups == 0 &&
                spec.top_k <= spec.num_experts / spec.num_groups * spec.top_groups,
            "{} of {} experts in {} of {} groups", spec.top_k, spec.num_experts, spec.top_groups,
            spec.num_groups);
  ESP_CHECK(spec.correction == (args.correction != nullptr));
  for (int64_t row = 0; row < args.rows; ++row) {
    route_row(spec, args.logits + row * spec.num_experts, args.correction,
              args.experts + row * spec.top_k, args.weights + row * spec.top_k);
  }
}

// The slots of a row are sorted by insertion, for there are few.
void choose_replicas(const ReplicasArgs& args) {
  const int32_t* const slots = args.table + args.num_experts + 1;
  int32_t* experts = args.experts;
  float* weights = args.weights;
  for (const int32_t position : args.positions) {
    for (int32_t i = 0; i < args.top_k; ++i) {
      const int32_t expert = experts[i], begin = args.table[expert];
      const int32_t count = args.table[expert + 1] - begin;
      const int32_t slot = slots[begin + replica_of(expert, position, count)];
      const float weight = weights[i];
      int32_t at = i;
      for (; at > 0 && experts[at - 1] > slot; --at) {
        experts[at] = experts[at - 1];
        weights[at] = weights[at - 1];
      }
      experts[at] = slot;
      weights[at] = weight;
    }
    experts += args.top_k;
    weights += args.top_k;
  }
}

void scatter_add(CpuBackend& backend, const ScatterArgs& args) {
  share_rows(backend, std::ssize(args.rows), args.dim, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      backend.table().add_scaled(args.y + args.rows[static_cast<size_t>(i)] * args.y_stride,
                                 args.x + i * args.dim, args.weights[i], args.dim);
    }
  });
}

void combine_experts(CpuBackend& backend, const CombineArgs& args) {
  share_rows(backend, args.rows, args.dim * args.top_k, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin * args.top_k; pair < end * args.top_k; ++pair) {
      const int64_t slot = args.slots[pair] - args.first_slot;
      if (slot < 0 || slot >= args.num_slots) continue;
      backend.table().add_scaled(args.y + pair / args.top_k * args.dim, args.x + slot * args.dim,
                                 args.weights[pair], args.dim);
    }
  });
}

}  // namespace espalier::kernels
