// Decides which sequences run in each step and how many tokens each of them gets, and takes the
// results. Deterministic: no thread, no device, no text, and no time but the clock passed to it.
// The engine's loop drives it:
//
//   scheduler.next(batch N+1)   while step N runs (its samples are kTokenFromSlot)
//   executor.launch(N+1); executor.wait(N)
//   scheduler.commit(batch N, result N)
//
// A sequence that turns out to have ended at N has one entry in N+1 that is thrown away; its pages
// and slot are given back when N+1 has been committed, never while a launched step may read them.
//
// The scheduler composes four parts, each with its own header, invariants and tests: WaitQueue
// (order of admission), KvBudget (memory), BatchBuilder (entries of a step), Committer (results).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/scheduler/step_counter.h"
#include "engine/scheduler/step_time.h"
#include "engine/scheduler/token_proposer.h"
#include "seams/forward_batch.h"
#include "seams/step_result.h"
#include "seams/token_event.h"

namespace espalier {

class BatchBuilder;
class Committer;
class InflightPrefixes;
class KvBudget;
class KvLoader;
class PrefixCache;
class RunningSet;
class WaitQueue;
struct LoadResult;
struct PrefillProgress;
struct PromptShares;
struct Sequence;

// Which of a text's tokens make its vector, where it is to become one instead of being continued.
enum class PooledTokens : uint8_t { kNone, kLast, kAll };

// Whether another server has a part in a sequence: what a prefill server computes of it, prompt and
// first token, goes to a decode server, which generates the rest.
enum class Handoff : uint8_t {
  kNone,
  kGive,  // its keys, values and first sampled token are reported, and then it ends
  kTake,  // the KvLoader brings them
};

// Positions of a prompt whose inputs are an encoder's rows, not tokens' embeddings: a picture, a
// line of one whose lines stand apart, or one of a video's grids.
struct PromptSpan {
  int32_t begin = 0;  // the first row's position; one row a position, or all of them one
  std::shared_ptr<const EncodedRows> rows;
  int32_t rotary = 0;     // the first row's rotary position, before which other pictures may stand
  int32_t first_row = 0;  // of `rows`

  int32_t count() const {
    if (rows->tile_rows > 0) return rows->num_tokens();
    if (rows->frame_rows > 0) return rows->frame_rows;
    return rows->line_rows > 0 ? rows->line_rows : rows->num_rows;
  }
  int32_t time() const {
    return rows->frame_rows > 0 ? rows->frame_time(first_row / rows->frame_rows) : 0;
  }
  int32_t end() const { return begin + count(); }
  // From a position behind the picture, up to the next one, to its rotary position.
  int32_t rotary_shift() const {
    return rows->grid_columns == 0 ? rotary - begin : rotary + rows->num_positions() - end();
  }
};
// All of a prompt, whose ids there are the spans' keys (kFirstSpanKey and above). Rising, without
// overlaps. Immutable; shared by the samples of a request.
struct PromptSpans {
  std::vector<PromptSpan> spans;  // at least one
  TokenId placeholder = -1;       // the token whose log-probability their positions have
  bool have_grids = false;        // rotary positions differ from positions
  bool whole = false;             // no step may end within a span: its rows see each other
  bool cross = false;             // a span is one position, and its rows are seen from behind it
};

// One sample to be generated, as the scheduler takes it over. Immutable afterwards.
struct SequenceSpec {
  SequenceId id = 0;
  std::vector<TokenId> prompt_ids;  // at least one
  std::shared_ptr<const SamplingSpec> sampling;
  int32_t max_new_tokens = 0;     // prompt + max_new_tokens <= context; 0: prefill only
  std::vector<TokenId> stop_ids;  // sorted; end-of-sequence ids included unless ignored
  bool has_grammar = false;       // its sampled entries have a mask
  bool takes_proposals = false;   // the TokenProposer proposes its forced and draft tokens
  bool has_spans = false;         // `spans` is there
  // One step of a search over outputs (engine/beams/): max_new_tokens is 0, its sampling
  // wants_next_logprobs(), and the last num_generated of prompt_ids are output so far. Where there
  // are any it goes on from sequences that have just ended, and waits in front of all that have not
  // begun.
  bool is_search_step = false;
  int32_t num_generated = 0;
  int32_t logprob_start_len = -1;  // prompt positions from here get log-probabilities; -1: none
  PooledTokens pooled = PooledTokens::kNone;  // else max_new_tokens is 0
  Handoff handoff = Handoff::kNone;           // else max_new_tokens is at least 1
  AdapterId adapter = kNoAdapter;             // its cache_namespace is the adapter's alone
  std::string cache_namespace;                // sequences of different namespaces share nothing
  std::string tenant;                         // of FairShare::kTenant; empty: cache_namespace
  double share_weight = 1;                    // of its tenant's part, above 0
  int32_t priority = 0;
  TimePoint arrived{};
  std::shared_ptr<const PromptSpans> spans;  // null: the prompt is text alone
};

// Events of sequences. All calls come from inside Scheduler's add(), launch(), commit() and
// abort(), on the scheduler's thread, and must not call the scheduler back.
class SequenceObserver {
 public:
  virtual ~SequenceObserver() = default;

  // It leaves the queue for the first time; it may return, but then has been computed in part.
  virtual void on_scheduled(SequenceId) {}

  // Log-probabilities of prompt tokens [first, first + logprobs.size()), as their chunks are
  // committed. Position 0 has none and is not reported.
  virtual void on_input_logprobs(SequenceId id, int32_t first,
                                 std::vector<TokenLogprobs>&& logprobs) = 0;

  // A new output token, stop tokens included. A returned reason (a stop string that matched) ends
  // the sequence, unless the length ends it with the same token: length comes first. `stats` counts
  // this token; `finished` is not set.
  virtual std::optional<FinishReason> on_token(SequenceId id, TokenId token, TokenOrigin origin,
                                               TokenLogprobs&& logprobs,
                                               const RequestStats& stats) = 0;

  // Log-probabilities of the next so many forced tokens, with return_logprob: on_token does not
  // have them, since the step that computes them runs later. They come before the on_token that
  // follows the forced tokens. An entry in flight whose sample is replaced by a forced token also
  // gives its log-probability: its mask must then allow that token alone.
  virtual void on_forced_logprobs(SequenceId, std::vector<TokenLogprobs>&&) {}

  // Of a sequence for prefill only whose sampling wants_next_logprobs(), right before its end: the
  // log-probabilities of the token that would follow the prompt.
  virtual void on_next_logprobs(SequenceId, TokenLogprobs&&) {}

  // Of a sequence with Handoff::kGive: what each entry of its prompt has computed. The pages keep
  // their contents until this call returns.
  virtual void on_prefilled(SequenceId, const PrefillProgress&) {}

  // The vector of a sequence whose spec has `pooled`, right before its end.
  virtual void on_pooled(SequenceId, std::vector<float>&&) {}

  // Hidden states of the next tokens whose forward has run, as EntryResult has them.
  virtual void on_hidden_states(SequenceId, std::vector<float>&&) {}

  // Of a sequence whose entries verified draft tokens, right before its end: how many of these
  // entries accepted how many draft tokens (AcceptedLengths).
  virtual void on_verified(SequenceId, std::span<const int32_t> /*entries_by_accepted*/) {}

  // The end: exactly once for every sequence that was added; no event follows it.
  virtual void on_finish(SequenceId id, FinishReason reason, const RequestStats& stats) = 0;

  // A hint, a few entries ahead of a step's results for this sequence: prefetch what on_token
  // needs.
  virtual void on_token_soon(SequenceId) const {}
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
constexpr bool orders_by_prefix(SchedulePolicy policy) {
  return policy == SchedulePolicy::kLpm || policy == SchedulePolicy::kDfsWeight;
}

// Between whom service is shared fairly, before the policy orders what each of them has waiting.
// A share that holds less than its part of slots and memory preempts sequences of those above
// theirs, which wait again and lose no token. Parts are in proportion to the shares' weights.
enum class FairShare : uint8_t {
  kNone,
  kTenant,    // SequenceSpec::tenant and share_weight
  kPriority,  // SequenceSpec::priority: the low ones get as much as the high ones
};
Result<FairShare> parse_fair_share(std::string_view name);  // "none", "tenant", "priority"

struct SchedulerConfig {
  int32_t max_running = 0;           // sequences at once = slots
  int32_t max_waiting = 0;           // retracted ones come on top
  int32_t chunked_prefill_size = 0;  // prompt tokens in one step, over all entries; 0: no limit
  int32_t context_length = 0;        // prompt and output together
  // Steps take no more prompt tokens than keep them within this while sequences wait for their next
  // token, as learnt from StepResult::forward_seconds. Prompts advance in any case.
  StepTime::Bound step_bound;
  SchedulePolicy policy = SchedulePolicy::kLpm;

  FairShare fair_share = FairShare::kNone;
  // Whatever the policy, at most this many later arrivals of its share are admitted before a
  // waiting sequence; then it is overdue and goes first.
  int32_t bypass_bound = 1024;
  // With kPriority: a waiting sequence preempts running ones whose priority is lower by this much;
  // they wait again and lose no token. 0: no preemption.
  int32_t priority_preemption_threshold = 0;

  // In-flight prefix sharing: a waiting sequence lets another one compute their common prefix first
  // when that saves it this many tokens, or half of what it would have to compute.
  int32_t prefix_wait_min_tokens = 32;

  // Retention after finish, with kLpm and kDfsWeight: pages that a finished sequence leaves in the
  // cache are not given to new sequences for this many steps while others run, so that the next
  // call of a program or conversation, which arrives at once, finds them. Where memory is short for
  // all, a few programs at a time are then served to their end. 0: no retention.
  int32_t retention_steps = 2;

  // Adapters of running sequences, at most; 0: any number. A sequence whose adapter would be one
  // more waits, and those behind it with it, so that no adapter is kept out for ever.
  int32_t max_adapters = 0;

  // Draft samples in a step, from Executor::draft_samples_max(). 0: nothing is drafted.
  int32_t draft_samples_max = 0;
  bool penalises_draft_tokens = false;  // of the same
  int32_t chain_max = 0;                // Executor::chain_max()
  // Whether batches state which cached prefixes their decode entries share.
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
  int64_t cached_tokens_host = 0, cached_tokens_storage = 0;  // of cached_tokens: were loaded
  int64_t generated_tokens = 0, steps = 0, entries = 0;
  int64_t forced_tokens = 0, forwards_saved = 0;  // see RequestStats
  int64_t drafted_tokens = 0, accepted_draft_tokens = 0, verify_steps = 0;
  // The same by drafter: the scheduler's own, which it changes as it commits. It is large, so it is
  // not copied with the rest.
  const DraftTotals* by_drafter = nullptr;
};

// Not thread-safe. The references outlive it, and so do `proposer` (null: nothing is proposed) and
// `loader` (null: nothing is loaded).
class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, PrefixCache& cache, const Clock& clock,
            SequenceObserver& observer, TokenProposer* proposer = nullptr,
            KvLoader* loader = nullptr);
  ~Scheduler();

  // kResourceExhausted when max_waiting sequences are waiting; kInvalidArgument when the prompt is
  // empty or it and its output can never fit the pool or the context. After a failure the observer
  // gets no event.
  Status add(SequenceSpec spec);

  // The largest prompt_ids.size() + max_new_tokens that add() takes (max_new_tokens at least 1).
  int32_t max_sequence_tokens() const;

  // Ends a sequence: at once when it waits, else when the last step launched with it is committed
  // (it gets no further entries and no further on_token). Unknown ids are ignored.
  void abort(SequenceId id, FinishReason reason);

  // Returns running sequences to the queue, in front of all that wait; their computed tokens stay
  // in the cache while the memory is not needed. REQUIRES: no uncommitted batch.
  void retract_all();

  // Fills `batch` with the next step and returns true; false when nothing can run now: then commit
  // what is uncommitted before calling again (with nothing uncommitted, false means idle(), or that
  // all sequences that could run wait for the loader: call again when a load has ended).
  // REQUIRES at most one uncommitted batch. Decode entries come first, then prompt chunks within
  // chunked_prefill_size. Cheapest when the same two batch objects come in turn, unchanged: their
  // page tables are then only appended to.
  bool next(ForwardBatch& batch);

  // Takes the results of the oldest uncommitted batch: tokens, ends, insertion into the tree,
  // release of pages and slots. Reports events to the observer. `continue_searches` is called when
  // all results are taken, before the sequences that have ended leave: what it adds in their place
  // finds their share of the service.
  void commit(const ForwardBatch& batch, const StepResult& result,
              const std::function<void()>& continue_searches = {});

  bool idle() const;        // nothing waits, runs or is uncommitted
  bool is_loading() const;  // sequences wait for the loader
  SchedulerStats stats() const;

  // Aborts (with ESP_CHECK) unless every page is free, owned by one sequence or by one tree node,
  // counts agree, each slot has at most one owner, and every part's own invariants hold.
  void check_invariants() const;

 private:
  Status check_size(const SequenceSpec& spec) const;
  void fill(ForwardBatch& batch);
  PromptShares shares_with_prompts() const;
  void admit(ForwardBatch& batch);
  bool try_admit(Sequence& sequence);
  bool make_room_by_preemption(Sequence& sequence);
  bool adapter_fits(const Sequence& sequence) const;
  bool may_preempt() const;
  bool start_load(Sequence& sequence);
  void finish_loads();
  void take_load(Sequence& sequence, LoadResult& load);
  bool may_retire(const Sequence& sequence) const;
  void pause(Sequence& sequence);    // it leaves its slot when its last step is committed
  void retract(Sequence& sequence);  // for want of memory
  void retire(Sequence& sequence);   // its last step is committed: requeues or forgets it

  const SchedulerConfig config_;
  PrefixCache& cache_;
  const Clock& clock_;
  SequenceObserver& observer_;
  KvLoader* const loader_;
  TokenProposer no_proposals_;
  StepCounter steps_;
  std::unique_ptr<RunningSet> running_;
  std::unique_ptr<KvBudget> budget_;
  std::unique_ptr<WaitQueue> queue_;
  std::unique_ptr<InflightPrefixes> inflight_;
  std::unique_ptr<BatchBuilder> builder_;
  std::unique_ptr<Committer> committer_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;  // all that are not gone
  uint64_t admission_retry_step_ = 0;  // no admission before this step, unless memory is released
  SchedulerStats stats_;               // but for the Committer's counts
};

}  // namespace espalier
