// One step of a decoder on the GPU, as its caller describes it. Plain values; borrows all memory.
#pragma once

#include <cstdint>

#include "kernels/attention/cuda.h"

namespace espalier {

// One step, in device memory.
struct CudaStep {
  const int32_t* ids = nullptr;          // [entries.num_tokens], or -1: slot_tokens of token_slots
  const int32_t* token_slots = nullptr;  // [entries.num_tokens]
  const int32_t* slot_tokens = nullptr;  // [slots]: what each slot sampled last
  kernels::cuda::EntryArrays entries;
  // The same entries with the page tables of layers that see a sliding window, where these have
  // pages of their own (see ForwardBatch); else without page_tables.
  kernels::cuda::EntryArrays window_entries;
  // The tokens whose final hidden state is wanted, [num_rows], in the order in which logits()
  // counts them. Null: all of them (num_rows == entries.num_tokens).
  const int32_t* rows = nullptr;
  int32_t num_rows = 0;
  int32_t max_prefix_len = 0;  // of one entry: tokens that attention finds cached
};

}  // namespace espalier
