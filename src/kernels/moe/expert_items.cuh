// How the streaming grouped GEMMs of Hopper divide their work (experts_decode.cu, coded_experts.cu,
// coded_experts_decode.cu): items of kExpertItemRows rows of W by a tile of one expert's rows of x,
// which persistent blocks take by turns. Device code only.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/moe/expert_tiles.cuh"

namespace espalier::kernels::cuda {

inline constexpr int kExpertItemRows = 128;  // of W

// Rows [first, first + rows) of y, rows of W from chunk * kExpertItemRows on.
struct ExpertItem {
  int group, first, rows, chunk;
};

// Walks over every gridDim.x-th item, chunk by chunk of a tile, so that blocks beside each other
// read the same rows of x. All threads of a role walk alike.
template <int TILE_ROWS>
class ExpertItems {
 public:
  // experts: divide_experts<TILE_ROWS>() of `groups`. chunks: items of a tile.
  __device__ ExpertItems(const ExpertTiles& experts, int groups, int chunks)
      : experts_(experts),
        groups_(groups),
        chunks_(chunks),
        count_(experts.tiles[groups] * chunks),
        at_(static_cast<int>(blockIdx.x)) {}

  __device__ bool next(ExpertItem& item) {
    if (at_ >= count_) return false;
    const int tile = at_ / chunks_;
    item.chunk = at_ % chunks_;
    item.group = bucket_of(experts_.tiles, groups_, tile);
    item.first = experts_.begins[item.group] + (tile - experts_.tiles[item.group]) * TILE_ROWS;
    item.rows = min(TILE_ROWS, experts_.begins[item.group + 1] - item.first);
    at_ += static_cast<int>(gridDim.x);
    return true;
  }

 private:
  const ExpertTiles& experts_;
  const int groups_, chunks_, count_;
  int at_;
};

}  // namespace espalier::kernels::cuda
