// Attention where a picture's rows see all rows of their picture, also those behind them, as
// causal attention of more entries: each row of a picture is an entry at the picture's last
// position, and runs of text between pictures are entries of their own.
//
// Used from one thread. A step allocates nothing within what was reserved.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "seams/forward_batch.h"

namespace espalier::program {

class PictureRows {
 public:
  void reserve(size_t max_tokens);
  // Begins a step of attention with this sliding window (0: none).
  void begin(int32_t sliding_window);
  // entry: of rows that are the batch's tokens from first_token on; spans: the batch's. REQUIRES:
  // the spans' pictures are in the pages and the batch to their last rows.
  void add(const BatchEntry& entry, int32_t first_token, std::span<const EmbeddingSpan> spans);

  std::span<const BatchEntry> entries() const { return entries_; }
  // Of each entry the window that begins where that of its row does; 0 without windows.
  std::span<const int32_t> windows() const { return windows_; }

 private:
  void add_rows(const BatchEntry& entry, int32_t first, int32_t count, int32_t last_position);

  int32_t sliding_window_ = 0;
  std::vector<BatchEntry> entries_;
  std::vector<int32_t> windows_;
};

}  // namespace espalier::program
