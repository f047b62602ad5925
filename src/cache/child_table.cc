#include "cache/child_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "cache/radix_node.h"

namespace espalier {

namespace {
constexpr size_t kInitialEntries = 64;
}

ChildTable::ChildTable(int32_t page_size, size_t num_nodes_expected) : page_size_(page_size) {
  const size_t num_entries = std::bit_ceil(std::max(kInitialEntries, 2 * num_nodes_expected));
  memory_ = map_zeroed(num_entries * sizeof(Entry));
  mask_ = num_entries - 1;
}

uint32_t ChildTable::hash_of(uint32_t parent_id, const int32_t* page) const {
  uint64_t hash = parent_id * 0x9e3779b97f4a7c15ull;
  for (int32_t i = 0; i < page_size_; ++i) hash = mix64(hash ^ static_cast<uint32_t>(page[i]));
  return static_cast<uint32_t>(hash);
}

const ChildTable::Entry* ChildTable::find(uint32_t parent_id, const int32_t* tokens,
                                          size_t num_tokens) const {
  const uint32_t hash = hash_of(parent_id, tokens);
  const auto page_size = static_cast<size_t>(page_size_);
  for (size_t i = hash & mask_; entries()[i].node != nullptr; i = (i + 1) & mask_) {
    const Entry& entry = entries()[i];
    if (entry.hash != hash || entry.parent_id != parent_id) continue;
    __builtin_prefetch(entry.node);
    const auto length = static_cast<size_t>(entry.num_tokens);
    if (num_tokens >= length + page_size)
      __builtin_prefetch(&entries()[hash_of(entry.id, tokens + length) & mask_]);
    if (std::memcmp(entry.tokens, tokens, page_size * sizeof(int32_t)) == 0) return &entry;
  }
  return nullptr;
}

void ChildTable::insert(RadixNode* node) {
  if ((size_ + 1) * 2 > num_entries()) grow();
  place({.hash = hash_of(node->parent->id, node->token_data),
         .parent_id = node->parent->id,
         .id = node->id,
         .num_tokens = node->num_tokens,
         .node = node,
         .tokens = node->token_data});
  ++size_;
}

ChildTable::Entry& ChildTable::entry_of(const RadixNode* node) const {
  size_t i = hash_of(node->parent->id, node->token_data) & mask_;
  while (entries()[i].node != node) {
    ESP_CHECK(entries()[i].node != nullptr, "a node that is not in the table");
    i = (i + 1) & mask_;
  }
  return entries()[i];
}

void ChildTable::shorten(const RadixNode* node) { entry_of(node).num_tokens = node->num_tokens; }

void ChildTable::erase(const RadixNode* node) {
  Entry* const all = entries();
  auto hole = static_cast<size_t>(&entry_of(node) - all);
  // What follows moves into the hole unless that is before the entry's own place:
  //   place .. hole .. i  moves;  hole .. place .. i  stays (all modulo the size).
  for (size_t i = (hole + 1) & mask_; all[i].node != nullptr; i = (i + 1) & mask_) {
    const size_t place = all[i].hash & mask_;
    if (((i - place) & mask_) < ((i - hole) & mask_)) continue;
    all[hole] = all[i];
    hole = i;
  }
  all[hole] = {};
  --size_;
}

void ChildTable::place(const Entry& entry) {
  size_t i = entry.hash & mask_;
  while (entries()[i].node != nullptr) i = (i + 1) & mask_;
  entries()[i] = entry;
}

void ChildTable::grow() {
  const Mapping old = std::move(memory_);
  const auto* const before = reinterpret_cast<const Entry*>(old.get());
  const size_t num_before = num_entries();
  memory_ = map_zeroed(2 * num_before * sizeof(Entry));
  mask_ = 2 * num_before - 1;
  for (size_t i = 0; i < num_before; ++i)
    if (before[i].node != nullptr) place(before[i]);
}

}  // namespace espalier
