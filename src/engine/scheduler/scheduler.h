// Chooses what runs. Plain and deterministic: no thread, no device, no text, no clock of its own.
// The engine's loop drives it:
//
//   scheduler.next(batch N+1)   while step N runs (its tokens are kTokenFromSlot)
//   executor.launch(N+1); executor.wait(N)
//   scheduler.commit(batch N, result N, outputs)
//
// A sequence that turns out to have ended at N has one entry in N+1 that is thrown away; its pages
// and slot are given back when N+1 has been committed (reclaimed by step, never while a launched
// step may still read them).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "seams/forward_batch.h"
#include "seams/step_result.h"
#include "seams/token_event.h"

namespace espalier {

class PrefixCache;

using SequenceId = uint64_t;  // unique in an engine's life, in order of arrival

// Which of a text's tokens make its vector, where it is to become one instead of being continued.
enum class PooledTokens : uint8_t { kNone, kLast, kAll };

// One sample to be generated, as the scheduler takes it over. Immutable afterwards.
struct SequenceSpec {
  SequenceId id = 0;
  std::vector<TokenId> prompt_ids;  // at least one
  std::shared_ptr<const SamplingSpec> sampling;
  int32_t max_new_tokens = 0;      // prompt + max_new_tokens <= context; 0: prefill only
  std::vector<TokenId> stop_ids;   // sorted; end-of-sequence ids included unless ignored
  bool has_grammar = false;        // its sampled entries have a mask
  int32_t logprob_start_len = -1;  // prompt positions from here get log-probabilities; -1: none
  PooledTokens pooled = PooledTokens::kNone;  // else max_new_tokens is 0
  std::string cache_namespace;                // sequences of different namespaces share nothing
  int32_t priority = 0;
  TimePoint arrived{};
};

// What a sequence may say next: see SequenceObserver::on_draft.
struct Drafts {
  int32_t tokens_max = 0, samples_max = 0;
  std::vector<TokenId> tokens;
  // Behind which of them a token will be drawn: indices into `tokens`, rising. The others force the
  // one behind them.
  std::vector<int32_t> samples;
};

// What the scheduler tells the engine; all calls come from inside its own, and must not call it
// back.
class SequenceObserver {
 public:
  virtual ~SequenceObserver() = default;

  // Log-probabilities of prompt tokens [first, first + logprobs.size()), as their chunks are done.
  // Position 0 has none of its own (nothing stands before it) and is not reported.
  virtual void on_input_logprobs(SequenceId id, int32_t first,
                                 std::vector<TokenLogprobs>&& logprobs) = 0;

  // A new output token, stop tokens included. What it returns (a stop string that matched) ends the
  // sequence, unless the length ends it with the same token: that comes first. `stats` are so far,
  // this token counted; `finished` is not set.
  virtual std::optional<FinishReason> on_token(SequenceId id, TokenId token,
                                               TokenLogprobs&& logprobs,
                                               const RequestStats& stats) = 0;

  // A hint, a few entries ahead of a step's results for this sequence: fetch what on_token will
  // need.
  virtual void on_token_soon(SequenceId) const {}

  // Asked after an output token that has not ended the sequence, and (of one with a grammar) when
  // it is added, which may so end before it has run: appends to `forced` the tokens that must
  // follow. They are taken as output at once (on_token for each), and computed together in the
  // sequence's next entry; what an entry in flight samples for it is dropped. Where the sampling
  // has return_logprob none of them may end the sequence (those that do by length or as a stop
  // token are left out here), and their log-probabilities, which on_token does not bring, come
  // later.
  virtual void on_forced(SequenceId, std::vector<TokenId>&) {}

  // Asked by next() of one with a grammar, when it makes the entry of a sample and all tokens
  // before are known: whether the sample ends it or forces tokens, whichever it is. The entry
  // behind would be thrown away then, and is not launched.
  virtual bool forces_behind_any(SequenceId) { return false; }

  // Asked by next() of one with a grammar, for an entry that samples and before which all tokens
  // are known: guesses at what follows, at most drafts.tokens_max tokens and drafts.samples_max
  // samples. What is drawn and forced decides; guesses that hold have been computed by then.
  virtual void on_draft(SequenceId, Drafts&) {}

  // Asked by next() of one with a grammar while its next token is being drawn: whether on_draft is
  // likely to guess what follows it. Its entry then waits for that token.
  virtual bool drafts_behind_next(SequenceId) { return false; }

  // Log-probabilities of the next so many forced tokens, with return_logprob; before the on_token
  // that follows the forced ones. An entry in flight whose first forced token was not known is
  // asked for it: its mask must allow that token alone.
  virtual void on_forced_logprobs(SequenceId, std::vector<TokenLogprobs>&&) {}

  // The vector of a sequence whose spec says `pooled`, right before its end.
  virtual void on_pooled(SequenceId, std::vector<float>&&) {}

  // The end; exactly once for every sequence that was added, and nothing comes after it.
  virtual void on_finish(SequenceId id, FinishReason reason, const RequestStats& stats) = 0;
};

// In which order waiting sequences are admitted; equals in order of arrival.
enum class SchedulePolicy : uint8_t {
  kLpm,        // longest cached prefix first
  kDfsWeight,  // depth first through the radix tree of the waiting prompts, heaviest branch first
  kFcfs,       // first come, first served
  kLof,        // longest output (max_new_tokens) first
  kRandom,     // by a hash of the id
  kPriority,   // highest SequenceSpec::priority first; see priority_preemption_threshold
};

// "lpm", "dfs-weight", "fcfs", "lof", "random", "priority"; else kInvalidArgument with the list.
Result<SchedulePolicy> parse_schedule_policy(std::string_view name);
std::string_view schedule_policy_name(SchedulePolicy policy);

// Between whom service is shared fairly, before the policy orders what each of them has waiting.
enum class FairShare : uint8_t {
  kNone,
  kTenant,    // SequenceSpec::cache_namespace
  kPriority,  // SequenceSpec::priority: the low ones get as much as the high ones
};
Result<FairShare> parse_fair_share(std::string_view name);  // "none", "tenant", "priority"

struct SchedulerConfig {
  int32_t max_running = 0;           // sequences at once = slots
  int32_t max_waiting = 0;           // retracted ones come on top
  int32_t chunked_prefill_size = 0;  // prompt tokens in one step, over all entries; 0: no limit
  int32_t context_length = 0;        // prompt and output together
  // Steps that hold decode entries take no more prompt tokens than keep them within this, as learnt
  // from StepResult::forward_seconds; 0: no bound. Prompts advance in any case.
  double inter_token_seconds_max = 0;
  SchedulePolicy policy = SchedulePolicy::kLpm;

  FairShare fair_share = FairShare::kNone;
  // Whatever the policy, at most so many of its share that came later go before a waiting sequence;
  // then it goes first.
  int32_t max_overtakes = 1024;
  // With kPriority: a waiting sequence takes the place of running ones whose priority is lower by
  // so much; they wait again and lose no token. 0: nobody is preempted.
  int32_t priority_preemption_threshold = 0;

  // A waiting sequence lets another one compute their common prefix first when that saves it so
  // many tokens, or half of what it would have to compute.
  int32_t deferral_min_tokens = 32;

  // With lpm and dfs-weight, what a sequence has left in the cache when it ends is not given to new
  // ones for so many steps while others run: a program's or a conversation's next call, which comes
  // at once, finds it. So few programs at a time are served to their end where memory is short for
  // all, instead of all turning each other out. 0: it is given away at once.
  int32_t linger_steps = 2;

  // Counts the thread's processor time in work that the radix cache makes: matching, the order of
  // the waiting, admission, insertion, eviction. For measurements.
  bool time_tree_work = false;
  // Draft samples in a step, as Executor::draft_samples_max() has it. 0: nothing is drafted.
  int32_t draft_samples_max = 0;
  // Tells executors which cached prefixes the decode entries of a step share.
  bool find_shared_prefixes = false;

  // Of the output still to come, this share is reserved at admission: starts at init, goes to min
  // over so many steps, and is raised by a retraction. Both are scaled by conservativeness.
  double conservativeness = 1.0;
  double new_token_ratio_init = 0.7;
  double new_token_ratio_min = 0.1;
  int32_t new_token_ratio_decay_steps = 600;
  int32_t new_token_clip = 4096;  // an output still to come counts as at most so many tokens
};

struct SchedulerStats {
  int32_t num_running = 0, num_waiting = 0;
  int64_t num_retractions = 0;  // preemptions too
  int64_t num_preemptions = 0;
  double new_token_ratio = 0;
  int64_t prompt_tokens = 0, cached_tokens = 0;  // of sequences whose prefill has begun
  int64_t generated_tokens = 0, steps = 0, entries = 0;
  int64_t forced_tokens = 0, forwards_saved = 0;  // see RequestStats
  int64_t drafted_tokens = 0, accepted_drafts = 0;
  double tree_seconds = 0;  // with SchedulerConfig::time_tree_work
};

// Not thread-safe. `cache`, `clock` and `observer` outlive it.
class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, PrefixCache& cache, const Clock& clock,
            SequenceObserver& observer);
  ~Scheduler();

  // kResourceExhausted when max_waiting are waiting; kInvalidArgument when the prompt is empty or
  // it and its output cannot ever fit the pool or the context. After a failure the observer hears
  // nothing.
  Status add(SequenceSpec spec);

  // The largest prompt_ids.size() + max_new_tokens that add() takes (max_new_tokens at least 1).
  int32_t max_sequence_tokens() const;

  // Ends a sequence: at once when it waits, else when the last step launched with it is committed
  // (it gets no further entries and no further on_token). Unknown ids are ignored.
  void abort(SequenceId id, FinishReason reason);

  // Sends what runs back to the queue, before all that wait; its computed tokens stay in the cache
  // while nobody needs the memory. REQUIRES: no uncommitted batch.
  void retract_all();

  // Fills `batch` with the next step and true; false when there is
  // nothing to run now: then commit what is uncommitted before calling again (with nothing
  // uncommitted, false means idle()). REQUIRES at most one uncommitted batch. Decode entries come
  // first, then prompt chunks within chunked_prefill_size. Cheapest when the same two batch objects
  // come in turn, unchanged: their page tables are then only appended to.
  bool next(ForwardBatch& batch);

  // Takes the results of the oldest uncommitted batch: stops, inserts into the tree, releases, and
  // tells the observer.
  void commit(const ForwardBatch& batch, const StepResult& result);

  bool idle() const;  // nothing waits, runs or is uncommitted
  SchedulerStats stats() const;

  // Aborts (with ESP_CHECK) unless every page is free, owned by one sequence or by one tree node,
  // counts agree, and each slot has at most one owner.
  void check_invariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace espalier
