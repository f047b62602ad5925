// What comes back from an executor for one step.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "seams/sampling.h"

namespace espalier {

// For the entry of the same index in the ForwardBatch.
struct EntryResult {
  Status status;       // an entry that failed (logits not finite, no token allowed) fails alone
  TokenId token = -1;  // the sampled token; -1 where the entry does not sample
  // Behind its drafts, one for each of its draft samples; -1 where one failed.
  std::vector<TokenId> draft_tokens;
  TokenLogprobs logprobs;                     // of `token`, where its sampling asks
  std::vector<TokenLogprobs> input_logprobs;  // one for each input_logprob_target
  std::vector<float> pooled;                  // the text's vector, where the entry has pooled_end
};

struct StepResult {
  uint64_t step = 0;
  std::vector<EntryResult> entries;
  double forward_seconds = 0;  // measured by the executor, launch to done
};

}  // namespace espalier
