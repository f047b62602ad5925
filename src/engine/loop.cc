#include "engine/loop.h"

#include <algorithm>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/thread.h"
#include "engine/images/video_times.h"

namespace espalier {
namespace {

SchedulerConfig scheduler_config(const EngineConfig& c, const Executor& executor) {
  return {
      .max_running = c.schedule.max_running_requests,
      // The registry holds the bound. Evicted requests may be here with those for which they
      // made room until their messages are handled.
      .max_waiting = 2 * (c.schedule.max_running_requests + c.schedule.max_queued_requests),
      .chunked_prefill_size =
          std::min(c.schedule.chunked_prefill_size, c.schedule.max_prefill_tokens),
      .context_length = c.model.context_length,
      .step_bound = {.seconds = c.schedule.max_inter_token_latency_ms * 1e-3,
                     .ratio = c.schedule.mixed_step_ratio,
                     .ratio_most = c.schedule.mixed_step_ratio_most},
      .policy = *parse_schedule_policy(c.schedule.schedule_policy),
      .fair_share = *parse_fair_share(c.schedule.fair_share),
      .bypass_bound = c.schedule.schedule_bypass_bound,
      .priority_preemption_threshold = c.schedule.disable_priority_preemption
                                           ? 0
                                           : c.schedule.priority_scheduling_preemption_threshold,
      .max_adapters = c.lora.enable_lora ? c.lora.max_loras_per_batch : 0,
      .draft_samples_max =
          c.grammar.disable_draft_tokens && c.speculation.speculative_algorithm == "none"
              ? 0
              : executor.draft_samples_max(),
      .penalises_draft_tokens = executor.penalises_draft_tokens(),
      .chain_max = c.speculation.has_draft_head() ? executor.chain_max() : 0,
      .find_shared_prefixes = c.compute.device == "cuda" && !c.compute.disable_cascade_attention &&
                              !c.compute.enable_deterministic_inference,
      .conservativeness = c.schedule.schedule_conservativeness};
}

KvLoader* loader_of(const CacheParts& cache) {
  KvLoader* const remote =
      cache.disaggregation != nullptr ? cache.disaggregation->loader() : nullptr;
  return remote != nullptr ? remote : cache.tiers.get();
}

}  // namespace

EngineLoop::EngineLoop(const EngineConfig& config, const ModelInfo& info, Executor& executor,
                       const CacheParts& cache, RequestRegistry& registry, SessionTable& sessions,
                       const Tokenizer* tokenizer)
    : config_(config),
      executor_(executor),
      cache_(cache),
      watch_(clock_, requests_),
      masks_(tokenizer, requests_.samples(), info.vocab_size, config.grammar.grammar_mask_threads),
      proposer_(config, requests_, masks_, cache.caches, executor),
      events_({.requests = requests_,
               .registry = registry,
               .sessions = sessions,
               .proposer = proposer_.grammars(),
               .proposals = proposer_,
               .watch = watch_,
               .clock = clock_,
               .pooled = info.pooled,
               .disaggregation = cache.disaggregation.get()}),
      scheduler_(scheduler_config(config, executor), cache.caches, clock_, events_, &proposer_,
                 loader_of(cache)),
      beams_({.requests = requests_, .scheduler = scheduler_, .events = events_}),
      max_sequence_tokens_(std::min(config.model.context_length, scheduler_.max_sequence_tokens())),
      stats_(scheduler_, cache.caches, events_, registry, clock_),
      handler_({.requests = requests_,
                .sessions = sessions,
                .scheduler = scheduler_,
                .caches = cache.caches,
                .executor = executor,
                .proposer = proposer_.grammars(),
                .proposals = proposer_,
                .events = events_,
                .beams = beams_,
                .stats = stats_,
                .watch = watch_,
                .tiers = cache.tiers.get(),
                .disaggregation = cache.disaggregation.get(),
                .pooled = info.pooled,
                .images = info.images,
                .append_time = tokenizer == nullptr ? AppendTime() : time_appender(*tokenizer),
                .vocab_size = info.vocab_size,
                .length_limit = {.tokens = max_sequence_tokens_,
                                 .by_cache = max_sequence_tokens_ < config.model.context_length}}),
      thread_([this] { run(); }) {}

EngineLoop::~EngineLoop() {
  inbox_.stop();
  thread_.join();
  notify_loads(nullptr);
}

void EngineLoop::notify_loads(const std::function<void()>& load_ended) const {
  if (cache_.tiers != nullptr) cache_.tiers->notify(load_ended);
  if (cache_.disaggregation != nullptr) cache_.disaggregation->notify(load_ended);
}

// One turn commits the step before and leaves the next one running; the executor is waited for
// once, while it has work. A step's masks are computed when the tokens before it are known and
// while its forward runs.
void EngineLoop::run() {
  set_thread_name("scheduler");
  notify_loads([this] { inbox_.wake(); });
  const MemoryReserveScope reserve;
  stats_.publish();
  while (take_inbox()) {  // 1 inbox; parks while there is nothing to do
    turn_.waited = {};
    ForwardBatch* const launched = launch_next();  // 2 next, 3 launch
    turn_.is_stalled = launched == nullptr && in_flight_ == nullptr;
    if (in_flight_ != nullptr) wait_and_commit(*in_flight_);  // 4 wait
    beams_.advance();  // searches whose last sequence ended in a message, in next() or in commit()
    in_flight_ = launched;
    if (launched != nullptr) provide_masks(*launched);  // 5 masks
    watch_.enter(LoopPhase::kPublish);
    stats_.publish();  // before callers get the counted events
    watch_.set_load(stats_.num_running(), stats_.num_waiting());
    watch_.enter(LoopPhase::kEmit);
    events_.emit();  // 6 emit
    stats_.add_host(to_seconds(clock_.now() - turn_.start - turn_.waited));
    watch_.park();
  }
}

// False when the engine is being destroyed and nothing is left.
bool EngineLoop::take_inbox() {
  turn_.messages.clear();
  const Inbox::Park park = how_to_park();
  if (park == Inbox::Park::kUntilThereIsWork && config_.check_invariants)
    scheduler_.check_invariants();
  if (park == Inbox::Park::kUntilThereIsWork && idle()) report_leak();
  const bool stopped = inbox_.take(turn_.messages, park);
  turn_.start = clock_.now();
  watch_.begin_turn(turn_.start);
  handler_.free_memory(/*shed=*/!restore_memory_reserve());
  for (Message& message : turn_.messages) handler_.handle(message);
  if (stopped) handler_.abort_all(error(StatusCode::kUnavailable, "the engine was shut down"));
  handler_.answer(in_flight_ != nullptr);
  return !stopped || !idle() || !requests_.empty();
}

// Stalled means that the last turn found nothing to run and had nothing to commit. Then loads are
// awaited, which wake the loop when they end; it looks after a while in any case, for some are
// late.
Inbox::Park EngineLoop::how_to_park() const {
  if (handler_.has_unanswered()) return Inbox::Park::kNo;
  const bool awaits_loads = turn_.is_stalled && scheduler_.is_loading();
  if (handler_.awaits_hold()) return awaits_loads ? Inbox::Park::kForAWhile : Inbox::Park::kNo;
  if (idle() || (handler_.paused() && in_flight_ == nullptr && !events_.has_pending()))
    return Inbox::Park::kUntilThereIsWork;
  return awaits_loads ? Inbox::Park::kForAWhile : Inbox::Park::kNo;
}

// With nothing running, every page is free, or cached and evictable. Any other page is a leak: it
// is logged once, and the engine goes on with the rest.
void EngineLoop::report_leak() {
  const PrefixCacheSizes pages = cache_.caches.sizes();
  if (pages.in_use() == 0 || std::exchange(leak_reported_, true)) return;
  log_error("kv memory leaked pages={} protected={} total={}", pages.in_use(), pages.protected_,
            pages.total);
}

ForwardBatch* EngineLoop::launch_next() {
  if (handler_.paused() || (in_flight_ != nullptr && config_.compute.disable_overlap_schedule))
    return nullptr;
  ForwardBatch& batch = batches_.next();
  watch_.enter(LoopPhase::kSchedule);
  if (!scheduler_.next(batch)) return nullptr;
  batches_.advance();
  watch_.enter(LoopPhase::kLaunch);
  if (cache_.disaggregation != nullptr) cache_.disaggregation->on_launch(batch);
  executor_.launch(batch);
  watch_.launched(batch);
  return &batch;
}

void EngineLoop::wait_and_commit(ForwardBatch& batch) {
  watch_.enter(LoopPhase::kWait);
  const TimePoint start = clock_.now();
  const StepResult& result = executor_.wait(batch.step);
  turn_.waited = clock_.now() - start;
  watch_.waited(batch, result);
  watch_.enter(LoopPhase::kCommit);
  stats_.add_forward(result.forward_seconds);
  events_.begin_step();
  scheduler_.commit(batch, result, [this] { beams_.advance(); });
  batch.embedding_spans.clear();  // an idle engine keeps no pictures of its last step
  batch.clear_cross();
  for (ForwardBatch& of_rank : batch.ranks) of_rank.embedding_spans.clear();
}

// The masks of a step whose tokens before are known by now, while its forward runs.
void EngineLoop::provide_masks(const ForwardBatch& batch) {
  if (std::ranges::none_of(batch.entries, &BatchEntry::has_mask)) return;
  watch_.enter(LoopPhase::kMasks);
  const TimePoint start = clock_.now();
  const MaskView masks = masks_.fill(batch);
  executor_.provide_masks(batch.step, masks);
  stats_.add_masks(std::ssize(masks.words) / masks.words_per_mask,
                   to_seconds(clock_.now() - start));
}

}  // namespace espalier
