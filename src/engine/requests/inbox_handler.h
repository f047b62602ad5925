// Handles what other threads send to the loop: requests and their tokens and grammars, aborts,
// joins of branches, flushes of the cache, pauses, and the change of weights.
//
// Not thread-safe: the loop's thread alone uses it, between two steps. Borrows all but the flushes
// and pauses that are not answered yet.
#pragma once

#include <future>
#include <optional>
#include <vector>

#include "cache/rank_caches.h"
#include "engine/beams/beam_runner.h"
#include "engine/disaggregation/disaggregation.h"
#include "engine/executor/executor.h"
#include "engine/images/place_images.h"
#include "engine/requests/event_emitter.h"
#include "engine/requests/inbox.h"
#include "engine/requests/request_proposer.h"
#include "engine/sampling/params.h"
#include "engine/stats_publisher.h"
#include "engine/tiers/kv_tiers.h"
#include "engine/watch/loop_watch.h"
#include "engine/weights/weight_hold.h"

namespace espalier {

class InboxHandler {
 public:
  struct Parts {
    RequestTable& requests;
    SessionTable& sessions;
    RankSchedulers& scheduler;
    const RankCaches& caches;
    Executor& executor;
    GrammarProposer& proposer;
    RequestProposer& proposals;
    EventEmitter& events;
    BeamRunner& beams;
    StatsPublisher& stats;
    LoopWatch& watch;
    const KvTiers* tiers = nullptr;            // null: none
    Disaggregation* disaggregation = nullptr;  // the same
    std::optional<PooledInfo> pooled;
    std::optional<ImagesInfo> images;
    AppendTime append_time;  // of videos; empty without a tokenizer
    int32_t vocab_size = 0;
    LengthLimit length_limit;
  };
  explicit InboxHandler(const Parts& parts) : parts_(parts) {}

  void handle(Message& message);
  void abort_all(const Status& why);
  // Aborts the requests whose events found no memory and, with `shed`, the one that needs the most
  // memory for its answers, so that the others go on.
  void free_memory(bool shed);

  // Answers the pauses and flushes for which the engine is ready. A pause is answered when the last
  // step is committed; a flush too, since entries of that step may be of requests that have ended.
  void answer(bool step_in_flight);

  bool paused() const { return paused_ || hold_.is_applied(); }
  bool has_unanswered() const { return !flushes_.empty() || !pauses_.empty(); }
  bool awaits_hold() const { return hold_.is_pending(); }

 private:
  void on(ArrivalMessage& message);
  void on(TokensMessage& message);
  void on(GrammarMessage& message);
  void on(ImagesMessage& message);
  void on(AbortMessage& message);
  void on(EvictMessage& message);
  void on(JoinMessage& message);
  void on(CacheNodesMessage& message);
  void on(FlushMessage& message);
  void on(PauseMessage& message);
  void on(ContinueMessage& message);
  void on(HoldMessage& message);
  void on(ReleaseMessage& message);
  void on(ProfileMessage& message);

  void start_when_ready(LiveRequest& request);
  Status start(LiveRequest& request);
  Status continue_session(LiveRequest& request);
  Status check_tokens(const LiveRequest& request) const;
  Status place_pictures(LiveRequest& request) const;
  static Status check_budget(const LiveRequest& request, int32_t max_new_tokens);
  PooledTokens pooled_tokens(const LiveRequest& request) const;
  Status add_sequence(LiveRequest& request, int32_t index, int32_t max_new_tokens);
  SequenceSpec sequence_of(const LiveRequest& request) const;
  Status start_search(LiveRequest& request, int32_t max_new_tokens);
  Result<Handoff> begin_handoff(const LiveRequest& request, int32_t index, SequenceId id) const;
  void end(LiveRequest& request, FinishReason::Type type, const Status& why);
  void abort(LiveRequest& request, const Status& why) {
    end(request, FinishReason::Type::kAbort, why);
  }
  void end_started(FinishReason::Type type, const Status& why);
  LiveRequest* largest_request();  // null where there is none
  Result<JoinedPrompt> join(const JoinRequest& request);
  void answer_pauses();
  void answer_flushes(bool step_in_flight);

  const Parts parts_;
  std::vector<std::promise<Status>> flushes_;
  std::vector<PauseMessage> pauses_;
  bool paused_ = false;
  WeightHold hold_;
};

}  // namespace espalier
