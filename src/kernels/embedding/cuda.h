// Rows of the embedding by token ids that may be known on the GPU before the host knows them, and
// the patches of pictures.
// Thread-safe; pointers are borrowed device memory; requirements of streams as
// kernels/cuda/stream.h.
#pragma once

#include "kernels/cuda/stream.h"
#include "kernels/embedding/op.h"

namespace espalier::kernels::cuda {

struct GatherArgs {
  DType type = DType::kBFloat16;  // of table and out: kBFloat16 or kFloat32
  const void* table = nullptr;    // [num_rows, dim]
  int32_t num_rows = 0;
  int64_t table_stride = 0;  // elements from one row to the next, which may overlap; 0: dim
  int32_t first_id = 0;      // of the table's first row: a rank has a part of the vocabulary
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

// Rows that an encoder has made, in place of those of tokens.
struct PlaceRowsArgs {
  DType type = DType::kBFloat16;  // of both
  const void* rows = nullptr;     // [count, dim], in pinned memory of the host or on the device
  int64_t rows_stride = 0;        // of `rows`; 0: dim
  int32_t count = 0;              // 0 does nothing
  int32_t dim = 0;
  void* out = nullptr;  // rows out_stride apart
  int64_t out_stride = 0;
};
// One copy of a DMA unit, in the stream's order.
Status place_rows(const PlaceRowsArgs& args, const LaunchOptions& launch);

// Patches of pictures as the rows that an encoder begins with.
struct PlacePatchesArgs {
  DType type = DType::kBFloat16;   // of out: kBFloat16 or kFloat32
  const float* patches = nullptr;  // [pictures, patches_each, features]
  int32_t pictures = 0;
  int32_t patches_each = 0;
  int32_t features = 0;
  bool class_row = false;  // a row of zeros stands in front of each picture's patches
  void* out = nullptr;     // [pictures * (patches_each + class_row), columns], without gaps
  int32_t columns = 0;     // at least `features`; those behind them become zeros
};
// out: each patch rounded to `type`.
Status place_patches(const PlacePatchesArgs& args, const LaunchOptions& launch);

// Rows of pictures' tiles as they stand in a prompt, or positions of patches among learned ones.
struct MixRowsArgs {
  DType type = DType::kBFloat16;   // of all: kBFloat16 or kFloat32
  const void* x = nullptr;         // [num_rows, dim], without gaps
  const void* apart = nullptr;     // [dim]: the row of corner -1
  const MixedRow* rows = nullptr;  // [count]
  int32_t count = 0;               // 0 does nothing
  int32_t dim = 0;                 // a multiple of 8
  void* out = nullptr;             // [count, dim], without gaps
};
// In float32, rounded once; exactly the row where weights are 0.
Status mix_rows(const MixRowsArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
