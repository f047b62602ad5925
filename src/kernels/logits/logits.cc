#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/table.h"
#include "kernels/logits/op.h"

namespace espalier::kernels {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

}  // namespace

float log_sum_exp(const CpuBackend& backend, std::span<const float> logits) {
  const auto count = static_cast<int64_t>(logits.size());
  const float most = backend.table().max(logits.data(), count);
  const float offset = most == kLowest ? 0.0f : most;
  const double sum = backend.table().sum_exp(logits.data(), offset, count);
  return static_cast<float>(offset + std::log(sum));
}

int32_t top_k(const CpuBackend& backend, std::span<const float> logits, int32_t k, int32_t* out) {
  const auto count = static_cast<int64_t>(logits.size());
  const auto better = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  // A heap of the best so far, the worst of them on top: only what is above it can enter.
  int32_t num_held = 0;
  float bound = kLowest;
  if (k <= 0) return 0;
  for (int64_t i = 0;; ++i) {
    i = backend.table().find_above(logits.data(), i, count, bound);
    if (i >= count) break;
    if (num_held == k) std::pop_heap(out, out + num_held--, better);
    out[num_held++] = static_cast<int32_t>(i);
    std::push_heap(out, out + num_held, better);
    if (num_held == k) bound = logits[static_cast<size_t>(out[0])];
  }
  std::sort_heap(out, out + num_held, better);
  return num_held;
}

}  // namespace espalier::kernels
