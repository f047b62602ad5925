// Draft tokens as entries of their own. An entry with draft tokens becomes its known part and one
// entry for each draft sample, on the pages of the same slot: a draft token's row attends to the
// keys before it, which the same step writes first. So a step that verifies draft tokens is a
// decode step of more entries, with the kernels and the graphs of one, and its rows have the bits
// of decode steps wherever those do not depend on the batch.
#pragma once

#include <cstdint>
#include <vector>

#include "seams/forward_batch.h"
#include "seams/step_result.h"

namespace espalier {

// Not thread-safe. Owns the entries that it makes and borrows batches.
class DraftRows {
 public:
  // `batch` itself where no entry has draft samples; else its entries as above, with its token ids
  // and without page tables, valid until the next call. Draft tokens that are not sampled behind
  // belong to the entry of the sample before them (num_draft_tokens) or after them. An entry that
  // has several rows of one token shares its cached prefix among them (shared_prefixes).
  const ForwardBatch& expand(const ForwardBatch& batch);

  // The results of the entries that expand() made.
  StepResult& results() { return results_; }
  // Turns results() into those of `batch`, which was expanded last. What failed for a draft token
  // alone is not reported: the step that samples there again fails the same way.
  void fold(const ForwardBatch& batch, StepResult& result);

 private:
  void add_rows(const ForwardBatch& batch, const BatchEntry& entry);
  void add_prefixes(const ForwardBatch& batch);
  void add_own_prefix(const ForwardBatch& batch, size_t entry);
  void append_members(size_t entry);

  ForwardBatch rows_;
  std::vector<size_t> first_row_;  // of each entry of the batch, and one more
  std::vector<int32_t> deepest_;   // of each entry its last shared prefix; -1: none
  StepResult results_;
};

}  // namespace espalier
