// What comes back from a step: arrays on the device, and a pinned copy for each step in flight.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/executor/cuda/slot_table.h"
#include "engine/executor/cuda/step_block.h"
#include "engine/executor/executor.h"
#include "seams/step_result.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

// L = max_entries, T = max_tokens.
struct ResultArrays {
  int32_t* tokens = nullptr;          // [L]: of sampled rows; -1 where there is none
  int32_t* statuses = nullptr;        // [L]: SampleStatus
  float* logprobs = nullptr;          // [L]
  float* input_logprobs = nullptr;    // [T]
  int32_t* input_statuses = nullptr;  // [T]
  // Rows of as many as the widest request of the step asks for: sampled rows, then input rows.
  int32_t* top_ids = nullptr;     // [top_capacity]
  float* top_logprobs = nullptr;  // [top_capacity]
  float* wanted = nullptr;        // [wanted_capacity], row after row

  void lay_out(cuda::Arena& arena, const StepLimits& limits);
  static int64_t top_capacity(const StepLimits& limits);
  static constexpr int64_t kWantedCapacity = 1 << 18;
};

// How much of them a step has filled.
struct ResultCounts {
  int64_t num_samples = 0;  // whose arrays are on the device; 0: the host has them
  int64_t num_inputs = 0;
  int64_t num_top = 0, num_wanted = 0;
};
Status copy_results(const ResultArrays& device, const ResultArrays& host,
                    const ResultCounts& counts, const cuda::Stream& stream);

// What log-probabilities a step gives back.
struct LogprobPlan {
  bool sampled = false;  // some sampled entry wants its token's
  int32_t max_top = 0;
  int64_t num_wanted = 0;
  // [num_samples + num_input_rows + 1] where num_wanted is not 0: each row's first entry.
  std::vector<int32_t> wanted_begin;
  std::vector<int32_t> wanted_ids;
};

// Sampled rows that have a mask, and what lies between them: [begin, end).
struct MaskedRows {
  int32_t begin = 0, end = 0;
};
// Writes each masked entry's words to its row of `to` ([rows, mask_words]); words that the grammar
// does not know are tokens that may not come.
MaskedRows pack_masks(const ForwardBatch& batch, const MaskView& masks, int32_t mask_words,
                      uint32_t* to);

// Looks at what the entries ask for. An entry that asks for more than there is room for is put into
// `refused` ([entries]) with a reason, and gets nothing.
LogprobPlan plan_logprobs(const ForwardBatch& batch, const SlotTable& slots,
                          const StepLimits& limits, std::vector<Status>& refused);

// Turns the arrays of a finished step into entry results.
void read_results(const ForwardBatch& batch, const SlotTable& slots, const LogprobPlan& plan,
                  const ResultArrays& host, const std::vector<Status>& refused, StepResult& result);

}  // namespace espalier
