// Which of the prefixes that entries share a step reads once for all of them, and what the
// attention kernels must know of it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention/cuda.h"
#include "seams/forward_batch.h"

namespace espalier {

// What reading together costs, in the unit that it saves: cached tokens that one layer reads.
struct CascadeCosts {
  int64_t tokens_per_part = 0;  // an entry's partial result of a segment, written and read back
  int64_t tokens_per_step = 0;  // one more kernel in each layer: start, end, what does not fill it
  int32_t rows_per_read = 1;    // of one slot, for which decode attention reads keys once
  // A few long segments are divided among so many blocks that an entry merges a long list of parts,
  // and an entry's second read of a prefix is mostly from L2. Prefixes that the rows of one slot
  // share become segments where there are so many.
  int32_t own_prefixes_least = 0;

  // For layers of this shape on a GPU. A token is 4 x head_dim x kv_heads bytes in bfloat16, a part
  // 8 x head_dim x heads; a kernel that starts and ends was measured at about 4 us, in which an
  // H200 reads 18 MB.
  static CascadeCosts of(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim);
};

// Decode attention takes entries of up to 16 rows (tokens x heads of a kv head), so it reads keys
// once for so many draft tokens of a slot. At least 1.
int32_t draft_rows_of(int32_t num_heads, int32_t num_kv_heads);

// Not thread-safe. Allocates nothing once it has seen as many entries.
class CascadePlan {
 public:
  // From the root down: a prefix becomes a run where it saves more than it costs, from the end of
  // the run above it; those that do not are read with the runs below them, or by each entry itself.
  // Nothing is chosen where all of it together does not save tokens_per_step.
  void choose(const ForwardBatch& batch, const CascadeCosts& costs);

  bool empty() const { return segments_.empty(); }
  int64_t saved_tokens() const { return saved_tokens_; }
  // page_begin is the index of an entry that has the run.
  const std::vector<kernels::cuda::SharedSegment>& segments() const { return segments_; }
  const std::vector<int32_t>& members() const { return members_; }  // entries
  const std::vector<int32_t>& places() const { return places_; }    // see SharedSegments, by entry
  const std::vector<int32_t>& own_begins() const { return own_begins_; }  // by entry

 private:
  struct Choice {
    int32_t begin = 0;  // where a run of it, or of what is below it, begins
    int32_t depth = 0;  // runs of its entries, with its own
    bool chosen = false;
  };
  void clear(size_t num_entries);
  void add_run(const ForwardBatch& batch, const SharedPrefixSegment& prefix, const Choice& choice);

  std::vector<Choice> choices_;  // by shared prefix
  std::vector<kernels::cuda::SharedSegment> segments_;
  std::vector<int32_t> members_, places_, own_begins_;
  int64_t saved_tokens_ = 0;
};

}  // namespace espalier
