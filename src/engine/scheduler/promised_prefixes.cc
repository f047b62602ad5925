#include "engine/scheduler/promised_prefixes.h"

namespace espalier {

void PromisedPrefixes::add(Sequence& sequence) {
  const int32_t length = sequence.prefill_end - sequence.prefill_end % tree_.page_size();
  const std::span<const TokenId> run = sequence.first_tokens(length);
  RadixNode* node = tree_.lock(sequence.spec.cache_namespace, run);
  const auto known = static_cast<size_t>(RadixTree::num_tokens_to(node));
  sequence.promise = tree_.extend(node, run.subspan(known), {}).node;
}

void PromisedPrefixes::remove(Sequence& sequence) {
  if (sequence.promise == nullptr) return;
  tree_.unlock(sequence.promise);
  sequence.promise = nullptr;
  tree_.evict(tree_.num_evictable_pages(), nullptr);
}

int32_t PromisedPrefixes::match(const Sequence& sequence, int32_t limit) const {
  return tree_.match(sequence.spec.cache_namespace, sequence.first_tokens(limit));
}

}  // namespace espalier
