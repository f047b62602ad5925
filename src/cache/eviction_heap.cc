#include "cache/eviction_heap.h"

#include <algorithm>

#include "base/check.h"
#include "cache/radix_node.h"

namespace espalier {

RadixNode* EvictionHeap::top() const {
  if (entries_.empty()) return first_;
  RadixNode* node = entries_.front().node;
  return first_ != nullptr && first_->rank < node->rank ? first_ : node;
}

void EvictionHeap::push(RadixNode* node, EvictionRank rank) {
  ESP_DCHECK(!node->is_evictable());
  node->rank = rank;
  if (last_ == nullptr || !(rank < last_->rank)) return add_to_list(node, last_, nullptr);
  if (!(first_->rank < rank)) return add_to_list(node, nullptr, first_);
  entries_.push_back({rank, node});
  sift_up(entries_.size() - 1, {rank, node});
}

void EvictionHeap::remove(RadixNode* node) {
  node->in_list ? remove_from_list(node) : remove_from_heap(node);
}

void EvictionHeap::add_to_list(RadixNode* node, RadixNode* prev, RadixNode* next) {
  node->in_list = true;
  node->prev_evictable = prev;
  node->next_evictable = next;
  (prev != nullptr ? prev->next_evictable : first_) = node;
  (next != nullptr ? next->prev_evictable : last_) = node;
  ++list_size_;
}

void EvictionHeap::remove_from_list(RadixNode* node) {
  RadixNode* const prev = node->prev_evictable;
  RadixNode* const next = node->next_evictable;
  (prev != nullptr ? prev->next_evictable : first_) = next;
  (next != nullptr ? next->prev_evictable : last_) = prev;
  node->prev_evictable = node->next_evictable = nullptr;
  node->in_list = false;
  --list_size_;
}

void EvictionHeap::remove_from_heap(RadixNode* node) {
  const auto index = static_cast<size_t>(node->heap_index);
  node->heap_index = -1;
  const Entry last = entries_.back();
  entries_.pop_back();
  if (last.node == node) return;
  if (index > 0 && last.rank < entries_[(index - 1) / kArity].rank) {
    sift_up(index, last);
  } else {
    sift_down(index, last);
  }
}

void EvictionHeap::put(size_t index, const Entry& entry) {
  entries_[index] = entry;
  entry.node->heap_index = static_cast<int32_t>(index);
}

void EvictionHeap::sift_up(size_t index, Entry entry) {
  while (index > 0) {
    const size_t parent = (index - 1) / kArity;
    if (!(entry.rank < entries_[parent].rank)) break;
    put(index, entries_[parent]);
    index = parent;
  }
  put(index, entry);
}

void EvictionHeap::sift_down(size_t index, Entry entry) {
  while (true) {
    const size_t begin = index * kArity + 1;
    if (begin >= entries_.size()) break;
    const size_t end = std::min(begin + kArity, entries_.size());
    size_t child = begin;
    for (size_t i = begin + 1; i < end; ++i)
      if (entries_[i].rank < entries_[child].rank) child = i;
    if (!(entries_[child].rank < entry.rank)) break;
    put(index, entries_[child]);
    index = child;
  }
  put(index, entry);
}

void EvictionHeap::check_invariants() const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    ESP_CHECK(entries_[i].node->heap_index == static_cast<int32_t>(i), "heap entry {}", i);
    ESP_CHECK(entries_[i].rank == entries_[i].node->rank && !entries_[i].node->in_list);
    if (i > 0)
      ESP_CHECK(!(entries_[i].rank < entries_[(i - 1) / kArity].rank), "heap order at {}", i);
  }
  size_t count = 0;
  const RadixNode* prev = nullptr;
  for (const RadixNode* node = first_; node != nullptr; prev = node, node = node->next_evictable) {
    ESP_CHECK(node->in_list && node->heap_index < 0 && node->prev_evictable == prev);
    ESP_CHECK(prev == nullptr || !(node->rank < prev->rank), "order of the list");
    ++count;
  }
  ESP_CHECK(count == list_size_ && prev == last_);
}

}  // namespace espalier
