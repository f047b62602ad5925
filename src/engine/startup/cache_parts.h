// The prefix cache of an engine with what goes with it, made before the engine itself.
#pragma once

#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "cache/cache_events.h"
#include "cache/rank_caches.h"
#include "engine/disaggregation/disaggregation.h"
#include "engine/engine.h"
#include "engine/tiers/kv_tiers.h"

namespace espalier {

// Destroyed from the last to the first: the cache reports to tiers and events, and the tiers report
// to events and read the clock. The executor, whose pages the tiers' threads copy, outlives all.
struct CacheParts {
  std::unique_ptr<Clock> clock;
  std::unique_ptr<CacheEventLog> events;           // null: no events are made
  std::unique_ptr<KvTiers> tiers;                  // null: none
  std::unique_ptr<Disaggregation> disaggregation;  // null: none; loads by the tiers, too
  RankCaches caches;
};

// `config` is effective; `parts` has its executor. The errors are those of the fingerprint, the
// tiers and the cache.
Result<CacheParts> make_cache_parts(const EngineConfig& config, const Engine::Parts& parts);

}  // namespace espalier
