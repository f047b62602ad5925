// What a step's cross attention reads: of each token that sees pictures an entry over their rows,
// whose pages are the pictures' tiles wherever they lie in memory.
//
// Used from one thread. A step allocates nothing within what was reserved, but for prompts that
// bring more pictures than steps before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "seams/forward_batch.h"
#include "seams/kv_view.h"

namespace espalier::program {

class CrossRows {
 public:
  void reserve(size_t max_tokens) { entries_.reserve(max_tokens); }
  // width: of the pictures' rows.
  void begin(const ForwardBatch& batch, int64_t width);

  bool any() const { return !entries_.empty(); }
  std::span<const BatchEntry> entries() const { return entries_; }
  std::span<const int64_t> page_offsets() const { return page_offsets_; }
  // Keys and values of layer `index` of cross attention, as the only layer of the view.
  const KvView& layer(int32_t index, int32_t num_kv_heads, int32_t head_dim);
  // Calls run(first, count) for each run of the batch's tokens that see no picture.
  template <typename Run>
  void for_blind(const ForwardBatch& batch, const Run& run) const {
    int32_t done = 0;
    for (const CrossSpan& span : batch.cross_spans) {
      if (span.token_begin > done) run(done, span.token_begin - done);
      done = span.token_begin + span.count;
    }
    if (batch.num_tokens() > done) run(done, batch.num_tokens() - done);
  }

 private:
  int32_t add_pages(const ForwardBatch& batch, const CrossSpan& span);

  std::vector<BatchEntry> entries_;
  std::vector<int64_t> page_offsets_;  // elements from the first picture's row 0
  const float* base_ = nullptr;
  int64_t width_ = 0;
  KvView kv_;
};

}  // namespace espalier::program
