// Which cached prefixes the decode entries of a step share, from the radix tree's nodes that their
// sequences hold.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/prefix_cache.h"
#include "seams/forward_batch.h"

namespace espalier {

// Not thread-safe. Costs a few reads for each entry and level; allocates nothing once it has seen
// as many entries and nodes.
class SharedPrefixes {
 public:
  // begin(), add() for each entry of one known token, then fill() writes shared_prefixes and
  // shared_entries of the batch.
  void begin();
  void add(const PrefixCache& cache, const SequencePages& pages, int32_t entry);
  void fill(ForwardBatch& batch);

 private:
  struct Mark {  // of a node, by its number
    uint64_t round = 0;
    int32_t num_entries = 0;
    int32_t prefix = -1;  // its index in the batch, once it has one
  };
  struct Member {
    int32_t entry = 0;
    size_t first_node = 0, end_node = 0;  // in nodes_
    int32_t deepest = -1;                 // of its shared prefixes
  };
  void name_prefixes(Member& member, ForwardBatch& batch);

  uint64_t round_ = 0;
  std::vector<SharedNode> nodes_;
  std::vector<Member> members_;
  std::vector<Mark> marks_;
  std::vector<int32_t> filled_;
};

}  // namespace espalier
