#include "cache/eviction_heap.h"

#include "base/check.h"
#include "cache/radix_node.h"

namespace espalier {

void EvictionHeap::put(size_t index, const Entry& entry) {
  entries_[index] = entry;
  entry.node->heap_index = static_cast<int32_t>(index);
}

void EvictionHeap::push(RadixNode* node, EvictionRank rank) {
  ESP_DCHECK(node->heap_index < 0);
  entries_.push_back({rank, node});
  sift_up(entries_.size() - 1, {rank, node});
}

void EvictionHeap::remove(RadixNode* node) {
  const auto index = static_cast<size_t>(node->heap_index);
  node->heap_index = -1;
  const Entry last = entries_.back();
  entries_.pop_back();
  if (last.node == node) return;
  if (index > 0 && last.rank < entries_[(index - 1) / 2].rank) {
    sift_up(index, last);
  } else {
    sift_down(index, last);
  }
}

void EvictionHeap::sift_up(size_t index, Entry entry) {
  while (index > 0) {
    const size_t parent = (index - 1) / 2;
    if (!(entry.rank < entries_[parent].rank)) break;
    put(index, entries_[parent]);
    index = parent;
  }
  put(index, entry);
}

void EvictionHeap::sift_down(size_t index, Entry entry) {
  while (true) {
    size_t child = index * 2 + 1;
    if (child >= entries_.size()) break;
    if (child + 1 < entries_.size() && entries_[child + 1].rank < entries_[child].rank) ++child;
    if (!(entries_[child].rank < entry.rank)) break;
    put(index, entries_[child]);
    index = child;
  }
  put(index, entry);
}

void EvictionHeap::check_invariants() const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    ESP_CHECK(entries_[i].node->heap_index == static_cast<int32_t>(i), "heap entry {}", i);
    if (i > 0) ESP_CHECK(!(entries_[i].rank < entries_[(i - 1) / 2].rank), "heap order at {}", i);
  }
}

}  // namespace espalier
