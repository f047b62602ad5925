#include "engine/executor/staged_step.h"

#include <algorithm>

namespace espalier {

void StagedStep::begin(const ForwardBatch& batch, int32_t page_size, uint64_t first_step) {
  batch_ = &batch;
  micro_batches_.cut_steps(batch, page_size, first_step);
  result_.step = batch.step;
  result_.entries.assign(batch.entries.size(), {});
  result_.forward_seconds = result_.draft_seconds = 0;
  result_.graph_use = GraphUse::kNone;
}

// What an entry samples is in one of its parts, and its input log-probabilities are in the order of
// all of them. The first failure of a part is the entry's.
void StagedStep::add(size_t index, const StepResult& part) {
  const MicroBatch& micro_batch = micro_batches_[index];
  for (size_t i = 0; i < part.entries.size(); ++i) {
    const EntryResult& from = part.entries[i];
    EntryResult& to = result_.entries[static_cast<size_t>(micro_batch.origins[i].entry)];
    if (to.status.ok()) to.status = from.status;
    to.input_logprobs.insert(to.input_logprobs.end(), from.input_logprobs.begin(),
                             from.input_logprobs.end());
    if (!micro_batch.batch.entries[i].sample) continue;
    to.token = from.token;
    to.length = from.length;
    to.draft_tokens = from.draft_tokens;
    to.logprobs = from.logprobs;
    to.draft_logprobs = from.draft_logprobs;
  }
  result_.forward_seconds += part.forward_seconds;
  result_.graph_use = std::max(result_.graph_use, part.graph_use);
}

void StagedStep::fail(const Status& status) {
  for (size_t i = 0; i < result_.entries.size(); ++i) {
    result_.entries[i] = {.status = status};
    result_.entries[i].input_logprobs.resize(batch_->entries[i].input_logprob_targets.size());
  }
}

}  // namespace espalier
