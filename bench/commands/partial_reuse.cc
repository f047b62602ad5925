#include "bench/commands/partial_reuse.h"

#include <memory>

#include "cache/radix_cache.h"

namespace espalier::bench {
namespace {

class PartialReuseCache final : public RadixCache {
 public:
  PartialReuseCache(const PrefixCacheConfig& config, const PartialReuse& reuse)
      : RadixCache(config), reuse_(reuse) {}

  int32_t match_bound(std::string_view cache_namespace,
                      std::span<const TokenId> tokens) const override {
    const int32_t matched = RadixCache::match_bound(cache_namespace, tokens);
    const auto num_tokens = static_cast<int32_t>(tokens.size());
    if (reuse_.whole_prompts_only && matched < num_tokens - num_tokens % page_size()) return 0;
    const auto share = static_cast<int32_t>(reuse_.match_share * matched);
    return share - share % page_size();
  }
  int32_t match(std::string_view cache_namespace, std::span<const TokenId> tokens) const override {
    return RadixCache::match(cache_namespace, usable(cache_namespace, tokens));
  }
  SequencePages begin(std::string_view cache_namespace, std::span<const TokenId> tokens,
                      int32_t priority) override {
    return RadixCache::begin(cache_namespace, usable(cache_namespace, tokens), priority);
  }

 private:
  std::span<const TokenId> usable(std::string_view cache_namespace,
                                  std::span<const TokenId> tokens) const {
    return tokens.first(static_cast<size_t>(match_bound(cache_namespace, tokens)));
  }
  const PartialReuse reuse_;
};

}  // namespace

MakePrefixCache make_partial_reuse_cache(const PartialReuse& reuse) {
  return [reuse](const PrefixCacheConfig& config) -> Result<std::unique_ptr<PrefixCache>> {
    const bool restricted = reuse.whole_prompts_only || reuse.match_share < 1;
    if (!restricted || config.disable_radix_cache) return make_prefix_cache(config);
    ESP_RETURN_IF_ERROR(check_prefix_cache(config));
    return std::make_unique<PartialReuseCache>(config, reuse);
  };
}

}  // namespace espalier::bench
