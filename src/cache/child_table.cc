#include "cache/child_table.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "cache/radix_node.h"

namespace espalier {

namespace {
constexpr size_t kInitialEntries = 64;
}

ChildTable::ChildTable(int32_t page_size) : page_size_(page_size), entries_(kInitialEntries) {}

uint64_t ChildTable::hash_of(uint64_t parent_id, const int32_t* page) const {
  uint64_t hash = parent_id * 0x9e3779b97f4a7c15ull;
  for (int32_t i = 0; i < page_size_; ++i) hash = mix64(hash ^ static_cast<uint32_t>(page[i]));
  return hash;
}

RadixNode* ChildTable::find(const RadixNode* parent, const int32_t* page) const {
  if (parent->is_leaf()) return nullptr;
  const uint64_t hash = hash_of(parent->id, page);
  const size_t bytes = static_cast<size_t>(page_size_) * sizeof(int32_t);
  for (size_t i = hash & mask(); entries_[i].node != nullptr; i = (i + 1) & mask()) {
    RadixNode* node = entries_[i].node;
    if (entries_[i].hash == hash && node->parent == parent &&
        std::memcmp(node->tokens.data(), page, bytes) == 0)
      return node;
  }
  return nullptr;
}

void ChildTable::insert(RadixNode* node) {
  if ((size_ + 1) * 2 > entries_.size()) grow();
  place({hash_of(node->parent->id, node->tokens.data()), node});
  ++size_;
}

void ChildTable::erase(const RadixNode* node) {
  size_t hole = hash_of(node->parent->id, node->tokens.data()) & mask();
  while (entries_[hole].node != node) {
    ESP_CHECK(entries_[hole].node != nullptr, "a node that is not in the table");
    hole = (hole + 1) & mask();
  }
  // What follows moves into the hole unless that is before the entry's own place:
  //   place .. hole .. i  moves;  hole .. place .. i  stays (all modulo the size).
  for (size_t i = (hole + 1) & mask(); entries_[i].node != nullptr; i = (i + 1) & mask()) {
    const size_t place = entries_[i].hash & mask();
    if (((i - place) & mask()) < ((i - hole) & mask())) continue;
    entries_[hole] = entries_[i];
    hole = i;
  }
  entries_[hole] = {};
  --size_;
}

void ChildTable::place(Entry entry) {
  size_t i = entry.hash & mask();
  while (entries_[i].node != nullptr) i = (i + 1) & mask();
  entries_[i] = entry;
}

void ChildTable::grow() {
  std::vector<Entry> old(entries_.size() * 2);
  old.swap(entries_);
  for (const Entry& entry : old)
    if (entry.node != nullptr) place(entry);
}

}  // namespace espalier
