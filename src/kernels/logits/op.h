// Reductions over one row of logits. Each runs on the calling thread, so the caller may distribute
// rows among threads; a NaN anywhere makes the result of log_sum_exp NaN.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/backend.h"

namespace espalier::kernels {

// log(sum(exp(logits))), so that a token's log-probability is logits[token] - log_sum_exp(logits).
// Minus infinity where all are.
float log_sum_exp(const CpuBackend& backend, std::span<const float> logits);

// The k largest, best first, the smaller index first among equals; fewer where fewer are above
// minus infinity. NaNs are left out. `out` is of at least min(k, logits.size()); returns how many.
int32_t top_k(const CpuBackend& backend, std::span<const float> logits, int32_t k, int32_t* out);

namespace reference {
double log_sum_exp(std::span<const float> logits);
}  // namespace reference

}  // namespace espalier::kernels
