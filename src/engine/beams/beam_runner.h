// Runs beam searches on the scheduler: each beam's next step is a sequence of its own that computes
// the distribution behind the beam's tokens and ends. What came before is a cached prefix of it, so
// beams share the pages of their common tokens, with each other and with other requests, and a
// fork copies nothing; where pages hold several tokens, those of a last page that is not full are
// computed anew. A search's sequences count as other requests' do: for slots, memory and fair
// shares. They go in front of those that have not begun.
//
// Not thread-safe: the loop's thread alone uses it. Borrows all.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/constrained/grammar_proposer.h"
#include "engine/requests/event_emitter.h"
#include "engine/requests/request_table.h"
#include "engine/scheduler/rank_schedulers.h"

namespace espalier {

class BeamRunner {
 public:
  struct Parts {
    RequestTable& requests;
    RankSchedulers& scheduler;
    EventEmitter& events;
  };
  explicit BeamRunner(const Parts& parts) : parts_(parts) {}

  // Starts the search of a request that has `beams`. `first` is what its first sequence shares with
  // those of other requests: prompt, cache, adapter, shares.
  Status start(LiveRequest& request, SequenceSpec first, int32_t max_new_tokens);

  // Ends a search with this reason, which each of the request's samples gets.
  void abort(LiveRequest& request, const FinishReason& reason);

  // Goes on with the searches whose sequences have ended: the next step, or the answers. Call when
  // a step's results are in (Scheduler::commit's `continue_searches`), and once a turn before
  // events are emitted, for sequences also end where there is no step: when a load ends.
  void advance();

 private:
  void advance(LiveRequest& request);
  Status add_steps(LiveRequest& request);
  void finish(LiveRequest& request);
  void fail(LiveRequest& request, const FinishReason& reason);

  const Parts parts_;
  std::vector<RequestId> due_;  // scratch
};

}  // namespace espalier
