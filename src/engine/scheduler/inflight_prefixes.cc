#include "engine/scheduler/inflight_prefixes.h"

#include <limits>

namespace espalier {

InflightPrefixes::InflightPrefixes(const SchedulerConfig& config, const PrefixCache& cache)
    : prefix_wait_min_tokens_(config.prefix_wait_min_tokens),
      cache_(cache),
      tree_({.page_size = cache.page_size(), .has_pages = false}) {}

void InflightPrefixes::add(Sequence& sequence) {
  if (cache_.radix_tree() == nullptr) return;
  const int32_t length = sequence.prefill_end - sequence.prefill_end % tree_.page_size();
  const std::span<const TokenId> run = sequence.first_tokens(length);
  RadixNode* node = tree_.lock(sequence.spec.cache_namespace, run);
  const auto known = static_cast<size_t>(RadixTree::num_tokens_to(node));
  sequence.queue.inflight_prefix = tree_.extend(node, run.subspan(known), {}).node;
}

void InflightPrefixes::remove(Sequence& sequence) {
  if (sequence.queue.inflight_prefix == nullptr) return;
  tree_.unlock(sequence.queue.inflight_prefix);
  sequence.queue.inflight_prefix = nullptr;
  tree_.evict(tree_.num_evictable_pages(), nullptr);
}

int32_t InflightPrefixes::prefix_to_wait_for(Sequence& sequence) const {
  if (empty()) return 0;
  const int32_t soon =
      tree_.match(sequence.spec.cache_namespace, sequence.first_tokens(sequence.match_limit()));
  if (soon == 0) return 0;
  const int32_t cached = current_match(sequence, cache_);
  const int32_t saved = soon - cached;
  if (saved <= 0) return 0;
  if (saved >= prefix_wait_min_tokens_) return cached + prefix_wait_min_tokens_;
  return 2 * saved >= sequence.num_tokens() - cached ? std::numeric_limits<int32_t>::max() : 0;
}

}  // namespace espalier
