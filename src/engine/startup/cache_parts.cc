#include "engine/startup/cache_parts.h"

#include <utility>
#include <vector>

#include "engine/executor/executor.h"
#include "engine/startup/model_fingerprint.h"
#include "engine/tiers/start_tiers.h"

namespace espalier {

Result<CacheParts> make_cache_parts(const EngineConfig& config, const Engine::Parts& parts) {
  CacheParts made{.clock = std::make_unique<SteadyClock>()};
  PageNameScope name_scope;
  if (config.cache.num_cache_events > 0)
    made.events =
        std::make_unique<CacheEventLog>(static_cast<size_t>(config.cache.num_cache_events));
  if (made.events != nullptr || config.tiers.enable_hierarchical_cache ||
      config.disaggregation.disaggregation_mode != "null") {
    ESP_ASSIGN_OR_RETURN(name_scope, page_name_scope(config, parts.info));
  }
  const MakeTiers make_tiers = parts.make_tiers ? parts.make_tiers : start_tiers;
  ESP_ASSIGN_OR_RETURN(made.tiers,
                       make_tiers(config, parts.info, name_scope, *parts.executor, *made.clock));
  if (made.events != nullptr && made.tiers != nullptr) report_host_pages(*made.tiers, *made.events);
  ESP_ASSIGN_OR_RETURN(made.disaggregation, start_disaggregation(config, parts.info, name_scope,
                                                                 parts.executor->page_copier(),
                                                                 *made.clock, made.tiers.get()));
  const int32_t num_ranks = config.compute.attention_ranks();
  const auto pages_each = [&](int32_t tokens) {
    return tokens / config.cache.page_size / num_ranks;
  };
  const PrefixCacheConfig of_rank{
      .num_pages = pages_each(config.cache.max_total_tokens),
      .page_size = config.cache.page_size,
      .disable_radix_cache = config.cache.disable_radix_cache,
      .eviction_policy = *parse_eviction_policy(config.cache.radix_eviction_policy),
      .events = made.events.get(),
      .observer = made.tiers.get(),
      .name_scope = std::move(name_scope),
      .sliding_window = config.cache.window_tokens_read,
      .num_window_pages = pages_each(config.cache.max_window_tokens)};
  std::vector<std::unique_ptr<PrefixCache>> caches(static_cast<size_t>(num_ranks));
  for (auto& cache : caches) {
    ESP_ASSIGN_OR_RETURN(cache, parts.make_cache(of_rank));
  }
  made.caches = RankCaches(std::move(caches));
  return made;
}

}  // namespace espalier
