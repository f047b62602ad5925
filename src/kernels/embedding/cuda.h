// Rows of the embedding by token ids that may be known on the GPU before the host knows them.
// Thread-safe; pointers are borrowed device memory; requirements of streams as
// kernels/cuda/stream.h.
#pragma once

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

struct GatherArgs {
  DType type = DType::kBFloat16;  // of table and out: kBFloat16 or kFloat32
  const void* table = nullptr;    // [num_rows, dim]
  int32_t num_rows = 0;
  int32_t first_id = 0;  // of the table's first row: a rank has a part of the vocabulary
  int32_t dim = 0;
  const int32_t* ids = nullptr;  // [tokens]; -1: slot_tokens[token_slots[i]]
  // The slot of each token's entry, [tokens]; read where ids[i] is -1. Null: no id is -1.
  const int32_t* token_slots = nullptr;
  const int32_t* slot_tokens =
      nullptr;          // [slots]: what each slot sampled last (sample() writes it)
  void* out = nullptr;  // [tokens, dim], rows out_stride apart
  int64_t out_stride = 0;
  int32_t tokens = 0;
};

// out[i] = table[id - first_id], exactly; zeros where the table has no such row, as for an entry
// whose last token could not be sampled.
Status gather_rows(const GatherArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
