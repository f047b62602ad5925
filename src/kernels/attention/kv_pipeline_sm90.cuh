// Key and value pieces in shared memory, and the warp group that fills them, of the two Hopper
// kernels of this folder.
//
// Who brings fills pieces (keys or values of kRingKeys positions), each of its warps 32 positions:
// where they lie one after the other the copy engine does it, asked by one thread (the new tokens'
// keys and values before they went to their pages, or pages that happen to be neighbours); else
// each thread starts ordinary asynchronous copies of rows that it looked up page by page. Either
// way copies announce themselves when they land, so the group that brings never waits for memory.
// What ordinary copies wrote must be made visible to the matrix instruction by who multiplies, and
// the fence for it waits for all that a thread has under way, so the ring notes which pieces need
// it. Keys come a block before their values: keys 0, keys 1, values 0, keys 2 ...
#pragma once

#include <cuda.h>

#include "kernels/attention/attention_device.cuh"
#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace espalier::kernels::cuda {

constexpr int kRingKeys = 128;  // positions of a piece
constexpr int kKeyStages = 3, kValueStages = 3;
constexpr int kWarpGroup = 128;               // threads
constexpr int kRingThreads = 3 * kWarpGroup;  // of a block: one group brings, two multiply
constexpr int kBringBarrier = 1, kTurnBarrier = 2, kMultiplyBarrier = 4;

constexpr int kBringWarps = kWarpGroup / 32;
constexpr int kBringArrivals = kBringWarps * 33;  // of a piece: 32 threads' copies and their warp

template <int DIM>
struct Ring {
  bf16 k[kKeyStages][kRingKeys * DIM];
  bf16 v[kValueStages][kRingKeys * DIM];
  Barrier k_full[kKeyStages], k_empty[kKeyStages], v_full[kValueStages], v_empty[kValueStages];
  // By stage and warp that brings: whether a piece has rows that ordinary copies wrote.
  alignas(4) uint8_t k_copied[kKeyStages][kBringWarps], v_copied[kValueStages][kBringWarps];

  // By one thread, before the block's first barrier.
  __device__ void init() {
    for (Barrier& full : k_full) barrier_init(full, kBringArrivals);
    for (Barrier& full : v_full) barrier_init(full, kBringArrivals);
    for (Barrier& empty : k_empty) barrier_init(empty, 8);  // warps that multiply
    for (Barrier& empty : v_empty) barrier_init(empty, 8);
    barrier_init_done();
  }
};

// Rows of keys and values for the copy engine, [row][kv head][dim], in boxes of 32 rows and 64
// elements of a head: of the new tokens, and of all pages. Only what args says is there is valid.
struct RowMaps {
  CUtensorMap new_keys, new_values, page_k, page_v;
};
// Whether row r of the pages lies r * token_stride from their begin.
__host__ __device__ inline bool pages_are_rows(const KvPlanes& kv) {
  return kv.page_stride == kv.page_size * kv.token_stride;
}

// Where a block of positions lies: [begin, min(begin + kRingKeys, end)) of a page table.
struct BlockPlace {
  const int32_t* pages;
  int begin, end, kv_head;
  // Positions from new_begin on are also rows from new_row on of the new tokens.
  int new_begin, new_row;
};
constexpr int kNothingNew = 0x7fffffff;  // of new_begin

// The maps that a call's arguments have arrays for.
inline Result<RowMaps> row_maps(const AttentionArgs& args) {
  RowMaps maps{};
  const KvPlanes& kv = args.kv;
  const auto dim = static_cast<uint64_t>(kv.head_dim);
  const auto heads = static_cast<uint64_t>(kv.num_kv_heads);
  const auto encode = [&](CUtensorMap& map, const void* data, uint64_t rows, int64_t row_stride,
                          int64_t head_stride) {
    return encode_tensor_map<3>(
        "attention", map, data, {dim, heads, rows},
        {static_cast<uint64_t>(head_stride) * 2, static_cast<uint64_t>(row_stride) * 2},
        {64, 1, 32});
  };
  if (args.new_keys != nullptr) {
    const auto rows = static_cast<uint64_t>(args.entries.num_tokens);
    ESP_RETURN_IF_ERROR(
        encode(maps.new_keys, args.new_keys, rows, args.new_kv_stride, kv.head_dim));
    ESP_RETURN_IF_ERROR(
        encode(maps.new_values, args.new_values, rows, args.new_kv_stride, kv.head_dim));
  }
  if (pages_are_rows(kv)) {  // page tables name no row that is not there
    constexpr uint64_t kRows = uint64_t{1} << 31;
    ESP_RETURN_IF_ERROR(encode(maps.page_k, kv.k, kRows, kv.token_stride, kv.head_stride));
    ESP_RETURN_IF_ERROR(encode(maps.page_v, kv.v, kRows, kv.token_stride, kv.head_stride));
  }
  return maps;
}

__device__ __forceinline__ void copy_box(void* to, const CUtensorMap& map, int column, int kv_head,
                                         int row, Barrier& full) {
  ESP_HOPPER_ASM(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(kv_head), "r"(row), "r"(barrier_address(full))
      : "memory");
}

// A warp of the group that brings: it looks up and brings 32 positions of each block, a lane one of
// them, and needs nobody else: offsets of ordinary copies go from lane to lane in registers. (From
// shared memory each copy waited for its offset's load, behind the copies before it: 2.4 TB/s from
// memory where this reaches 3.3.)
template <int DIM>
struct Bringer {
  static constexpr int kEights = DIM / 8, kRowsAtOnce = 32 / kEights;
  // Copy i goes to row first_row + i * kRowsAtOnce + row0; the swizzle repeats every eight rows.
  static constexpr int kPeriod = 8 / kRowsAtOnce;

  // A block that has been looked up; its page is on the way.
  struct Found {
    int page = 0, position = 0;  // of this thread
    int known;                   // rows of this warp that there are, if less than 32
    int kv_head;
    int new_row;  // of this warp's first position among the new tokens; kCopies: in pages
  };
  // How a block comes: from row `row` of the new tokens, from row -2 - row of the pages, or by
  // copies from each lane's offset, in units of 16 bytes (32 bits reach 64 GiB).
  struct Source {
    int row = kCopies, kv_head = 0, known = 0;
    uint32_t offset = 0;
  };
  static constexpr int kCopies = -1;  // also of Found::new_row

  const KvPlanes& kv;
  const RowMaps& maps;
  Ring<DIM>& ring;
  uint32_t places[kPeriod];  // bytes from a piece's start
  int keys_brought = 0, values_brought = 0;

  __device__ Bringer(const KvPlanes& planes, const RowMaps& row_maps, Ring<DIM>& to)
      : kv(planes), maps(row_maps), ring(to) {
#pragma unroll
    for (int i = 0; i < kPeriod; ++i)
      places[i] = 2u * static_cast<uint32_t>(swizzled(
                           first_row() + i * kRowsAtOnce + lane() / kEights, column(), kRingKeys));
  }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) % kWarpGroup / 32 * 32; }
  __device__ static int column() { return lane() % kEights * 8; }

  // Whoever multiplies shares its schedulers with this group, so where nothing must be looked up
  // nothing is.
  __device__ Found look(const BlockPlace& place) const {
    const int first = place.begin + first_row();
    Found found{.known = place.end - first, .kv_head = place.kv_head, .new_row = kCopies};
    if (first >= place.new_begin && found.known >= 32) {
      found.new_row = place.new_row + first - place.new_begin;
      return found;
    }
    found.position = min(first + lane(), place.end - 1);
    found.page = kv_page(kv, place.pages, found.position);
    return found;
  }

  __device__ Source source(const Found& found) const {
    Source source{.row = found.new_row, .kv_head = found.kv_head, .known = found.known};
    if (found.new_row >= 0) return source;
    source.offset =
        static_cast<uint32_t>(kv_offset(kv, found.page, found.position, found.kv_head) / 8);
    if (found.known >= 32 && pages_are_rows(kv)) {
      const int row = found.page * kv.page_size + found.position % kv.page_size;
      const int first = __shfl_sync(~0u, row, 0);
      if (__all_sync(~0u, row == first + lane())) source.row = -2 - first;
    }
    return source;
  }

  __device__ Source keys(const Found& found) {
    const Source from = source(found);
    const int stage = keys_brought % kKeyStages;
    barrier_wait(ring.k_empty[stage], (keys_brought / kKeyStages & 1) ^ 1);
    bring(ring.k[stage], ring.k_full[stage], ring.k_copied[stage], kv.k, maps.new_keys, maps.page_k,
          from);
    ++keys_brought;
    return from;
  }
  __device__ void values(const Source& from) {
    const int stage = values_brought % kValueStages;
    barrier_wait(ring.v_empty[stage], (values_brought / kValueStages & 1) ^ 1);
    bring(ring.v[stage], ring.v_full[stage], ring.v_copied[stage], kv.v, maps.new_values,
          maps.page_v, from);
    ++values_brought;
  }

  __device__ void bring(bf16* piece, Barrier& full, uint8_t (&copied)[kBringWarps],
                        const void* plane, const CUtensorMap& of_new, const CUtensorMap& of_pages,
                        const Source& source) const {
    if (lane() == 0) copied[first_row() / 32] = source.row == kCopies ? 1 : 0;
    if (source.row == kCopies) {
      copy(piece, plane, source);
      barrier_arrive_after_copies(full);
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
      copy_box(piece + at * kRingKeys + first_row() * 64, map, at, source.kv_head, row, full);
  }

  __device__ void copy(bf16* piece, const void* plane, const Source& source) const {
    const uint32_t to = shared_address(piece);
    const bf16* from = static_cast<const bf16*>(plane) + column();
    const int row0 = lane() / kEights, left = source.known - row0;
#pragma unroll
    for (int i = 0; i < 32 / kRowsAtOnce; i += 8) {
      uint32_t offsets[8];
#pragma unroll
      for (int j = 0; j < 8; ++j)
        offsets[j] = __shfl_sync(~0u, source.offset, (i + j) * kRowsAtOnce + row0);
#pragma unroll
      for (int j = 0; j < 8; ++j)
        copy_async(to + places[j % kPeriod] +
                       static_cast<uint32_t>((i + j) / kPeriod * kPeriod * kRowsAtOnce * 128),
                   from + uint64_t{offsets[j]} * 8, (i + j) * kRowsAtOnce < left);
    }
  }
};

}  // namespace espalier::kernels::cuda
