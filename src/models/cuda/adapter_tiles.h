// Arranges the rows of a step that have a LoRA adapter in tiles of one adapter each, as the kernels
// take them. Pure but for its own memory, which stays from step to step; not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/lora/cuda.h"
#include "seams/forward_batch.h"

namespace espalier {

// Tiles that lie one behind the other.
struct TileRange {
  int32_t begin = 0;
  int32_t count = 0;
  int32_t num_rows = 0;  // of all of them
};

// What arrange() wrote: behind each range's begin - 1, a tile whose num_rows is the range's count,
// so that the device finds it there. Empty ranges have no such tile.
struct ArrangedTiles {
  TileRange tokens;
  TileRange wanted;  // by the order of wanted rows: sampled ones, then inputs'
  int32_t size = 0;  // tiles written

  bool empty() const { return size == 0; }
};

// A range as the kernels take it. tiles: what arrange() wrote, in device memory.
kernels::cuda::LoraRows rows_of(const TileRange& range, const kernels::cuda::LoraTile* tiles);

class AdapterTiles {
 public:
  // The most that arrange() writes.
  static int64_t capacity(int32_t max_entries, int32_t max_tokens);

  // parts: of each of the batch's entries, null where it has no adapter. Without wanted rows (a
  // decode step, whose rows are all wanted in their order) these are left out.
  const ArrangedTiles& arrange(const ForwardBatch& batch,
                               std::span<const kernels::cuda::LoraPart* const> parts,
                               bool with_wanted, kernels::cuda::LoraTile* out);

 private:
  struct Run {
    const kernels::cuda::LoraPart* parts = nullptr;
    int32_t first = 0, count = 0;  // rows
  };
  void find_token_runs(const ForwardBatch& batch,
                       std::span<const kernels::cuda::LoraPart* const> parts);
  void find_wanted_runs(const ForwardBatch& batch,
                        std::span<const kernels::cuda::LoraPart* const> parts);
  TileRange write(kernels::cuda::LoraTile* out);

  std::vector<Run> runs_;
  ArrangedTiles arranged_;
};

}  // namespace espalier
