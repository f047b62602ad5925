// The thread that drives the engine: the six lines of run() in loop.cc, described in
// ARCHITECTURE.md, "One step in time". The work of each line is a part of its own: InboxHandler,
// Scheduler, Executor, StepMasks, StatsPublisher, EventEmitter.
#pragma once

#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/beams/beam_runner.h"
#include "engine/constrained/grammar_proposer.h"
#include "engine/constrained/step_masks.h"
#include "engine/engine.h"
#include "engine/executor/executor.h"
#include "engine/requests/event_emitter.h"
#include "engine/requests/inbox.h"
#include "engine/requests/inbox_handler.h"
#include "engine/requests/registry.h"
#include "engine/requests/request_proposer.h"
#include "engine/requests/request_table.h"
#include "engine/requests/sessions.h"
#include "engine/scheduler/rank_schedulers.h"
#include "engine/startup/cache_parts.h"
#include "engine/stats_publisher.h"
#include "engine/tiers/kv_tiers.h"
#include "engine/watch/loop_watch.h"

namespace espalier {

// The batches of the steps in flight, built in turn.
class BatchRing {
 public:
  // The batch to be built; it is in flight once advance() has been called.
  ForwardBatch& next() { return batches_[next_]; }
  void advance() { next_ = (next_ + 1) % Executor::kMaxInFlight; }

 private:
  ForwardBatch batches_[Executor::kMaxInFlight];
  int next_ = 0;
};

// push(), stats(), progress() and max_sequence_tokens() are thread-safe; all else is the loop's own
// thread's.
class EngineLoop {
 public:
  // Starts the thread. The references outlive the loop, but for `info`.
  // `tokenizer` may be null: then no request has a grammar and no token is forced.
  EngineLoop(const EngineConfig& config, const ModelInfo& info, Executor& executor,
             const CacheParts& cache, RequestRegistry& registry, SessionTable& sessions,
             const Tokenizer* tokenizer);
  ~EngineLoop();  // aborts all requests, emits their last events, joins

  void push(Message message) { inbox_.push(std::move(message)); }
  EngineStats stats() const { return stats_.snapshot(); }
  const LoopProgress& progress() const { return watch_.progress(); }

  // Tokens that a prompt and its output share: the context, or the pool where that is less.
  int32_t max_sequence_tokens() const { return max_sequence_tokens_; }

 private:
  void run();
  bool take_inbox();
  Inbox::Park how_to_park() const;
  ForwardBatch* launch_next();
  void wait_and_commit(ForwardBatch& batch);
  void provide_masks(const ForwardBatch& batch);
  void report_leak();
  void notify_loads(const std::function<void()>& load_ended) const;
  bool idle() const { return in_flight_ == nullptr && scheduler_.idle(); }

  const EngineConfig config_;
  Executor& executor_;
  const CacheParts& cache_;
  SteadyClock clock_;
  RequestTable requests_;
  LoopWatch watch_;
  StepMasks masks_;
  RequestProposer proposer_;
  EventEmitter events_;
  RankSchedulers scheduler_;
  BeamRunner beams_;
  const int32_t max_sequence_tokens_;
  StatsPublisher stats_;
  InboxHandler handler_;
  Inbox inbox_;

  BatchRing batches_;
  ForwardBatch* in_flight_ = nullptr;  // launched and not committed
  struct Turn {
    TimePoint start{};              // when the inbox was opened
    Duration waited{};              // for the executor
    bool is_stalled = false;        // nothing could run, and nothing was in flight
    std::vector<Message> messages;  // scratch
  };
  Turn turn_;
  bool leak_reported_ = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace espalier
