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
  int64_t num_bytes = 0;         // of pages that were sent or received
  int64_t num_staged_bytes = 0;  // of these, read from staging memory
  double seconds = 0;            // of the transfers that ended well
  double exposed_seconds = 0;    // prefill: of them, behind the first token; no prefill hides it
  double copy_seconds = 0;       // decode: in which staged pages were copied
  int64_t num_waiting = 0, waiting_bytes = 0;  // prompts under way now; their pages on the host
};

}  // namespace espalier
