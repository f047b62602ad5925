// What an executor returns for one step. Plain data; the executor owns it, and it is valid until
// the next Executor::wait().
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "seams/sampling.h"

namespace espalier {

// For the entry of the same index in the ForwardBatch.
struct EntryResult {
  Status status;       // a failure (logits not finite, no token allowed) is of this entry alone
  TokenId token = -1;  // the sampled token; -1 where the entry does not sample
  // The slot's length after the step (kLengthFromSlot in forward_batch.h); -1 from executors that
  // take no lengths from slots.
  int32_t length = -1;
  // Sampled behind draft tokens, one for each of the entry's draft samples; -1 where one failed.
  std::vector<TokenId> draft_tokens;
  TokenLogprobs logprobs;                     // of `token`, where its sampling requests it
  std::vector<TokenLogprobs> draft_logprobs;  // of `draft_tokens`, the same
  std::vector<TokenLogprobs> input_logprobs;  // one for each input_logprob_target
  // Of an entry with a chain_length above 0: the chain_length tokens that the draft head predicts
  // behind the slot's last token. They do not depend on the other entries.
  std::vector<TokenId> chain;
  int32_t chain_begin = -1;   // tokens of the text in front of the chain; -1: length + 1
  std::vector<float> pooled;  // the text's vector, of an entry with pooled_end
  // [query tokens from hidden_begin on, hidden_layers, hidden_size]
  std::vector<float> hidden_states;
};

// Of a device whose steps may be replayed from graphs.
enum class GraphUse : uint8_t {
  kNone,      // no part of the step has a graph
  kRecorded,  // a part is of a size that came for the first time, and has been recorded
  kReplayed,
};

struct StepResult {
  uint64_t step = 0;
  std::vector<EntryResult> entries;
  double forward_seconds = 0;  // measured by the executor, launch to done
  double draft_seconds = 0;    // of these, those of the draft head
  TimePoint started{};         // of the forward; not set by executors that measure its length alone
  GraphUse graph_use = GraphUse::kNone;
};

}  // namespace espalier
