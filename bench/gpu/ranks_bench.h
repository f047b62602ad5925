// All-reduces among GPUs of this computer, by size and by kind: messages, sums in place, NCCL.
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

}  // namespace espalier::bench
