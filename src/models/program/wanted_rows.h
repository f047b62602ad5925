// Which rows of a batch are needed after the last layer's keys and values are written.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "seams/forward_batch.h"

namespace espalier::program {

// Of each entry a tail of its query tokens: from the first token whose logits, or whose state for
// pooling, are wanted to the last. Used from one thread; plan() allocates nothing within what was
// reserved.
class WantedRows {
 public:
  // Rows in all, and each entry's tail in entry order; entries that want nothing have none.
  struct Tail {
    int32_t entry = 0;        // index in the batch
    int32_t first_token = 0;  // of the entry's query tokens
    int32_t source_row = 0;   // that token's row in the batch
    int32_t row = 0;          // and among the wanted rows
    int32_t count = 0;
  };

  void reserve(size_t max_entries);
  void plan(std::span<const BatchEntry> entries);

  int32_t num_rows() const { return num_rows_; }
  std::span<const Tail> tails() const { return tails_; }
  // The tails as entries of their own, for attention: query_begin counts wanted rows.
  std::span<const BatchEntry> entries() const { return {entries_.data(), tails_.size()}; }

 private:
  std::vector<Tail> tails_;
  std::vector<BatchEntry> entries_;  // [max_entries]
  int32_t num_rows_ = 0;
};

}  // namespace espalier::program
