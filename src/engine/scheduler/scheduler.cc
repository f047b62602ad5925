// Source of the admission: Algorithm 1 of the SGLang paper, with a budget that grows as it admits,
// an estimate of the output still to come, chunked prompts, and retraction where the estimate was
// too low.
#include "engine/scheduler/scheduler.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "engine/scheduler/batch_builder.h"
#include "engine/scheduler/committer.h"
#include "engine/scheduler/inflight_prefixes.h"
#include "engine/scheduler/kv_budget.h"
#include "engine/scheduler/kv_loader.h"
#include "engine/scheduler/running_set.h"
#include "engine/scheduler/wait_queue.h"

namespace espalier {

namespace {
// An admission that failed for want of memory is tried again after a release, or after this many
// steps, since the new-token ratio has fallen meanwhile.
constexpr uint64_t kAdmissionRetrySteps = 8;
// How many waiting sequences (each with all that share its prefix) one step may defer. They are
// tried again when the prefix that they wait for is cached, a few steps later.
constexpr int kDeferredMax = 64;
}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, PrefixCache& cache, const Clock& clock,
                     SequenceObserver& observer, TokenProposer* proposer, KvLoader* loader)
    : config_(config), cache_(cache), clock_(clock), observer_(observer), loader_(loader) {
  ESP_CHECK(config.max_running > 0 && config.context_length > 0);
  TokenProposer& proposals = proposer != nullptr ? *proposer : no_proposals_;
  running_ = std::make_unique<RunningSet>(config.max_running);
  budget_ = std::make_unique<KvBudget>(config, cache, *running_, steps_);
  queue_ = std::make_unique<WaitQueue>(config, cache);
  inflight_ = std::make_unique<InflightPrefixes>(config, cache);
  builder_ = std::make_unique<BatchBuilder>(config, cache, *running_, steps_, *budget_, proposals);
  committer_ = std::make_unique<Committer>(Committer::Parts{.clock = clock,
                                                            .steps = steps_,
                                                            .running = *running_,
                                                            .budget = *budget_,
                                                            .inflight = *inflight_,
                                                            .queue = *queue_,
                                                            .observer = observer,
                                                            .proposer = proposals});
}

Scheduler::~Scheduler() = default;

int32_t Scheduler::max_sequence_tokens() const {
  return static_cast<int32_t>(
      std::min<int64_t>(config_.context_length, budget_->max_sequence_tokens()));
}

Status Scheduler::check_size(const SequenceSpec& spec) const {
  if (spec.prompt_ids.empty()) return invalid_argument("the prompt is empty");
  const auto num_prompt = static_cast<int64_t>(spec.prompt_ids.size());
  if (spec.max_new_tokens < 0)
    return invalid_argument("max_new_tokens is {}; it must be at least 0", spec.max_new_tokens);
  if (num_prompt + spec.max_new_tokens > config_.context_length)
    return invalid_argument(
        "the prompt of {} tokens and max_new_tokens {} exceed the context of {} tokens", num_prompt,
        spec.max_new_tokens, config_.context_length);
  const int64_t num_kv = num_prompt + std::max(spec.max_new_tokens - 1, 0);
  const int64_t pool_tokens = budget_->max_sequence_tokens() - 1;
  if (num_kv > pool_tokens)
    return invalid_argument(
        "the prompt of {} tokens and max_new_tokens {} need {} tokens of KV memory; the pool has "
        "{}",
        num_prompt, spec.max_new_tokens, num_kv, pool_tokens);
  return Status();
}

Status Scheduler::add(SequenceSpec spec) {
  ESP_RETURN_IF_ERROR(check_size(spec));
  if (queue_->size() >= config_.max_waiting)
    return error(StatusCode::kResourceExhausted, "the queue is full: {} requests are waiting",
                 queue_->size());
  const SequenceId id = spec.id;
  const auto [found, added] = sequences_.try_emplace(id, std::make_unique<Sequence>());
  ESP_CHECK(added, "sequence {} was added twice", id);
  Sequence& sequence = *found->second;
  sequence.tokens = std::move(spec.prompt_ids);
  sequence.prompt_len = sequence.num_tokens();
  if (!spec.sampling->hidden_layers.empty()) sequence.kv.hidden_next = 0;
  sequence.logprobs = {.next = spec.logprob_start_len < 0
                                   ? sequence.prompt_len
                                   : std::clamp(spec.logprob_start_len, 1, sequence.prompt_len),
                       .end = sequence.prompt_len};
  sequence.spec = std::move(spec);
  sequence.stats.prompt_tokens = sequence.prompt_len;
  sequence.stats.arrived = sequence.spec.arrived;
  if (!committer_->take_first_forced(sequence)) {
    sequences_.erase(found);
    return Status();
  }
  if (sequence.spec.handoff == Handoff::kGive)
    sequence.spec.max_new_tokens = sequence.num_outputs() + 1;
  queue_->add(sequence);
  if (loader_ != nullptr && sequence.spec.num_generated == 0)
    loader_->prefetch({.id = id,
                       .cache_namespace = sequence.spec.cache_namespace,
                       .tokens = sequence.first_tokens(sequence.match_limit()),
                       .num_cached = current_match(sequence, cache_)});
  // It may preempt others, or find its prefix cached.
  if (may_preempt() || orders_by_prefix(config_.policy)) admission_retry_step_ = 0;
  return Status();
}

void Scheduler::abort(SequenceId id, FinishReason reason) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  Sequence& sequence = *found->second;
  if (sequence.finish_reported || sequence.abort_reason) return;
  if (sequence.state == SequenceState::kWaiting) {
    queue_->remove(sequence);
    if (loader_ != nullptr) loader_->forget(id);
    committer_->finish(sequence, std::move(reason));
    queue_->left(sequence);
    sequences_.erase(found);
    admission_retry_step_ = 0;  // it may be the one behind which the others waited
    return;
  }
  sequence.abort_reason = std::move(reason);
  if (sequence.kv.loading_end > 0) loader_->cancel(id);
  inflight_->remove(sequence);
  running_->leave(sequence, SequenceState::kFinished);
  running_->compact();
  if (may_retire(sequence)) retire(sequence);
}

void Scheduler::retract_all() {
  ESP_CHECK(!steps_.any_in_flight(), "a step is in flight");
  for (const Sequence* s : running_->slots())
    if (s != nullptr && s->kv.loading_end > 0) loader_->cancel(s->spec.id);
  if (is_loading()) finish_loads();
  while (running_->num_running() > 0) {  // the last first, so that the first comes back first
    Sequence& last = *running_->running().back();
    pause(last);
    retire(last);
  }
}

bool Scheduler::next(ForwardBatch& batch) {
  ESP_CHECK(steps_.launched() - steps_.committed() <= StepCounter::kUncommittedMax,
            "two batches are uncommitted");
  if (loader_ != nullptr) finish_loads();
  builder_->begin(batch, steps_.launched() + 1);
  fill(batch);
  // With nothing in flight and nothing that fits, partial prompts hold the whole pool: with fewer
  // of them running the others fit.
  while (batch.entries.empty() && !steps_.any_in_flight() && running_->num_running() > 1) {
    retract(budget_->retraction_victim());
    fill(batch);
  }
  builder_->end(batch);
  if (batch.entries.empty()) {
    ESP_CHECK(steps_.any_in_flight() || sequences_.empty() || running_->num_loading() > 0,
              "nothing can run");
    return false;
  }
  steps_.launch();
  ++stats_.steps;
  stats_.entries += static_cast<int64_t>(batch.entries.size());
  return true;
}

void Scheduler::fill(ForwardBatch& batch) {
  while (running_->num_running() > 1 && !budget_->decode_fits())
    retract(budget_->retraction_victim());
  builder_->add_running(batch, [this] { return shares_with_prompts(); });
  if (running_->empty()) budget_->on_idle();
  admit(batch);
}

// Forced tokens count as prompts do. Without shares each sequence counts, of those that wait as
// many as there are slots for.
PromptShares Scheduler::shares_with_prompts() const {
  const auto of = [](double prompts, double decode) { return decode > 0 ? prompts / decode : 1; };
  if (config_.fair_share == FairShare::kNone) {
    const auto num_prompts = std::ranges::count_if(running_->running(), &Sequence::prefilling);
    const auto num_decode = std::ssize(running_->running()) - num_prompts;
    const int32_t num_free = config_.max_running - running_->num_running();
    const auto num_next = std::min(queue_->size(), std::max(0, num_free));
    return {.per_decode =
                of(static_cast<double>(num_prompts + num_next), static_cast<double>(num_decode))};
  }
  std::set<const WaitingShare*> shares, decode_shares;
  queue_->add_waiting_shares(shares);
  for (const Sequence* s : running_->running()) {
    if (s->prefilling() || s->num_due() > 1) shares.insert(s->queue.share);
    if (!s->prefilling()) decode_shares.insert(s->queue.share);
  }
  PromptShares parts{.count = static_cast<int32_t>(shares.size()), .weight = 0};
  for (const WaitingShare* share : shares) parts.weight += share->weight;
  double decode_weight = 0;
  for (const WaitingShare* share : decode_shares) decode_weight += share->weight;
  parts.per_decode = of(parts.weight, decode_weight);
  return parts;
}

void Scheduler::admit(ForwardBatch& batch) {
  if (queue_->empty() || builder_->prompt_tokens_left() <= 0) return;
  if (!running_->has_free_slot() && !may_preempt()) return;
  if (batch.step < admission_retry_step_ && !running_->empty()) return;
  budget_->begin_admission(batch.step);
  int num_deferred = 0;
  while (builder_->prompt_tokens_left() > 0 && num_deferred < kDeferredMax) {
    Sequence* const sequence = queue_->next();
    if (sequence == nullptr || (!running_->has_free_slot() && !may_preempt())) break;
    // Sequences that go first in any case wait for no prefix.
    const bool goes_first = sequence->was_retracted() || sequence->spec.num_generated > 0 ||
                            queue_->is_overdue(*sequence);
    if (const int32_t prefix = goes_first ? 0 : inflight_->prefix_to_wait_for(*sequence)) {
      queue_->defer(*sequence, prefix);
      ++num_deferred;
      continue;
    }
    if (!adapter_fits(*sequence)) {
      admission_retry_step_ = batch.step + 1;
      break;
    }
    if (!running_->has_free_slot() || !try_admit(*sequence)) {
      // The round ends, so that no later sequence takes the memory that this one waits for.
      if (!make_room_by_preemption(*sequence))
        admission_retry_step_ = batch.step + (budget_->retains_pages() ? 1 : kAdmissionRetrySteps);
      break;
    }
    if (sequence->state == SequenceState::kRunning) builder_->add_chunk(batch, *sequence);
    budget_->add_reservation(*sequence);  // beyond what the chunk has taken
  }
  queue_->end_round();
}

bool Scheduler::adapter_fits(const Sequence& sequence) const {
  const AdapterId wanted = sequence.spec.adapter;
  if (config_.max_adapters == 0 || wanted == kNoAdapter) return true;
  std::set<AdapterId> adapters = {wanted};
  for (const Sequence* s : running_->running())
    if (s->spec.adapter != kNoAdapter) adapters.insert(s->spec.adapter);
  return std::ssize(adapters) <= config_.max_adapters;
}

bool Scheduler::try_admit(Sequence& sequence) {
  const bool overdue = queue_->is_overdue(sequence);
  if (!budget_->try_reserve(sequence, overdue)) return false;
  sequence.preemption.exempt = !sequence.was_retracted() && overdue;
  queue_->remove(sequence);
  running_->take_slot(sequence);
  if (loader_ == nullptr || !start_load(sequence)) running_->start(sequence);
  const int32_t most = sequence.prompt_len + sequence.spec.max_new_tokens;
  sequence.tokens.reserve(static_cast<size_t>(most));
  inflight_->add(sequence);
  if (sequence.stats.num_retractions > 0) return true;
  // Tokens that its grammar has forced by now may be cached behind the prompt.
  const int32_t num_cached = std::min(sequence.num_computed, sequence.prompt_len);
  if (sequence.spec.num_generated > 0) {
    // A step of a search computes its last token in any case, as decode does; the tokens before it
    // are computed anew where they are not cached.
    queue_->charge(sequence, std::max(0, sequence.prompt_len - num_cached - 1));
    return true;
  }
  queue_->charge(sequence, sequence.prompt_len - num_cached);
  sequence.stats.scheduled = clock_.now();
  observer_.on_scheduled(sequence.spec.id);
  sequence.stats.cached_tokens = num_cached;
  stats_.prompt_tokens += sequence.prompt_len;
  stats_.cached_tokens += num_cached;
  return true;
}

// Whole pages beyond the cached ones, as far as the loader has them and memory lasts; of a sequence
// that a prefill server computes, all.
bool Scheduler::start_load(Sequence& sequence) {
  const bool takes_all = sequence.spec.handoff == Handoff::kTake;
  const int32_t most = takes_all ? sequence.num_tokens() : sequence.match_limit();
  LoadRequest request{.id = sequence.spec.id,
                      .cache_namespace = sequence.spec.cache_namespace,
                      .tokens = sequence.first_tokens(most),
                      .num_cached = sequence.num_computed,
                      .pages = sequence.kv.pages.table()};
  const int32_t available = std::min(loader_->num_available(request), most);
  const int32_t end = takes_all ? available : available - available % cache_.page_size();
  if (end <= request.num_cached || !budget_->grow(sequence, end)) {
    if (takes_all) {  // without memory for all of it, it is computed here
      sequence.spec.handoff = Handoff::kNone;
      loader_->cancel(sequence.spec.id);
    }
    return false;
  }
  request.tokens = sequence.first_tokens(end);
  request.pages = sequence.kv.pages.table();
  sequence.kv.loading_end = end;
  running_->start_loading(sequence);
  loader_->start(request);
  return true;
}

// A sequence whose load failed computes the tokens. One that was aborted meanwhile is retired.
void Scheduler::finish_loads() {
  std::vector<LoadResult> ended;
  loader_->poll(ended);
  for (LoadResult& load : ended) {
    Sequence& sequence = *sequences_.at(load.id);
    const int32_t end = std::exchange(sequence.kv.loading_end, 0);
    ESP_CHECK(end > 0, "sequence {} has no load in progress", load.id);
    running_->end_loading(sequence);
    if (sequence.state == SequenceState::kFinished) {
      retire(sequence);
    } else {
      ESP_CHECK(load.num_tokens <= end &&
                (load.prefill != nullptr || load.num_tokens % cache_.page_size() == 0));
      running_->start(sequence);
      take_load(sequence, load);
      if (sequence.state != SequenceState::kFinished) continue;
      running_->compact();
      retire(sequence);
    }
  }
}

// Of the statistics only prompt tokens count, and of a sequence's first admission. A prefill server
// is asked once: what it did not bring is computed here.
void Scheduler::take_load(Sequence& sequence, LoadResult& load) {
  if (sequence.spec.handoff == Handoff::kTake) sequence.spec.handoff = Handoff::kNone;
  if (!load.status.ok())
    return committer_->finish(
        sequence, {.type = FinishReason::Type::kError, .status = std::move(load.status)});
  if (load.prefill != nullptr) return committer_->take_prefill(sequence, *load.prefill);
  const int32_t num_cached = sequence.num_computed;
  if (load.num_tokens <= num_cached) return;
  committer_->take_loaded(sequence, load.num_tokens);
  if (sequence.stats.num_retractions > 0) return;
  const int32_t count =
      std::min(load.num_tokens, sequence.prompt_len) - std::min(num_cached, sequence.prompt_len);
  const int32_t from_host = std::min(load.num_from_host, count);
  sequence.stats.cached_tokens += count;
  sequence.stats.cached_tokens_host += from_host;
  sequence.stats.cached_tokens_storage += count - from_host;
  stats_.cached_tokens += count;
  stats_.cached_tokens_host += from_host;
  stats_.cached_tokens_storage += count - from_host;
}

bool Scheduler::may_retire(const Sequence& sequence) const {
  return !steps_.in_flight(sequence.last_step) && sequence.kv.loading_end == 0;
}

bool Scheduler::may_preempt() const {
  return config_.fair_share != FairShare::kNone ||
         (config_.policy == SchedulePolicy::kPriority && config_.priority_preemption_threshold > 0);
}

// Preempts as few sequences as it takes to admit `sequence` once their last step is committed, or
// none. True when there will be room.
bool Scheduler::make_room_by_preemption(Sequence& sequence) {
  if (!may_preempt()) return false;
  const std::optional<std::vector<Sequence*>> victims = budget_->plan_preemption(sequence);
  if (!victims) return false;
  for (Sequence* victim : *victims) {
    victim->preemption.pending = true;
    ++victim->preemption.count;
    ++stats_.num_preemptions;
    pause(*victim);
    if (may_retire(*victim)) retire(*victim);
  }
  return true;
}

void Scheduler::pause(Sequence& sequence) {
  inflight_->remove(sequence);
  running_->leave(sequence, SequenceState::kPaused);
  running_->compact();
  ++stats_.num_retractions;
  ++sequence.stats.num_retractions;
}

void Scheduler::retract(Sequence& sequence) {
  pause(sequence);
  budget_->on_retraction();
  if (may_retire(sequence)) retire(sequence);
}

void Scheduler::commit(const ForwardBatch& batch, const StepResult& result,
                       const std::function<void()>& continue_searches) {
  steps_.commit(batch.step);
  const std::span<Sequence* const> departing = committer_->commit(batch, result);
  if (continue_searches) continue_searches();
  for (Sequence* sequence : departing) retire(*sequence);
  builder_->observe_step_time(batch, result, clock_.now());
  budget_->reclaim();
}

void Scheduler::retire(Sequence& sequence) {
  if (sequence.abort_reason && !sequence.finish_reported)
    committer_->finish(sequence, std::move(*sequence.abort_reason));
  const bool finished = sequence.state == SequenceState::kFinished;
  if (finished && !sequence.abort_reason && !sequence.entry_failed) budget_->retain(sequence);
  committer_->release(sequence);
  admission_retry_step_ = 0;
  if (!finished) return queue_->requeue(sequence);
  queue_->left(sequence);
  const SequenceId id = sequence.spec.id;
  sequences_.erase(id);
}

bool Scheduler::idle() const { return sequences_.empty() && !steps_.any_in_flight(); }

bool Scheduler::is_loading() const { return running_->num_loading() > 0; }

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  const TokenCounts& counts = committer_->counts();
  stats.generated_tokens = counts.generated_tokens;
  stats.forced_tokens = counts.forced_tokens;
  stats.forwards_saved = counts.forwards_saved;
  stats.drafted_tokens = counts.drafted_tokens;
  stats.verify_steps = counts.verify_steps;
  stats.accepted_draft_tokens = counts.accepted_draft_tokens;
  stats.by_drafter = &committer_->draft_totals();
  stats.num_running = running_->num_running();
  stats.num_waiting = queue_->size();
  stats.new_token_ratio = budget_->new_token_ratio();
  return stats;
}

void Scheduler::check_invariants() const {
  running_->check_invariants();
  budget_->check_invariants();
  queue_->check_invariants();
  std::vector<const SequencePages*> pages;
  std::vector<const RadixNode*> inflight;
  int32_t num_waiting = 0;
  for (const auto& [id, s] : sequences_) {
    ESP_CHECK(s->spec.id == id && !s->tokens.empty());
    const bool waits = s->state == SequenceState::kWaiting;
    ESP_CHECK((s->kv.slot < 0) == waits && s->kv.pages.holds() != waits);
    num_waiting += waits ? 1 : 0;
    if (!waits) {
      ESP_CHECK(&running_->at(s->kv.slot) == s.get());
      builder_->check_sequence(*s);
      const bool active =
          s->state == SequenceState::kRunning || s->state == SequenceState::kLoading;
      ESP_CHECK(active || !may_retire(*s), "it should have been retired");
      ESP_CHECK(s->state != SequenceState::kLoading || s->kv.loading_end > 0);
    }
    pages.push_back(&s->kv.pages);
    if (s->queue.inflight_prefix != nullptr) inflight.push_back(s->queue.inflight_prefix);
  }
  ESP_CHECK(num_waiting == queue_->size());
  std::vector<PageId> detached;
  budget_->append_detached(detached);
  cache_.check_invariants(pages, detached);
  inflight_->check_invariants(inflight);
}

}  // namespace espalier
