// All-reduces among GPUs of this computer, by size and by kind: messages, sums in place, NCCL; and
// the gather of logits that stands in front of sampling.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace espalier::bench {

struct AllReduceTime {
  int64_t bytes = 0;      // of a rank's x, bfloat16
  double message_us = 0;  // 0: too large for one
  double in_place_us = 0;
  double fused_us = 0;  // messages with residual and norm
  double nccl_us = 0;   // 0: NCCL is not there
};
// Median microseconds of one all-reduce in a graph of many, on the devices 0 to num_ranks - 1.
Result<std::vector<AllReduceTime>> time_all_reduces(int32_t num_ranks);

struct GatherTime {
  int32_t rows = 0;
  double us = 0;
};
// The same of rank 0 gathering float32 logits of a vocabulary of 128,256, which the ranks divide.
Result<std::vector<GatherTime>> time_gathers(int32_t num_ranks);

}  // namespace espalier::bench
