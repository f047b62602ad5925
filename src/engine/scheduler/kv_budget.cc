#include "engine/scheduler/kv_budget.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/scheduler/fair_parts.h"

namespace espalier {

namespace {
// Output tokens that each running sequence is given for certain when the ratio is raised.
constexpr int64_t kRetractionHeadroom = 20;
// How often one sequence is preempted at most.
constexpr int32_t kPreemptionsMax = 3;

int32_t num_pages_of(const std::vector<std::pair<uint64_t, DetachedPages>>& detached) {
  int32_t count = 0;
  for (const auto& [step, pages] : detached) count += static_cast<int32_t>(pages.pages().size());
  return count;
}
}  // namespace

KvBudget::KvBudget(const SchedulerConfig& config, PrefixCache& cache, const RunningSet& running,
                   const StepCounter& steps)
    : config_(config), cache_(cache), running_(running), steps_(steps), ratio_(config) {}

int64_t KvBudget::max_sequence_tokens() const {
  return int64_t{cache_.num_pages()} * cache_.page_size() + 1;
}

bool KvBudget::grow(Sequence& sequence, int32_t num_tokens) {
  return cache_.grow(sequence.kv.pages, num_tokens);
}

int64_t KvBudget::room_for(const Sequence& sequence) const {
  return (int64_t{sequence.kv.pages.num_pages()} + cache_.sizes().available_now()) *
             cache_.page_size() -
         sequence.num_launched;
}

int64_t KvBudget::spare_tokens() const {
  const int64_t num_pages = int64_t{cache_.sizes().available_now()} - running_.num_running();
  return num_pages * cache_.page_size();
}

// Pages that come back without eviction or retraction once the steps in flight are committed.
int32_t KvBudget::pages_coming_back() const {
  int32_t count = num_pages_of(detached_);
  if (running_.num_leaving() == 0) return count;
  for (const Sequence* s : running_.slots())
    if (s != nullptr &&
        (s->state == SequenceState::kPaused || s->state == SequenceState::kFinished))
      count += cache_.num_exclusive_pages(s->kv.pages);
  return count;
}

// The same of the window's map, with the pages that windows will have passed.
int32_t KvBudget::window_pages_coming_back() const {
  int32_t count = num_pages_of(detached_);
  for (const Sequence* s : running_.slots()) {
    if (s == nullptr || s->state == SequenceState::kLoading) continue;
    count += s->state == SequenceState::kRunning
                 ? cache_.num_window_pages_passed(s->kv.pages, s->num_launched)
                 : s->kv.pages.num_window_pages();
  }
  return count;
}

// Beyond its pages: the rest of its prompt, and its estimated share of the output still to come.
int32_t KvBudget::pages_still_needed(const Sequence& s) const {
  const int32_t to_come =
      std::min(s.spec.max_new_tokens - s.num_samples_launched, config_.new_token_clip);
  const int32_t known = std::max(s.num_launched, s.num_tokens());
  const auto estimate = static_cast<int32_t>(std::ceil(ratio_.value() * to_come));
  return std::max(cache_.num_pages_for(known + estimate) - s.kv.pages.num_pages(), 0);
}

int32_t KvBudget::window_pages_still_needed(const Sequence& s) const {
  return std::max(0,
                  cache_.num_window_pages_most(s.kv.num_pages_max) - s.kv.pages.num_window_pages());
}

bool KvBudget::decode_fits() const {
  const std::span<Sequence* const> running = running_.running();
  int32_t num_needed = 0;
  for (size_t i = 0; i < running.size(); ++i) {
    if (i + kStepsAhead < running.size()) running[i + kStepsAhead]->prefetch_step();
    const Sequence& s = *running[i];
    if (!s.wants_decode_entry()) continue;
    const int32_t num_pages = cache_.num_pages_for(s.num_launched + s.num_due());
    num_needed += std::max(num_pages - s.kv.pages.num_pages(), 0);
  }
  const PrefixCacheSizes sizes = cache_.sizes();
  return (sizes.available() >= num_needed ||
          sizes.available() + pages_coming_back() >= num_needed) &&
         (sizes.window_available >= num_needed ||
          sizes.window_available + window_pages_coming_back() >= num_needed);
}

Sequence& KvBudget::retraction_victim() const {
  const std::span<Sequence* const> running = running_.running();
  if (config_.fair_share != FairShare::kNone) {
    const FairParts parts(running_, cache_.num_pages(), nullptr);
    return **std::min_element(
        running.rbegin(), running.rend(), [&](const Sequence* a, const Sequence* b) {
          const bool a_exceeds = parts.exceeds(a->queue.share);
          if (a_exceeds != parts.exceeds(b->queue.share)) return a_exceeds;
          return a->num_outputs() < b->num_outputs();
        });
  }
  return **std::min_element(
      running.rbegin(), running.rend(),
      [](const Sequence* a, const Sequence* b) { return a->num_outputs() < b->num_outputs(); });
}

void KvBudget::on_retraction() {
  int64_t used = 0, allowed = 0;
  for (const Sequence* s : running_.running()) {
    used += s->num_outputs() + kRetractionHeadroom;
    allowed += s->spec.max_new_tokens;
  }
  ratio_.raise(used, allowed);
}

void KvBudget::begin_admission(uint64_t step) {
  for (; !retained_.empty() && retained_.front().until_step < step; retained_.pop_front())
    num_retained_ -= retained_.front().num_pages;
  num_reserved_ = 0;
  for (const Sequence* s : running_.slots())
    if (s != nullptr &&
        (s->state == SequenceState::kRunning || s->state == SequenceState::kLoading))
      add_reservation(*s);
}

bool KvBudget::try_reserve(Sequence& sequence, bool overdue) {
  KvPlacement& kv = sequence.kv;
  const int32_t num_evictable = cache_.sizes().evictable;
  kv.pages = cache_.begin(sequence.spec.cache_namespace,
                          sequence.first_tokens(sequence.match_limit()), sequence.spec.priority);
  const int32_t num_cached = kv.pages.num_pages() * cache_.page_size();
  sequence.num_computed = sequence.num_launched = num_cached;
  sequence.prefill_end = sequence.num_tokens();
  sequence.num_samples_launched = sequence.num_outputs();
  const int32_t num_needed = pages_still_needed(sequence);
  kv.num_pages_max = cache_.num_pages_for(sequence.prompt_len + sequence.spec.max_new_tokens);
  const PrefixCacheSizes sizes = cache_.sizes();
  // A new sequence may use the retained pages that it matches, and no other ones.
  const int32_t num_matched = num_evictable - sizes.evictable;
  const int32_t num_kept =
      overdue ? 0 : std::clamp(num_retained_ - num_matched, 0, sizes.evictable);
  if (!running_.empty() &&
      (num_needed + num_reserved_ + num_kept > sizes.available() || !window_has_room(sequence))) {
    kv.pages.reset();
    return false;
  }
  consume_retained(num_matched);
  kv.pages.reserve(kv.num_pages_max);
  kv.table_version = ++last_table_version_;
  return true;
}

// Whether the windows of all running sequences and of this one, which holds its first pages, fit.
bool KvBudget::window_has_room(const Sequence& sequence) const {
  if (!cache_.has_window()) return true;
  int64_t num_needed = window_pages_still_needed(sequence);
  for (const Sequence* s : running_.running()) num_needed += window_pages_still_needed(*s);
  return num_needed <= cache_.sizes().window_available;
}

std::vector<Sequence*> KvBudget::preemptible_by(const Sequence& sequence) const {
  std::vector<Sequence*> victims;
  if (config_.fair_share != FairShare::kNone) {
    const FairParts parts(running_, cache_.num_pages(), sequence.queue.share);
    if (parts.may_take(sequence.queue.share, pages_still_needed(sequence)))
      victims = parts.preemptible(kPreemptionsMax);
  }
  if (config_.policy != SchedulePolicy::kPriority || !victims.empty()) return victims;
  const int64_t most = int64_t{sequence.spec.priority} - config_.priority_preemption_threshold;
  for (Sequence* s : running_.running())
    if (s->spec.priority <= most && !s->preemption.exempt && s->preemption.count < kPreemptionsMax)
      victims.push_back(s);
  std::reverse(victims.begin(), victims.end());
  std::stable_sort(victims.begin(), victims.end(), [](const Sequence* a, const Sequence* b) {
    return a->spec.priority < b->spec.priority;
  });
  return victims;
}

std::optional<std::vector<Sequence*>> KvBudget::plan_preemption(Sequence& sequence) const {
  bool slot_missing = !running_.has_free_slot() && running_.num_leaving() == 0;
  std::vector<Sequence*> victims = preemptible_by(sequence);
  if (slot_missing && victims.empty()) return std::nullopt;
  const int32_t to_come =
      std::min(sequence.spec.max_new_tokens - sequence.num_outputs(), config_.new_token_clip);
  int32_t num_missing =
      cache_.num_pages_for(sequence.num_tokens() +
                           static_cast<int32_t>(std::ceil(ratio_.value() * to_come))) -
      current_match(sequence, cache_) / cache_.page_size() - cache_.sizes().available() -
      pages_coming_back();
  for (const Sequence* s : running_.running()) num_missing += pages_still_needed(*s);
  int32_t num_window_missing = 0;
  if (cache_.has_window()) {
    const int32_t num_pages =
        cache_.num_pages_for(sequence.prompt_len + sequence.spec.max_new_tokens);
    num_window_missing = cache_.num_window_pages_most(num_pages) - cache_.sizes().window_available -
                         window_pages_coming_back();
    for (const Sequence* s : running_.running())
      num_window_missing += window_pages_still_needed(*s);
  }
  size_t num_victims = 0;
  const auto missing = [&] { return num_missing > 0 || num_window_missing > 0 || slot_missing; };
  while (missing() && num_victims < victims.size()) {
    const Sequence& victim = *victims[num_victims++];
    num_missing -= cache_.num_exclusive_pages(victim.kv.pages) + pages_still_needed(victim);
    num_window_missing -= victim.kv.pages.num_window_pages() + window_pages_still_needed(victim);
    slot_missing = false;
  }
  if (missing()) return std::nullopt;
  victims.resize(num_victims);
  return victims;
}

void KvBudget::share(Sequence& sequence) {
  DetachedPages replaced;
  cache_.share(sequence.kv.pages, sequence.first_tokens(sequence.num_computed), replaced);
  if (replaced.empty()) return;
  sequence.kv.table_version = ++last_table_version_;
  if (steps_.in_flight(sequence.last_step))
    detached_.emplace_back(sequence.last_step, std::move(replaced));
}

void KvBudget::advance(Sequence& sequence) {
  cache_.advance(sequence.kv.pages, sequence.num_computed);
}

// Only the policies that order by prefix admit a continuation first, so only with them retention
// helps.
void KvBudget::retain(const Sequence& sequence) {
  if (config_.retention_steps == 0 || !orders_by_prefix(config_.policy)) return;
  if (cache_.radix_tree() == nullptr) return;
  const int32_t num_pages = cache_.num_exclusive_pages(sequence.kv.pages);
  retained_.push_back(
      {steps_.launched() + static_cast<uint64_t>(config_.retention_steps), num_pages});
  num_retained_ += num_pages;
}

void KvBudget::consume_retained(int32_t count) {
  for (auto it = retained_.rbegin(); it != retained_.rend() && count > 0; ++it) {
    const int32_t taken = std::min(count, it->num_pages);
    it->num_pages -= taken;
    num_retained_ -= taken;
    count -= taken;
  }
}

// What an entry that is thrown away has computed is kept too, where its token is known.
void KvBudget::release(Sequence& sequence) {
  if (sequence.entry_failed) return sequence.kv.pages.reset();
  const int32_t count = std::min(sequence.num_computed, sequence.num_tokens());
  cache_.finish(std::move(sequence.kv.pages), sequence.first_tokens(count));
}

void KvBudget::reclaim() {
  std::erase_if(detached_, [&](const auto& pages) { return !steps_.in_flight(pages.first); });
}

void KvBudget::append_detached(std::vector<PageId>& pages) const {
  for (const auto& [step, detached] : detached_)
    pages.insert(pages.end(), detached.pages().begin(), detached.pages().end());
}

void KvBudget::check_invariants() const {
  for (const auto& [step, pages] : detached_)
    ESP_CHECK(steps_.in_flight(step), "pages of step {} are kept too long", step);
  int32_t num_retained = 0;
  for (const Retained& r : retained_) {
    ESP_CHECK(r.num_pages >= 0);
    num_retained += r.num_pages;
  }
  ESP_CHECK(num_retained == num_retained_);
  for (const Sequence* s : running_.slots()) {
    if (s == nullptr) continue;
    ESP_CHECK(s->kv.pages.holds());
    ESP_CHECK(s->kv.pages.num_shared_pages() * cache_.page_size() <= s->num_computed);
    ESP_CHECK(s->num_launched <= s->kv.pages.num_pages() * cache_.page_size());
    ESP_CHECK(s->kv.table_version != 0 && s->kv.table_version <= last_table_version_);
  }
}

}  // namespace espalier
