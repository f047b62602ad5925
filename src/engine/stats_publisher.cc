#include "engine/stats_publisher.h"

#include <algorithm>

namespace espalier {

void StatsPublisher::publish() {
  const SchedulerStats s = scheduler_.stats();
  const PrefixCacheSizes pages = caches_.sizes();
  const FinishCounts& ends = events_.counts();
  const int32_t page_size = caches_.page_size();
  const bool has_verified = s.verify_steps != totals_.speculation.num_verified;
  totals_.requests.num_running = s.num_running;
  totals_.requests.num_waiting = s.num_waiting;
  totals_.requests.num_finished = ends.finished;
  totals_.requests.num_aborted = ends.aborted;
  totals_.requests.num_failed = ends.failed;
  totals_.requests.num_not_finite = ends.not_finite;
  totals_.requests.num_retractions = s.num_retractions;
  totals_.tokens.prompt = s.prompt_tokens;
  totals_.tokens.cached = s.cached_tokens;
  totals_.tokens.cached_host = s.cached_tokens_host;
  totals_.tokens.cached_storage = s.cached_tokens_storage;
  totals_.tokens.generated = s.generated_tokens;
  totals_.steps.num_steps = s.steps;
  totals_.steps.num_entries = s.entries;
  totals_.speculation.forced_tokens = s.forced_tokens;
  totals_.speculation.forwards_saved = s.forwards_saved;
  totals_.speculation.drafted_tokens = s.drafted_tokens;
  totals_.speculation.accepted_tokens = s.accepted_draft_tokens;
  totals_.speculation.num_verified = s.verify_steps;
  totals_.memory.kv_tokens = pages.total * page_size;
  totals_.memory.kv_tokens_running = pages.in_use() * page_size;
  totals_.memory.kv_tokens_cached = (pages.evictable + pages.protected_) * page_size;
  if (const int64_t count = events_.take_new_tokens(); count > 0)
    throughput_.add(clock_.now(), count);
  std::lock_guard lock(mutex_);
  published_ = totals_;
  if (has_verified) published_by_drafter_ = *s.by_drafter;
  published_throughput_ = throughput_;
}

EngineStats StatsPublisher::snapshot() const {
  std::unique_lock lock(mutex_);
  EngineStats s = published_;
  const ThroughputWindow throughput = published_throughput_;
  const DraftTotals by_drafter = published_by_drafter_;
  lock.unlock();
  s.speculation.by_drafter.assign(by_drafter.begin(), by_drafter.end());
  s.tokens.generated_per_second = throughput.per_second(clock_.now());
  s.requests.num_total = registry_.num_requests_total();
  // Samples whose prompts are being tokenised wait too.
  s.requests.num_waiting =
      std::max(s.requests.num_waiting,
               static_cast<int32_t>(registry_.num_samples()) - s.requests.num_running);
  return s;
}

}  // namespace espalier
