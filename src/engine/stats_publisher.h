// The engine's counters: the loop's thread publishes a snapshot once a step, other threads read it.
#pragma once

#include <mutex>

#include "base/clock.h"
#include "cache/rank_caches.h"
#include "engine/engine.h"
#include "engine/requests/event_emitter.h"
#include "engine/requests/registry.h"
#include "engine/scheduler/rank_schedulers.h"
#include "engine/throughput.h"

namespace espalier {

// snapshot() is thread-safe; all else is the loop's thread's. Borrows what it counts.
class StatsPublisher {
 public:
  StatsPublisher(const RankSchedulers& scheduler, const RankCaches& caches, EventEmitter& events,
                 const RequestRegistry& registry, const Clock& clock)
      : scheduler_(scheduler),
        caches_(caches),
        events_(events),
        registry_(registry),
        clock_(clock) {}

  void add_forward(double seconds) { totals_.steps.forward_seconds += seconds; }
  void add_host(double seconds) { totals_.steps.host_seconds += seconds; }
  void add_masks(int64_t count, double seconds) {
    totals_.steps.num_masks += count;
    totals_.steps.mask_seconds += seconds;
  }

  void publish();
  // As published last.
  int32_t num_running() const { return totals_.requests.num_running; }
  int32_t num_waiting() const { return totals_.requests.num_waiting; }
  EngineStats snapshot() const;

 private:
  const RankSchedulers& scheduler_;
  const RankCaches& caches_;
  EventEmitter& events_;
  const RequestRegistry& registry_;
  const Clock& clock_;
  EngineStats totals_;
  ThroughputWindow throughput_;

  mutable std::mutex mutex_;
  EngineStats published_;               // guarded, as are:
  DraftTotals published_by_drafter_{};  // apart, for it is large and seldom changes
  ThroughputWindow published_throughput_;
};

}  // namespace espalier
