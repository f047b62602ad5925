#include "engine/scheduler/scheduler.h"

#include <algorithm>

#include "base/check.h"
#include "engine/scheduler/scheduler_impl.h"

namespace espalier {

Scheduler::Impl::Impl(const SchedulerConfig& config_in, PrefixCache& cache_in,
                      const Clock& clock_in, SequenceObserver& observer_in)
    : config(config_in),
      cache(cache_in),
      clock(clock_in),
      observer(observer_in),
      waiting(config_in, cache_in),
      slots(static_cast<size_t>(config_in.max_running), nullptr),
      promised(cache_in.page_size()),
      ratio(config_in),
      page_tables(config_in.max_running) {
  ESP_CHECK(config.max_running > 0 && config.context_length > 0);
  for (SlotId slot = config.max_running - 1; slot >= 0; --slot) free_slots.push_back(slot);
  running.reserve(slots.size());
}

// The last output token's keys and values are never needed, so one token more than the pool fits.
int32_t Scheduler::Impl::max_sequence_tokens() const {
  const int64_t pool_tokens = int64_t{cache.num_pages()} * cache.page_size() + 1;
  return static_cast<int32_t>(std::min<int64_t>(config.context_length, pool_tokens));
}

Status Scheduler::Impl::check_size(const SequenceSpec& spec) const {
  if (spec.prompt_ids.empty()) return invalid_argument("the prompt is empty");
  const auto num_prompt = static_cast<int64_t>(spec.prompt_ids.size());
  if (spec.max_new_tokens < 0)
    return invalid_argument("max_new_tokens is {}; it must be at least 0", spec.max_new_tokens);
  if (num_prompt + spec.max_new_tokens > config.context_length)
    return invalid_argument(
        "the prompt of {} tokens and max_new_tokens {} exceed the context of {} tokens", num_prompt,
        spec.max_new_tokens, config.context_length);
  const int64_t num_kv = num_prompt + std::max(spec.max_new_tokens - 1, 0);
  const int64_t pool_tokens = int64_t{cache.num_pages()} * cache.page_size();
  if (num_kv > pool_tokens)
    return invalid_argument(
        "the prompt of {} tokens and max_new_tokens {} need {} tokens of KV memory; the pool has "
        "{}",
        num_prompt, spec.max_new_tokens, num_kv, pool_tokens);
  return Status();
}

Status Scheduler::Impl::add(SequenceSpec spec) {
  const WorkTimer timer(tree_clock());
  ESP_RETURN_IF_ERROR(check_size(spec));
  if (waiting.size() >= config.max_waiting)
    return error(StatusCode::kResourceExhausted, "the queue is full: {} requests are waiting",
                 waiting.size());
  const SequenceId id = spec.id;
  auto [place, added] = sequences.try_emplace(id, std::make_unique<Sequence>());
  ESP_CHECK(added, "sequence {} was added twice", id);
  Sequence& sequence = *place->second;
  sequence.tokens = std::move(spec.prompt_ids);
  sequence.prompt_len = sequence.num_tokens();
  sequence.next_logprob = spec.logprob_start_len < 0
                              ? sequence.prompt_len
                              : std::clamp(spec.logprob_start_len, 1, sequence.prompt_len);
  sequence.logprob_end = sequence.prompt_len;
  sequence.spec = std::move(spec);
  sequence.stats.prompt_tokens = sequence.prompt_len;
  sequence.stats.arrived = sequence.spec.arrived;
  if (!take_first_forced(sequence)) {
    sequences.erase(place);
    return Status();
  }
  waiting.add(sequence);
  // It may take others' places, or find its prefix cached.
  if (may_preempt() || orders_by_prefix()) admission_retry_step = 0;
  return Status();
}

void Scheduler::Impl::abort(SequenceId id, FinishReason reason) {
  const auto found = sequences.find(id);
  if (found == sequences.end()) return;
  Sequence& sequence = *found->second;
  if (sequence.finish_told || sequence.abort_reason) return;
  now = clock.now();
  if (sequence.state == SequenceState::kWaiting) {
    tell_finish(sequence, std::move(reason));
    waiting.remove(sequence);
    waiting.left(sequence);
    sequences.erase(found);
    admission_retry_step = 0;  // it may be the one that the others waited behind
    return;
  }
  sequence.abort_reason = std::move(reason);
  if (sequence.state == SequenceState::kRunning) {
    ++num_leaving;
    promised.remove(sequence);
  }
  sequence.state = SequenceState::kEnding;
  std::erase(running, &sequence);
  if (!in_flight(sequence)) leave(sequence);
}

void Scheduler::Impl::check_sequence(const Sequence& s) const {
  const bool holds_slot = s.state != SequenceState::kWaiting;
  ESP_CHECK((s.slot >= 0) == holds_slot && s.pages.holds() == holds_slot);
  if (!holds_slot) return;
  ESP_CHECK(slots[static_cast<size_t>(s.slot)] == &s);
  ESP_CHECK(s.num_computed <= s.num_launched);
  ESP_CHECK(s.pages.num_shared_pages() * cache.page_size() <= s.num_computed);
  ESP_CHECK(s.num_launched <= s.pages.num_pages() * cache.page_size());
  ESP_CHECK(s.num_outputs() <= s.num_samples_launched &&
            s.num_samples_launched <= s.spec.max_new_tokens);
  ESP_CHECK(in_flight(s) || s.entry_failed || s.num_computed == s.num_launched);
  ESP_CHECK(s.state == SequenceState::kRunning || in_flight(s), "it should have left");
  ESP_CHECK(!s.held || in_flight(s), "it is held for nothing");
}

void Scheduler::Impl::check_invariants() const {
  std::vector<const SequencePages*> pages;
  std::vector<PageId> detached_pages;
  std::vector<const RadixNode*> promises;
  size_t num_by_state[4] = {};
  for (const auto& [id, sequence] : sequences) {
    ESP_CHECK(sequence->spec.id == id && !sequence->tokens.empty());
    check_sequence(*sequence);
    pages.push_back(&sequence->pages);
    if (sequence->promise != nullptr) promises.push_back(sequence->promise);
    ++num_by_state[static_cast<size_t>(sequence->state)];
  }
  for (const auto& [step, pages_of_step] : detached) {
    ESP_CHECK(step > committed_step, "pages of step {} are kept too long", step);
    detached_pages.insert(detached_pages.end(), pages_of_step.pages().begin(),
                          pages_of_step.pages().end());
  }
  cache.check_invariants(pages, detached_pages);
  promised.tree().check_invariants(promises);

  waiting.check_invariants();
  const size_t num_waiting = num_by_state[0];
  ESP_CHECK(static_cast<int32_t>(num_waiting) == waiting.size());
  for (const Sequence* s : running) ESP_CHECK(s->state == SequenceState::kRunning);
  ESP_CHECK(running.size() == num_by_state[1]);
  ESP_CHECK(static_cast<size_t>(num_leaving) == num_by_state[2] + num_by_state[3]);

  int32_t num_lingering_known = 0;
  for (const Lingering& l : lingering) num_lingering_known += l.num_pages;
  ESP_CHECK(num_lingering == num_lingering_known && num_lingering >= 0);

  size_t num_used_slots = 0;
  for (const Sequence* s : slots) num_used_slots += s != nullptr ? 1 : 0;
  ESP_CHECK(num_used_slots == sequences.size() - num_waiting);
  ESP_CHECK(num_used_slots + free_slots.size() == slots.size());
  for (const SlotId slot : free_slots) ESP_CHECK(slots[static_cast<size_t>(slot)] == nullptr);
}

Scheduler::Scheduler(const SchedulerConfig& config, PrefixCache& cache, const Clock& clock,
                     SequenceObserver& observer)
    : impl_(std::make_unique<Impl>(config, cache, clock, observer)) {}
Scheduler::~Scheduler() = default;

Status Scheduler::add(SequenceSpec spec) { return impl_->add(std::move(spec)); }
int32_t Scheduler::max_sequence_tokens() const { return impl_->max_sequence_tokens(); }
void Scheduler::abort(SequenceId id, FinishReason reason) { impl_->abort(id, std::move(reason)); }
void Scheduler::retract_all() {
  ESP_CHECK(impl_->launched_step == impl_->committed_step, "a step is in flight");
  while (!impl_->running.empty()) {  // the last first, so that the first comes back first
    Sequence& last = *impl_->running.back();
    impl_->leave_running(last);
    impl_->leave(last);
  }
}
bool Scheduler::next(ForwardBatch& batch) { return impl_->next(batch); }
void Scheduler::commit(const ForwardBatch& batch, const StepResult& result) {
  impl_->commit(batch, result);
}
bool Scheduler::idle() const {
  return impl_->sequences.empty() && impl_->launched_step == impl_->committed_step;
}
SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = impl_->stats;
  stats.tree_seconds = impl_->tree_time.seconds();
  stats.num_running = static_cast<int32_t>(impl_->running.size());
  stats.num_waiting = impl_->waiting.size();
  stats.new_token_ratio = impl_->ratio.value();
  return stats;
}
void Scheduler::check_invariants() const { impl_->check_invariants(); }

}  // namespace espalier
