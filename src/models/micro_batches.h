// A step's batch cut into micro-batches, which stages of a pipeline work on one behind the other:
// while a stage has one, the stage before it has the next (GPipe, Huang et al. 2019).
//
// A micro-batch has neighbouring tokens of the batch. An entry may be cut into several: to the
// model they are chunks of a prompt. What an entry samples stays in one micro-batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/decoder_spec.h"
#include "seams/forward_batch.h"

namespace espalier {

struct MicroBatch {
  ForwardBatch batch;  // of cut() without slot_inits and shared prefixes
  int32_t first_token = 0;
  // Of each entry, the batch's entry that it is a part of, and the first of that one's
  // input_logprob_targets that it has.
  struct Origin {
    int32_t entry = 0;
    int32_t first_target = 0;
  };
  std::vector<Origin> origins;
};

// What a token costs by its position: 1 + position * per_position, for attention reads what is
// before it. So the later chunks of a long prompt have fewer tokens.
struct TokenCosts {
  double per_position = 0;
};
TokenCosts token_costs(const DecoderSpec& spec);

// Of a batch with too few tokens for several parts, as one that decodes, which takes several all
// the same: parts of at least so many entries.
struct EntryParts {
  int32_t entries_min = 1;
  int32_t count_max = 1;
};

// Used from one thread. Vectors keep their capacity from step to step.
class MicroBatches {
 public:
  // rows_min: tokens of a micro-batch, as far as the batch has so many; below, a stage would read
  // its weights for too little.
  MicroBatches(int32_t rows_min, int32_t count_max, TokenCosts costs, EntryParts entries = {})
      : rows_min_(rows_min), count_max_(count_max), costs_(costs), entry_parts_(entries) {}

  // Parts of about the same cost. REQUIRES: lengths are known (no kLengthFromSlot).
  void cut(const ForwardBatch& batch, int32_t page_size);
  // The same, as steps of an executor: numbered from first_step on, the first one with slot_inits,
  // each with what its entries share. A batch with masks is one part, for its logits stay where
  // they are until the masks come.
  void cut_steps(const ForwardBatch& batch, int32_t page_size, uint64_t first_step);

  size_t size() const { return count_; }
  const MicroBatch& operator[](size_t index) const { return parts_[index]; }

 private:
  void cut_into(const ForwardBatch& batch, int32_t page_size, int32_t wanted);
  int32_t num_parts(const ForwardBatch& batch) const;
  void share_prefixes(const ForwardBatch& batch, MicroBatch& part);
  MicroBatch& begin_part(int32_t first_token);
  void add(const ForwardBatch& batch, int32_t entry, int32_t first, int32_t count);
  void end_part(const ForwardBatch& batch);
  double total_cost(const ForwardBatch& batch) const;

  const int32_t rows_min_, count_max_;
  const TokenCosts costs_;
  const EntryParts entry_parts_;
  int32_t page_size_ = 1;  // of the step
  std::vector<MicroBatch> parts_;
  size_t count_ = 0;                    // of parts_ that this step has
  std::vector<int32_t> kept_segments_;  // of a part: each of the batch's as the part's, or -1
};

}  // namespace espalier
