// The key and value pipeline of the two Hopper attention kernels: a ring buffer of tiles in shared
// memory and the producer warp group that fills it.
//
// The producer fills stages (keys or values of kStageKeys positions), each of its warps 32
// positions. Where those rows are adjacent (the new tokens' keys and values before they went to
// their pages, or pages that happen to be neighbours) one thread issues a TMA bulk copy; else each
// thread issues cp.async copies of rows that it looked up page by page. Both signal the stage's
// barrier when they land, so the producer never waits for memory. cp.async writes must be made
// visible to wgmma by the consumers, and the fence for it waits for all that a thread has in
// flight, so the pipeline records which stages need it. Keys are issued one block before their
// values: keys 0, keys 1, values 0, keys 2 ...
//
// Pages of e4m3 are read into registers, widened to bfloat16 and stored: the consumers see the same
// tiles, and the producer waits for its loads.
#pragma once

#include <cuda.h>

#include "kernels/attention/attention_device.cuh"
#include "kernels/attention/kv_e4m3.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/tensor_copy.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace espalier::kernels::cuda {

constexpr int kStageKeys = 128;  // positions of a stage
constexpr int kStages = 3;       // of keys, and of values
constexpr int kWarpGroup = 128;  // threads
constexpr int kPipelineThreads =
    3 * kWarpGroup;  // of a block: one producer group, two consumer groups
constexpr int kProducerBarrier = 1, kTurnBarrier = 2, kConsumerBarrier = 4;

constexpr int kProducerWarps = kWarpGroup / 32;
constexpr int kProducerArrivals =
    kProducerWarps * 33;  // of a stage: 32 threads' copies and their warp

template <int DIM, int VALUE_DIM = DIM, int STAGES = kStages>
struct KvPipeline {
  bf16 k[STAGES][kStageKeys * DIM];
  bf16 v[STAGES][kStageKeys * VALUE_DIM];
  Barrier k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
  // By stage and producer warp: whether the stage has rows that cp.async wrote.
  alignas(4) uint8_t k_copied[STAGES][kProducerWarps], v_copied[STAGES][kProducerWarps];

  // One thread calls it, before the block's first barrier. arrivals: of the producer, at a stage.
  __device__ void init(int arrivals = kProducerArrivals) {
    for (Barrier& full : k_full) barrier_init(full, arrivals);
    for (Barrier& full : v_full) barrier_init(full, arrivals);
    for (Barrier& empty : k_empty) barrier_init(empty, 8);  // consumer warps
    for (Barrier& empty : v_empty) barrier_init(empty, 8);
    barrier_init_done();
  }
};

// Tensor maps of rows of keys and values, [row][kv head][dim], in boxes of 32 rows and 64 elements
// of a head: of the new tokens, and of all pages. Only the maps that row_maps() had arrays for are
// valid.
struct RowMaps {
  CUtensorMap new_keys, new_values, page_k, page_v;
};
// Whether row r of the pages lies r * token_stride from their begin, in the type of the tiles.
__host__ __device__ inline bool pages_are_rows(const KvPlanes& kv) {
  return kv.type == KvType::kBFloat16 && kv.page_stride == kv.page_size * kv.token_stride;
}

// A block of positions: [begin, min(begin + kStageKeys, end)) of a page table.
struct KeyBlock {
  const int32_t* pages;
  int begin, end, kv_head;
  // Positions from new_begin on are also rows from new_row on of the new tokens.
  int new_begin, new_row;
};
constexpr int kNothingNew = 0x7fffffff;  // of new_begin

// Keys and values of bfloat16 beside the pages: [count][num_kv_heads][head_dim], rows `stride`
// elements apart; none where keys is null.
struct RowsBeside {
  const void* keys = nullptr;
  const void* values = nullptr;
  int64_t stride = 0;
  int32_t count = 0;
};

// Makes the maps of the arrays that exist.
inline Result<RowMaps> row_maps(const KvPlanes& kv, const RowsBeside& beside) {
  RowMaps maps{};
  const auto dim = static_cast<uint64_t>(kv.head_dim);
  const auto heads = static_cast<uint64_t>(kv.num_kv_heads);
  const auto encode = [&](CUtensorMap& map, const void* data, uint64_t rows, int64_t row_stride,
                          int64_t head_stride) {
    return encode_tensor_map<3>(
        "attention", map, data, {dim, heads, rows},
        {static_cast<uint64_t>(head_stride) * 2, static_cast<uint64_t>(row_stride) * 2},
        {64, 1, 32});
  };
  if (beside.keys != nullptr) {
    const auto rows = static_cast<uint64_t>(beside.count);
    ESP_RETURN_IF_ERROR(encode(maps.new_keys, beside.keys, rows, beside.stride, kv.head_dim));
    ESP_RETURN_IF_ERROR(encode(maps.new_values, beside.values, rows, beside.stride, kv.head_dim));
  }
  if (pages_are_rows(kv)) {  // page tables name only rows that exist
    constexpr uint64_t kRows = uint64_t{1} << 31;
    ESP_RETURN_IF_ERROR(encode(maps.page_k, kv.k, kRows, kv.token_stride, kv.head_stride));
    ESP_RETURN_IF_ERROR(encode(maps.page_v, kv.v, kRows, kv.token_stride, kv.head_stride));
  }
  return maps;
}

// A producer warp: it looks up and copies 32 positions of each block, one a lane, independently of
// the other warps. Offsets of cp.async copies go from lane to lane in registers
// (docs/notes/attention_prefill_sm90.md).
// KV: bf16, or uint8_t for pages of codes of e4m3; rows beside the pages are bf16.
template <int DIM, typename KV>
struct KvProducer {
  static constexpr int kVector = 16 / sizeof(KV);  // elements of the unit of offsets
  static constexpr int kVectors = DIM / 8, kRowsAtOnce = 32 / kVectors;
  // Copy i goes to row first_row + i * kRowsAtOnce + row0; the swizzle repeats every eight rows.
  static constexpr int kPeriod = 8 / kRowsAtOnce;

  // A block whose page numbers are being loaded.
  struct Lookup {
    int page = 0, position = 0;  // of this thread
    int known;                   // rows of this warp that exist, if fewer than 32
    int kv_head;
    int new_row;  // of this warp's first position among the new tokens; kCopies: in pages
  };
  // The source of a block: row `row` of the new tokens, row -2 - row of the pages, or cp.async
  // copies from each lane's offset, in units of 16 bytes (32 bits reach 64 GiB).
  struct Source {
    int row = kCopies, kv_head = 0, known = 0;
    uint32_t offset = 0;
  };
  static constexpr int kCopies = -1;  // also of Lookup::new_row

  const KvPlanes& kv;
  const RowMaps& maps;
  KvPipeline<DIM>& pipeline;
  uint32_t tile_offsets[kPeriod];  // bytes from a stage's start
  int keys_issued = 0, values_issued = 0;

  __device__ KvProducer(const KvPlanes& planes, const RowMaps& row_maps, KvPipeline<DIM>& to)
      : kv(planes), maps(row_maps), pipeline(to) {
#pragma unroll
    for (int i = 0; i < kPeriod; ++i)
      tile_offsets[i] =
          2u * static_cast<uint32_t>(swizzled(first_row() + i * kRowsAtOnce + lane() / kVectors,
                                              column(), kStageKeys));
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) % kWarpGroup / 32 * 32; }
  __device__ static int column() { return lane() % kVectors * 8; }

  // The producer shares its warp schedulers with the consumers, so it looks up only what it must.
  __device__ Lookup look_up(const KeyBlock& block) const {
    const int first = block.begin + first_row();
    Lookup lookup{.known = block.end - first, .kv_head = block.kv_head, .new_row = kCopies};
    if (first >= block.new_begin && lookup.known >= 32) {
      lookup.new_row = block.new_row + first - block.new_begin;
      return lookup;
    }
    lookup.position = min(first + lane(), block.end - 1);
    lookup.page = kv_page(kv, block.pages, lookup.position);
    return lookup;
  }

  __device__ Source source(const Lookup& lookup) const {
    Source source{.row = lookup.new_row, .kv_head = lookup.kv_head, .known = lookup.known};
    if (lookup.new_row >= 0) return source;
    source.offset = static_cast<uint32_t>(
        kv_offset(kv, lookup.page, lookup.position, lookup.kv_head) / kVector);
    if (!kCodes<KV> && lookup.known >= 32 && pages_are_rows(kv)) {
      const int row = lookup.page * kv.page_size + lookup.position % kv.page_size;
      const int first = __shfl_sync(~0u, row, 0);
      if (__all_sync(~0u, row == first + lane())) source.row = -2 - first;
    }
    return source;
  }

  __device__ Source keys(const Lookup& lookup) {
    const Source from = source(lookup);
    const int stage = keys_issued % kStages;
    barrier_wait(pipeline.k_empty[stage], (keys_issued / kStages & 1) ^ 1);
    issue(pipeline.k[stage], pipeline.k_full[stage], pipeline.k_copied[stage], kv.k, maps.new_keys,
          maps.page_k, from);
    ++keys_issued;
    return from;
  }
  __device__ void values(const Source& from) {
    const int stage = values_issued % kStages;
    barrier_wait(pipeline.v_empty[stage], (values_issued / kStages & 1) ^ 1);
    issue(pipeline.v[stage], pipeline.v_full[stage], pipeline.v_copied[stage], kv.v,
          maps.new_values, maps.page_v, from);
    ++values_issued;
  }

  __device__ void issue(bf16* tile, Barrier& full, uint8_t (&copied)[kProducerWarps],
                        const void* plane, const CUtensorMap& of_new, const CUtensorMap& of_pages,
                        const Source& source) const {
    if (lane() == 0) copied[first_row() / 32] = source.row == kCopies ? 1 : 0;
    if (source.row == kCopies) {
      if constexpr (kCodes<KV>) {
        widen(tile, plane, source);
        barrier_arrive(full);
      } else {
        copy(tile, plane, source);
        barrier_arrive_after_copies(full);
      }
      if (lane() == 0) barrier_arrive(full);
      return;
    }
    if (lane() != 0) return;
    barrier_arrive(full, 32);
    barrier_expect(full, 32 * DIM * 2);
    const CUtensorMap& map = source.row >= 0 ? of_new : of_pages;
    const int row = source.row >= 0 ? source.row : -2 - source.row;
#pragma unroll
    for (int at = 0; at < DIM; at += 64)
      copy_box(tile + at * kStageKeys + first_row() * 64, map, at, source.kv_head, row, full);
  }

  // Rows of e4m3, 16 elements a lane: all are requested before the first is stored.
  __device__ void widen(bf16* tile, const void* plane, const Source& source) const {
    constexpr int kLanes = DIM / 16, kRows = 32 / kLanes, kLoads = 32 / kRows;
    const int row0 = lane() / kLanes, column = lane() % kLanes * 16;
    const auto* from = static_cast<const uint4*>(plane) + lane() % kLanes;
    uint4 codes[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = i * kRows + row0;
      const uint32_t offset = __shfl_sync(~0u, source.offset, row);
      codes[i] = row < source.known ? __ldcg(from + offset) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = first_row() + i * kRows + row0;
      uint4 lower, upper;
      bfloat16s_of_e4m3(codes[i], lower, upper);
      *reinterpret_cast<uint4*>(tile + swizzled(row, column, kStageKeys)) = lower;
      *reinterpret_cast<uint4*>(tile + swizzled(row, column + 8, kStageKeys)) = upper;
    }
  }

  __device__ void copy(bf16* tile, const void* plane, const Source& source) const {
    const uint32_t to = shared_address(tile);
    const bf16* from = static_cast<const bf16*>(plane) + column();
    const int row0 = lane() / kVectors, left = source.known - row0;
#pragma unroll
    for (int i = 0; i < 32 / kRowsAtOnce; i += 8) {
      uint32_t offsets[8];
#pragma unroll
      for (int j = 0; j < 8; ++j)
        offsets[j] = __shfl_sync(~0u, source.offset, (i + j) * kRowsAtOnce + row0);
#pragma unroll
      for (int j = 0; j < 8; ++j)
        copy_async(to + tile_offsets[j % kPeriod] +
                       static_cast<uint32_t>((i + j) / kPeriod * kPeriod * kRowsAtOnce * 128),
                   from + uint64_t{offsets[j]} * 8, (i + j) * kRowsAtOnce < left);
    }
  }
};

}  // namespace espalier::kernels::cuda
