// What disaggregation has done. Plain data.
#pragma once

#include <cstdint>
#include <string>

namespace espalier {

// Totals since the start, but for what waits now.
struct DisaggregationStats {
  std::string mode = "null";   // the role: prefill or decode
  int32_t bootstrap_port = 0;  // on which a prefill server listens
  int64_t num_transfers = 0, num_failed = 0;
  int64_t num_bytes = 0;                       // of pages that were sent or received
  double seconds = 0;                          // of the transfers that ended well
  int64_t num_waiting = 0, waiting_bytes = 0;  // prompts under way now; their pages on the host
};

}  // namespace espalier
