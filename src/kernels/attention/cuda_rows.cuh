// What the two Hopper kernels of this folder are made of: a ring of key and value pieces in shared
// memory, the warp group that fills it, and a warp group's 64 rows of online softmax.
//
// Whoever brings starts copies piece by piece (keys or values of kRingKeys positions, looked up
// page by page, so by ordinary asynchronous copies). The copies announce themselves when they land,
// and who multiplies makes them visible to the matrix instruction, so the group that brings never
// waits for memory. Keys come a block before their values: keys 0, keys 1, values 0, keys 2 ...
//
// Who multiplies computes the next block's scores while this block's values are weighted:
//
//    scores(0); softmax(0)
//    for each block:  start scores(j + 1); start out += weights(j) values(j)
//                     wait for the scores; softmax(j + 1); wait for the values; scale out
#pragma once

#include "kernels/attention/cuda_tile.cuh"
#include "kernels/attention/cuda_wgmma.cuh"
#include "kernels/cuda/barrier.cuh"

namespace espalier::kernels::cuda {

constexpr int kRingKeys = 128;  // positions of a piece
constexpr int kKeyStages = 3, kValueStages = 3;
constexpr int kWarpGroup = 128;               // threads
constexpr int kRingThreads = 3 * kWarpGroup;  // of a block: one group brings, two multiply
constexpr int kBringBarrier = 1, kTurnBarrier = 2, kMultiplyBarrier = 4;

template <int DIM>
struct Ring {
  bf16 k[kKeyStages][kRingKeys * DIM];
  bf16 v[kValueStages][kRingKeys * DIM];
  Barrier k_full[kKeyStages], k_empty[kKeyStages], v_full[kValueStages], v_empty[kValueStages];

  // By one thread, before the block's first barrier.
  __device__ void init() {
    for (Barrier& full : k_full) barrier_init(full, kWarpGroup);
    for (Barrier& full : v_full) barrier_init(full, kWarpGroup);
    for (Barrier& empty : k_empty) barrier_init(empty, 8);  // warps that multiply
    for (Barrier& empty : v_empty) barrier_init(empty, 8);
    barrier_init_done();
  }
};

// Where a block of positions lies: [begin, min(begin + kRingKeys, end)) of a page table.
struct BlockPlace {
  const int32_t* pages;
  int begin, end, kv_head;
};

// The warp group that brings `blocks` blocks; next() names them one after the other. Each warp
// looks up and copies 32 positions of a block, a lane one of them, and needs nobody else: offsets
// go from lane to lane in registers. (From shared memory each copy waited for its offset's load,
// behind the copies before it: 2.4 TB/s from memory where this reaches 3.3.)
template <int DIM, typename Next>
__device__ __forceinline__ void bring(const KvPlanes& kv, Ring<DIM>& ring, int blocks,
                                      Next&& next) {
  constexpr int kEights = DIM / 8, kRowsAtOnce = 32 / kEights, kCopies = 32 / kRowsAtOnce;
  const int thread = static_cast<int>(threadIdx.x) % kWarpGroup;
  const int lane = thread % 32, first_row = thread / 32 * 32;
  const int row0 = lane / kEights, at = lane % kEights * 8;
  const auto position_of = [&](const BlockPlace& place) {  // that this thread looks up
    return min(place.begin + thread, place.end - 1);
  };
  // In units of 16 bytes: 32 bits reach 64 GiB.
  const auto offset_of = [&](const BlockPlace& place, int page) {
    return static_cast<uint32_t>(kv_offset(kv, page, position_of(place), place.kv_head) / 8);
  };
  // Copy i goes to row first_row + i * kRowsAtOnce + row0; the swizzle repeats every eight rows.
  constexpr int kPeriod = 8 / kRowsAtOnce;
  uint32_t places[kPeriod];  // bytes from a piece's start
#pragma unroll
  for (int i = 0; i < kPeriod; ++i)
    places[i] =
        2u * static_cast<uint32_t>(swizzled(first_row + i * kRowsAtOnce + row0, at, kRingKeys));
  const auto copy = [&](bf16* piece, const void* plane, uint32_t offset, int known) {
    const uint32_t to = shared_address(piece);
    const bf16* from = static_cast<const bf16*>(plane) + at;
    const int left = known - first_row - row0;
#pragma unroll
    for (int i = 0; i < kCopies; i += 8) {
      uint32_t offsets[8];
#pragma unroll
      for (int j = 0; j < 8; ++j)
        offsets[j] = __shfl_sync(~0u, offset, (i + j) * kRowsAtOnce + row0);
#pragma unroll
      for (int j = 0; j < 8; ++j)
        copy_async(to + places[j % kPeriod] +
                       static_cast<uint32_t>((i + j) / kPeriod * kPeriod * kRowsAtOnce * 128),
                   from + uint64_t{offsets[j]} * 8, (i + j) * kRowsAtOnce < left);
    }
  };
  // Pages are read two blocks early: under load that takes longer than a block.
  BlockPlace now = next(), after = now, later = now;
  int page = kv_page(kv, now.pages, position_of(now)), page_after = 0;
  const auto look_ahead = [&](int block) {
    if (block >= blocks) return;
    later = next();
    page_after = kv_page(kv, later.pages, position_of(later));
  };
  look_ahead(1);
  uint32_t offset = 0;
  const auto keys = [&](int block) {
    offset = offset_of(now, page);
    after = later;
    page = page_after;
    look_ahead(block + 2);
    const int stage = block % kKeyStages;
    barrier_wait(ring.k_empty[stage], (block / kKeyStages & 1) ^ 1);
    copy(ring.k[stage], kv.k, offset, now.end - now.begin);
    barrier_arrive_after_copies(ring.k_full[stage]);
  };
  keys(0);
  for (int block = 0; block < blocks; ++block) {
    const int known = now.end - now.begin;
    const uint32_t value_offset = offset;
    if (block + 1 < blocks) {
      now = after;
      keys(block + 1);
    }
    const int stage = block % kValueStages;
    barrier_wait(ring.v_empty[stage], (block / kValueStages & 1) ^ 1);
    copy(ring.v[stage], kv.v, value_offset, known);
    barrier_arrive_after_copies(ring.v_full[stage]);
  }
}

// What a thread's two rows (lane / 4 and 8 further) see of a block.
struct Seen {
  int begin;              // the block's first position
  bool whole;             // all rows of the warp group see all of it
  int first[2], last[2];  // positions
};

// 64 rows of a warp group over blocks of KEYS positions.
template <int DIM, int KEYS>
struct Rows {
  float out[DIM / 2];  // [column / 8][row half][2]
  float scores[KEYS / 2];
  uint32_t weights[KEYS / 16][4];
  float largest[2], sum[2];  // base 2; sums of this thread's columns

  // Blocks [first, first + blocks) of the ring, from row `key` of each piece on. seen(j) tells of
  // the j-th. q: [64, DIM]. With `turns` the two groups of the block take turns at starting their
  // products, so that one's softmax runs beside the other's products: turn 0 begins.
  template <bool TURNS, bool SOFTCAP, typename SeenOf>
  __device__ __forceinline__ void run(const AttentionArgs& args, Ring<DIM>& ring, const bf16* q,
                                      int first, int blocks, int key, int turn, SeenOf&& seen) {
#pragma unroll
    for (float& value : out) value = 0;
    largest[0] = largest[1] = kNone;
    sum[0] = sum[1] = 0;
    float keep[2];
    if (TURNS && turn == 1) part_arrive(kTurnBarrier, 2 * kWarpGroup);
    wait_for_keys(ring, first);
    if (TURNS) part_sync(kTurnBarrier + turn, 2 * kWarpGroup);
    start_scores(ring, q, first, key);
    if (TURNS && (turn == 0 || blocks > 1)) part_arrive(kTurnBarrier + 1 - turn, 2 * kWarpGroup);
    wgmma_wait<0>();
    pin(scores);
    release(ring.k_empty[first % kKeyStages]);
    softmax<SOFTCAP>(args, seen(0), keep);
    to_weights();
    for (int j = 0; j + 1 < blocks; ++j) {
      const int block = first + j;
      wait_for_keys(ring, block + 1);
      if (TURNS) part_sync(kTurnBarrier + turn, 2 * kWarpGroup);
      start_scores(ring, q, block + 1, key);
      start_values(ring, block, key);
      if (TURNS && (turn == 0 || j + 2 < blocks))
        part_arrive(kTurnBarrier + 1 - turn, 2 * kWarpGroup);
      wgmma_wait<1>();
      pin(scores);
      softmax<SOFTCAP>(args, seen(j + 1), keep);
      release_after(ring.k_empty[(block + 1) % kKeyStages], sum[0] + sum[1]);
      wgmma_wait<0>();
      pin(out);
      release(ring.v_empty[block % kValueStages]);
#pragma unroll
      for (int i = 0; i < DIM / 2; ++i) out[i] *= keep[i / 2 % 2];
      to_weights();
    }
    const int last = first + blocks - 1;
    start_values(ring, last, key);
    wgmma_wait<0>();
    pin(out);
    release(ring.v_empty[last % kValueStages]);
  }

  __device__ static void release(Barrier& empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
  }

  // The same when `sum`, which is not negative, is known. The assembler moves a wait for products
  // up before arithmetic that does not need it, and with it a softmax behind the products that it
  // should run beside; it does not move one before this.
  __device__ static void release_after(Barrier& empty, float sum) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(*(&empty + (sum < 0 ? 1 : 0)));
  }

  __device__ static void wait_for_keys(Ring<DIM>& ring, int block) {
    barrier_wait(ring.k_full[block % kKeyStages], block / kKeyStages & 1);
    fence_async();
  }

  __device__ void start_scores(Ring<DIM>& ring, const bf16* q, int block, int key) {
    const bf16* k = ring.k[block % kKeyStages] + key * 64;
    pin(scores);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < DIM; i += 16)
      wgmma_scores(scores, matrix_descriptor(q + i / 64 * 64 * 64 + i % 64, 16),
                   matrix_descriptor(k + i / 64 * kRingKeys * 64 + i % 64, 16), i > 0);
    wgmma_commit();
  }

  __device__ void start_values(Ring<DIM>& ring, int block, int key) {
    const int stage = block % kValueStages;
    barrier_wait(ring.v_full[stage], block / kValueStages & 1);
    fence_async();
    pin(out);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < KEYS; i += 16)
      wgmma_values(out, weights[i / 16],
                   matrix_descriptor(ring.v[stage] + (key + i) * 64, kRingKeys * 128));
    wgmma_commit();
  }

  // Scores become weights (still as floats), largest and sum move on; keep: what is left of the
  // sums before.
  template <bool SOFTCAP>
  __device__ void softmax(const AttentionArgs& args, const Seen& seen, float (&keep)[2]) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const float scale = args.scale * kLog2E;
    if (SOFTCAP) {
#pragma unroll
      for (float& score : scores)
        score = softcapped(score * args.scale, args.softcap) * __fdividef(1.0f, args.scale);
    }
    if (!seen.whole) {
#pragma unroll
      for (int i = 0; i < KEYS / 2; ++i) {
        const int position = seen.begin + i / 4 * 8 + lane % 4 * 2 + i % 2, half = i / 2 % 2;
        if (position > seen.last[half] || position < seen.first[half]) scores[i] = kNone;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float best = kNone;
#pragma unroll
      for (int i = 0; i < KEYS / 8; ++i)
        best = fmaxf(best, fmaxf(scores[i * 4 + half * 2], scores[i * 4 + half * 2 + 1]));
      best = fmaxf(largest[half], quad_max(best) * scale);
      const float base = best == kNone ? 0.0f : best;
      keep[half] = exp2_fast(largest[half] - base);
      largest[half] = best;
      float added = 0;
#pragma unroll
      for (int i = 0; i < KEYS / 8; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& score = scores[i * 4 + half * 2 + j];
          score = exp2_fast(fmaf(score, scale, -base));
          added += score;
        }
      sum[half] = sum[half] * keep[half] + added;
    }
  }

  __device__ void to_weights() {
#pragma unroll
    for (int i = 0; i < KEYS / 16; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)  // row half j % 2, keys 8 * (j / 2) on
        weights[i][j] = pack_bf16(scores[(2 * i + j / 2) * 4 + j % 2 * 2],
                                  scores[(2 * i + j / 2) * 4 + j % 2 * 2 + 1]);
  }
};

}  // namespace espalier::kernels::cuda
