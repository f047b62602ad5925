// Which child of a node begins with a given page of tokens: one hash table for the whole tree.
//
// An entry contains what a walk needs of the child: the address and the length of its run, and its
// id. The run, the node and the next level's entry are therefore fetched together, and a match
// costs about one cache miss for each level and one for its last run, whatever the size of the
// tree.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cache/arena.h"

namespace espalier {

class RadixNode;

// Open addressing, linear probing, deletion by shifting back; at most half full. Not thread-safe.
class ChildTable {
 public:
  struct Entry {
    uint32_t hash = 0;
    uint32_t parent_id = 0;
    uint32_t id = 0;
    int32_t num_tokens = 0;
    RadixNode* node = nullptr;  // null: empty
    const int32_t* tokens = nullptr;
  };

  // The table has room for `num_nodes_expected` children without growing.
  ChildTable(int32_t page_size, size_t num_nodes_expected);

  // The child of the node `parent_id` whose run has the same first page as `tokens`; null when
  // there is none. Where `num_tokens` (at least a page) exceeds the child's run, the entry of the
  // next find() is prefetched.
  const Entry* find(uint32_t parent_id, const int32_t* tokens, size_t num_tokens) const;

  // The key is the node's parent and the first page of its run. REQUIRES that neither changes
  // between insert() and erase().
  void insert(RadixNode* node);
  void erase(const RadixNode* node);
  void shorten(const RadixNode* node);  // updates the run's length after its end was cut off

  size_t size() const { return size_; }

 private:
  uint32_t hash_of(uint32_t parent_id, const int32_t* page) const;
  Entry& entry_of(const RadixNode* node) const;
  Entry* entries() const { return reinterpret_cast<Entry*>(memory_.get()); }
  size_t num_entries() const { return mask_ + 1; }
  void place(const Entry& entry);
  void grow();

  const int32_t page_size_;
  Mapping memory_;   // entries, a power of two
  size_t mask_ = 0;  // their number less one
  size_t size_ = 0;
};

}  // namespace espalier
