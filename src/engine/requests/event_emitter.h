// Collects the events of samples during a step and passes them to the requests' sinks after it.
// Every accepted request ends in exactly one terminal event for each of its samples.
//
// Not thread-safe: the loop's thread alone uses it; sinks run on that thread. Borrows all but the
// list of samples with pending events.
#pragma once

#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/constrained/grammar_proposer.h"
#include "engine/disaggregation/disaggregation.h"
#include "engine/requests/registry.h"
#include "engine/requests/request_proposer.h"
#include "engine/requests/request_table.h"
#include "engine/requests/sessions.h"
#include "engine/scheduler/scheduler.h"
#include "engine/watch/loop_watch.h"
#include "models/model.h"

namespace espalier {

// Samples that have ended, since the start; see EngineStats.
struct FinishCounts {
  int64_t finished = 0, aborted = 0, failed = 0, not_finite = 0;
};

class EventEmitter final : public SequenceObserver {
 public:
  struct Parts {
    RequestTable& requests;
    RequestRegistry& registry;
    SessionTable& sessions;
    GrammarProposer& proposer;
    RequestProposer& proposals;
    LoopWatch& watch;
    const Clock& clock;
    std::optional<PooledInfo> pooled;
    Disaggregation* disaggregation = nullptr;  // null: none
  };
  explicit EventEmitter(const Parts& parts) : parts_(parts) {}

  // Ends a sample that the scheduler does not have, or each sample of a request of which it has
  // none.
  void finish(SampleState& sample, FinishReason reason, const RequestStats& stats);
  void finish_unscheduled(LiveRequest& request, FinishReason::Type type, const Status& why);

  // Ends a sample with what a beam search has found.
  void finish_beam(SampleState& sample, const BeamSearch::Hypothesis& found, RequestStats stats);
  // Requests with beam search whose sequences have all ended since the last call.
  std::vector<RequestId> take_ended_beams() { return std::exchange(ended_beams_, {}); }

  // Before a step is committed: its tokens share one budget for stop expressions.
  void begin_step() { stop_work_left_ = StopMatcher::kWorkPerStep; }
  // Passes all pending events to their sinks.
  void emit();

  // Requests whose sinks found no memory for an event. Each is to be aborted, and takes what comes
  // after as lost.
  std::vector<RequestId> take_out_of_memory() { return std::exchange(out_of_memory_, {}); }

  bool has_pending() const { return !pending_.empty(); }
  const FinishCounts& counts() const { return counts_; }
  int64_t take_new_tokens() { return std::exchange(new_tokens_, 0); }  // since the last call

  void on_scheduled(SequenceId id) override;
  void on_input_logprobs(SequenceId id, int32_t first,
                         std::vector<TokenLogprobs>&& logprobs) override;
  std::optional<FinishReason> on_token(SequenceId id, TokenId token, TokenOrigin origin,
                                       TokenLogprobs&& logprobs,
                                       const RequestStats& stats) override;
  void on_forced_logprobs(SequenceId id, std::vector<TokenLogprobs>&& logprobs) override;
  void on_next_logprobs(SequenceId id, TokenLogprobs&& logprobs) override;
  void on_prefilled(SequenceId id, const PrefillProgress& progress) override;
  void on_pooled(SequenceId id, std::vector<float>&& vector) override;
  void on_hidden_states(SequenceId id, std::vector<float>&& states) override;
  void on_verified(SequenceId id, std::span<const int32_t> entries_by_accepted) override;
  void on_finish(SequenceId id, FinishReason reason, const RequestStats& stats) override;
  void on_token_soon(SequenceId id) const override;

 private:
  void add_pending(SampleState& sample);
  void emit(SampleState& sample);
  void deliver(LiveRequest& request, TokenEvent& event);
  void emit_last(LiveRequest& request, TokenEvent& event);
  void count(const SampleState& sample, FinishReason& reason);
  void end_beam_step(SampleState& sample, FinishReason&& reason, const RequestStats& stats);

  const Parts parts_;
  std::vector<SampleState*> pending_;
  std::vector<RequestId> out_of_memory_, ended_beams_;
  FinishCounts counts_;
  int64_t new_tokens_ = 0;
  int64_t stop_work_left_ = StopMatcher::kWorkPerStep;
};

}  // namespace espalier
