#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/logits/op.h"

namespace espalier::kernels::reference {

double log_sum_exp(std::span<const float> logits) {
  double largest = -std::numeric_limits<double>::infinity();
  for (float logit : logits) largest = std::max(largest, static_cast<double>(logit));
  if (std::isinf(largest)) return largest;
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum);
}

}  // namespace espalier::kernels::reference
