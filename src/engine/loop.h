// The thread that drives everything: six lines in a circle, see run() in loop.cc and
// ARCHITECTURE.md, "One step in time".
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "cache/prefix_cache.h"
#include "engine/constrained/draft_history.h"
#include "engine/constrained/step_masks.h"
#include "engine/engine.h"
#include "engine/executor/executor.h"
#include "engine/requests/inbox.h"
#include "engine/requests/live_request.h"
#include "engine/requests/registry.h"
#include "engine/requests/sessions.h"
#include "engine/scheduler/scheduler.h"
#include "engine/throughput.h"

namespace espalier {

// push() and stats() are thread-safe; all else is the loop's own thread's.
class EngineLoop : private SequenceObserver {
 public:
  // Starts the thread. The references outlive the loop, but for `info`.
  // `tokenizer` may be null: without one nothing is forced.
  EngineLoop(const EngineConfig& config, const ModelInfo& info, Executor& executor,
             PrefixCache& cache, RequestRegistry& registry, SessionTable& sessions,
             const Tokenizer* tokenizer);
  ~EngineLoop();  // aborts what is there, tells their callers, joins

  void push(Message message);
  EngineStats stats() const;

  // Tokens that a prompt and its output share: the context, or the pool where that is less.
  int32_t max_sequence_tokens() const { return max_sequence_tokens_; }

 private:
  void run();

  // 1 inbox
  bool take_inbox();
  void handle(ArrivalMessage& message);
  void handle(TokensMessage& message);
  void handle(GrammarMessage& message);
  void handle(AbortMessage& message);
  void handle(JoinMessage& message);
  Result<JoinedPrompt> join(const JoinRequest& request);
  void handle(FlushMessage& message) { flushes_.push_back(std::move(message.done)); }
  void handle(PauseMessage& message);
  void handle(ContinueMessage& message);
  void answer_pauses();
  void start_when_ready(LiveRequest& request);
  void start(LiveRequest& request);
  Status join_session(LiveRequest& request);
  Status check_prompt(const LiveRequest& request) const;
  PooledTokens pooled_tokens(const LiveRequest& request) const;
  Status add_sequence(LiveRequest& request, int32_t index, int32_t max_new_tokens);
  void abort(LiveRequest& request, const Status& why);
  void abort_all(const Status& why);
  void answer_flushes();
  void report_leak();
  bool idle() const { return in_flight_ == nullptr && scheduler_.idle(); }

  // 2 to 5
  ForwardBatch* launch_next();
  void wait_and_commit(const ForwardBatch& batch);
  void provide_masks(const ForwardBatch& batch);
  bool uses_draft_history(const Sample& sample) const;
  std::optional<FinishReason> advance_grammar(Sample& sample, TokenId token);
  std::optional<FinishReason> advance_healing(Sample& sample, TokenId token);
  std::optional<FinishReason> end_of_grammar(Sample& sample, TokenId token);
  void heal(LiveRequest& request);

  // SequenceObserver, called inside commit and abort
  void on_input_logprobs(SequenceId id, int32_t first,
                         std::vector<TokenLogprobs>&& logprobs) override;
  std::optional<FinishReason> on_token(SequenceId id, TokenId token, TokenLogprobs&& logprobs,
                                       const RequestStats& stats) override;
  void on_token_soon(SequenceId id) const override;
  void on_forced(SequenceId id, std::vector<TokenId>& forced) override;
  bool forces_behind_any(SequenceId id) override;
  void on_draft(SequenceId id, Drafts& drafts) override;
  bool drafts_behind_next(SequenceId id) override;
  void on_forced_logprobs(SequenceId id, std::vector<TokenLogprobs>&& logprobs) override;
  void on_pooled(SequenceId id, std::vector<float>&& vector) override;
  void on_finish(SequenceId id, FinishReason reason, const RequestStats& stats) override;

  // 6 emit
  void finish(Sample& sample, FinishReason reason, const RequestStats& stats);
  void finish_unscheduled(LiveRequest& request, FinishReason::Type type, const Status& why);
  void list(Sample& sample);
  void emit();
  void emit(Sample& sample);
  void publish_stats();

  const EngineConfig config_;
  const int32_t vocab_size_;
  const std::optional<PooledInfo> pooled_;
  Executor& executor_;
  PrefixCache& cache_;
  RequestRegistry& registry_;
  SessionTable& sessions_;
  const Tokenizer* const tokenizer_;
  std::unordered_map<SequenceId, Sample*> samples_;  // those that the scheduler has
  StepMasks masks_;
  std::unique_ptr<DraftHistory> draft_history_;  // made when the first grammar comes
  SteadyClock clock_;
  Scheduler scheduler_;
  const int32_t max_sequence_tokens_;

  Inbox inbox_;
  std::vector<Message> messages_;
  std::vector<std::promise<Status>> flushes_;
  std::vector<PauseMessage> pauses_;  // not answered yet
  bool paused_ = false;
  std::unordered_map<RequestId, std::unique_ptr<LiveRequest>> requests_;
  SequenceId last_sequence_ = 0;
  std::vector<Sample*> news_;

  ForwardBatch batches_[Executor::kMaxInFlight];
  int next_batch_ = 0;
  const ForwardBatch* in_flight_ = nullptr;  // launched and not committed
  TimePoint turn_start_{};                   // when the inbox was opened
  bool leak_told_ = false;
  Duration waited_{};  // in this turn, for the executor

  EngineStats totals_;
  int64_t new_tokens_ = 0;  // since the last publish_stats
  ThroughputWindow throughput_;

  mutable std::mutex published_mutex_;
  EngineStats published_;
  ThroughputWindow published_throughput_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace espalier
