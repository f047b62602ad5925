// Prefix lengths that only the executor knows (kLengthFromSlot): verifies draft tokens after a step
// and gives the next step's entries their true lengths. For executors that run steps one after the
// other on a thread of the host.
#pragma once

#include <vector>

#include "seams/forward_batch.h"
#include "seams/step_result.h"

namespace espalier {

// The accepted draft tokens of an entry, by the rule in seams/forward_batch.h.
struct AcceptedDraft {
  int32_t num_tokens = 0;
  TokenId next = -1;  // sampled behind the last accepted one, or behind the known tokens
};
AcceptedDraft accept_draft(const ForwardBatch& batch, const BatchEntry& entry,
                           const EntryResult& result);

// The length of every slot's sequence and the number of tokens sampled for it. Used from the
// executor's thread only. Owns its copy of a batch and borrows the batches that it is given.
class SlotLengths {
 public:
  // A sequence enters the slot: no length is known before its first entry has run.
  void reset(SlotId slot) { at(slot) = {}; }

  // `batch` itself if no entry has kLengthFromSlot; else a copy, valid until the next call, whose
  // entries have their true prefix_len, num_pages, output_index and positions. REQUIRES that the
  // slot of such an entry has run and that its length is at most prefix_len_max.
  const ForwardBatch& resolve(const ForwardBatch& batch, int32_t page_size);

  // Records the slot's length after an entry of a resolved batch has been sampled, writes it to
  // `result` and returns the slot's last token (-1: none was sampled).
  TokenId commit(const ForwardBatch& batch, const BatchEntry& entry, EntryResult& result);

 private:
  struct Slot {
    int32_t length = -1;  // tokens that are computed and accepted; -1: unknown
    int32_t next_output_index = 0;
  };
  Slot& at(SlotId slot);
  void resolve_entry(BatchEntry& entry, int32_t page_size);

  std::vector<Slot> slots_;  // [slot], grown to the largest that came
  ForwardBatch resolved_;    // kept for its capacity
};

}  // namespace espalier
