// Which child of a node begins with a given page of tokens: one hash table for the whole tree, so a
// node costs one entry and a look-up touches one cache line and the child.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace espalier {

class RadixNode;

// Open addressing, linear probing, deletion by shifting back; at most half full. Not thread-safe.
class ChildTable {
 public:
  explicit ChildTable(int32_t page_size);

  // The child of `parent` whose run begins with page[0 .. page_size); null when there is none.
  RadixNode* find(const RadixNode* parent, const int32_t* page) const;

  // By the node's parent and the first page of its run, which must not change in between.
  void insert(RadixNode* node);
  void erase(const RadixNode* node);

  size_t size() const { return size_; }

 private:
  struct Entry {
    uint64_t hash = 0;
    RadixNode* node = nullptr;  // null: empty
  };

  uint64_t hash_of(uint64_t parent_id, const int32_t* page) const;
  size_t mask() const { return entries_.size() - 1; }
  void place(Entry entry);
  void grow();

  const int32_t page_size_;
  std::vector<Entry> entries_;  // a power of two
  size_t size_ = 0;
};

}  // namespace espalier
