#include "engine/stats_publisher.h"

#include <algorithm>

namespace espalier {

void StatsPublisher::publish() {
  const SchedulerStats s = scheduler_.stats();
  const PrefixCacheSizes pages = cache_.sizes();
  const FinishCounts& ends = events_.counts();
  const int32_t page_size = cache_.page_size();
  const bool has_verified = s.verify_steps != totals_.verify_steps_total;
  totals_.num_running = s.num_running;
  totals_.num_waiting = s.num_waiting;
  totals_.num_finished_total = ends.finished;
  totals_.num_aborted_total = ends.aborted;
  totals_.num_failed_total = ends.failed;
  totals_.num_not_finite_total = ends.not_finite;
  totals_.num_retractions_total = s.num_retractions;
  totals_.prompt_tokens_total = s.prompt_tokens;
  totals_.cached_tokens_total = s.cached_tokens;
  totals_.cached_tokens_host_total = s.cached_tokens_host;
  totals_.cached_tokens_storage_total = s.cached_tokens_storage;
  totals_.generation_tokens_total = s.generated_tokens;
  totals_.num_steps_total = s.steps;
  totals_.num_entries_total = s.entries;
  totals_.forced_tokens_total = s.forced_tokens;
  totals_.forwards_saved_total = s.forwards_saved;
  totals_.drafted_tokens_total = s.drafted_tokens;
  totals_.accepted_draft_tokens_total = s.accepted_draft_tokens;
  totals_.verify_steps_total = s.verify_steps;
  totals_.kv_tokens_total = pages.total * page_size;
  totals_.kv_tokens_running = pages.in_use() * page_size;
  totals_.kv_tokens_cached = (pages.evictable + pages.protected_) * page_size;
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
  s.by_drafter.assign(by_drafter.begin(), by_drafter.end());
  s.gen_throughput = throughput.per_second(clock_.now());
  s.num_requests_total = registry_.num_requests_total();
  // Samples whose prompts are being tokenised wait too.
  s.num_waiting =
      std::max(s.num_waiting, static_cast<int32_t>(registry_.num_samples()) - s.num_running);
  return s;
}

}  // namespace espalier
