// A warp group's 64 rows of online softmax over the blocks of a ring (cuda_ring.cuh): it computes
// the next block's scores while this block's values are weighted.
//
//    scores(0); softmax(0)
//    for each block:  start scores(j + 1); start out += weights(j) values(j)
//                     wait for the scores; softmax(j + 1); wait for the values; scale out
#pragma once

#include "kernels/attention/kv_pipeline_sm90.cuh"

namespace espalier::kernels::cuda {

// What a thread's two rows (lane / 4 and 8 further) see: positions.
struct Seen {
  int first[2], last[2];
};
// Blocks that a warp group's rows go over; of those in [whole_begin, whole_end) all rows see all.
struct Blocks {
  int count, whole_begin, whole_end;
  int begin, step;  // positions: of the first block, from one to the next
};

constexpr float kLowest = -1e30f;  // the base of a row that has seen nothing
constexpr float kRise = 8;
constexpr float kMostAdded = 65536;  // of a block's weights in a thread, before the base must move

// The stage that a block is in, and the parity of its barriers' phase.
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    static_assert(kKeyStages == kValueStages);
    const bool around = stage == kKeyStages - 1;
    stage = around ? 0 : stage + 1;
    parity ^= around ? 1 : 0;
  }
};

// A number that is the same for a whole warp, as the compiler then knows.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(~0u, value, 0); }

// 64 rows of a warp group over blocks of KEYS positions.
template <int DIM, int KEYS>
struct Rows {
  float out[DIM / 2];  // [column / 8][row half][2]
  float scores[KEYS / 2];
  uint32_t weights[KEYS / 16][4];
  float largest[2], sum[2];  // base 2; sums of this thread's columns

  // Blocks of the ring from `place` on, which moves on, from row `key` of each piece on. q: [64,
  // DIM]. With TURNS the two groups of the block take turns at starting their products, so that
  // one's softmax runs beside the other's products: group `turn` waits at kTurnBarrier + turn, and
  // lets the other go on. after_scores(): all products with q are done. Numbers that the compiler
  // does not know to be the same for a warp (uniform()) make each product wait for its descriptor.
  template <bool TURNS, bool WEIGHS_FIRST, bool SOFTCAP, typename AfterScores>
  __device__ __forceinline__ void run(const AttentionArgs& args, Ring<DIM>& ring, const bf16* q,
                                      RingPlace& place, const Blocks& blocks, int key, int turn,
                                      const Seen& seen, AfterScores&& after_scores) {
#pragma unroll
    for (float& value : out) value = 0;
    largest[0] = largest[1] = kLowest;
    sum[0] = sum[1] = 0;
    float keep[2];
    const uint64_t queries = matrix_descriptor(q, 16);
    wait_for(ring.k_full, ring.k_copied, place);
    if (TURNS) part_sync(kTurnBarrier + turn, 2 * kWarpGroup);
    start_scores(ring, queries, place.stage, key);
    if (TURNS) part_arrive(kTurnBarrier + 1 - turn, 2 * kWarpGroup);
    wgmma_wait<0>();
    pin(scores);
    release(ring.k_empty[place.stage]);
    softmax<SOFTCAP, true, false>(args, blocks.begin, seen, keep, [] {});
    to_weights();
    int next = 1;  // block whose scores come next
    const auto until = [&]<bool MASKED>(int end) {
      for (; next < end; ++next) {
        const RingPlace values = place;
        place.advance();
        wait_for(ring, place, values);
        if (TURNS) part_sync(kTurnBarrier + turn, 2 * kWarpGroup);
        start_scores(ring, queries, place.stage, key);
        start_values(ring, values.stage, key);
        if (TURNS) part_arrive(kTurnBarrier + 1 - turn, 2 * kWarpGroup);
        wgmma_wait<1>();
        pin(scores);
        const bool moved = softmax<SOFTCAP, MASKED, WEIGHS_FIRST>(
            args, blocks.begin + next * blocks.step, seen, keep,
            [&] { scores_again(q, ring.k[place.stage], key); });
        release_after(ring.k_empty[place.stage], sum[0] + sum[1]);
        wgmma_wait<0>();
        pin(out);
        release(ring.v_empty[values.stage]);
        if (moved) {
#pragma unroll
          for (int i = 0; i < DIM / 2; ++i) out[i] *= keep[i / 2 % 2];
        }
        to_weights();
      }
    };
    until.template operator()<true>(min(blocks.whole_begin, blocks.count));
    until.template operator()<false>(min(blocks.whole_end, blocks.count));
    until.template operator()<true>(blocks.count);
    after_scores();
    wait_for(ring.v_full, ring.v_copied, place);
    start_values(ring, place.stage, key);
    wgmma_wait<0>();
    pin(out);
    release(ring.v_empty[place.stage]);
    place.advance();
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

  __device__ static uint32_t copied_word(const uint8_t (&copied)[kBringWarps]) {
    static_assert(kBringWarps == 4);
    uint32_t word = 0;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(shared_address(copied)) : "memory");
    return word;
  }
  template <int STAGES>
  __device__ static void wait_for(Barrier (&full)[STAGES],
                                  const uint8_t (&copied)[STAGES][kBringWarps],
                                  const RingPlace& at) {
    barrier_wait(full[at.stage], at.parity);
    if (copied_word(copied[at.stage]) != 0) fence_async();
  }
  __device__ static void wait_for(Ring<DIM>& ring, const RingPlace& keys, const RingPlace& values) {
    barrier_wait(ring.k_full[keys.stage], keys.parity, ring.v_full[values.stage], values.parity);
    if ((copied_word(ring.k_copied[keys.stage]) | copied_word(ring.v_copied[values.stage])) != 0)
      fence_async();
  }

  // Descriptors count in units of 16 bytes.
  __device__ void start_scores(Ring<DIM>& ring, uint64_t q, int stage, int key) {
    const uint64_t k = matrix_descriptor(ring.k[stage] + key * 64, 16);
    pin(scores);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < DIM; i += 16)
      wgmma_scores(scores, q + (i / 64 * 64 * 64 + i % 64) / 8,
                   k + (i / 64 * kRingKeys * 64 + i % 64) / 8, i > 0);
    wgmma_commit();
  }

  __device__ void start_values(Ring<DIM>& ring, int stage, int key) {
    const uint64_t v = matrix_descriptor(ring.v[stage] + key * 64, kRingKeys * 128);
    pin(out);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < KEYS; i += 16) wgmma_values(out, weights[i / 16], v + i * 64 / 8);
    wgmma_commit();
  }

  // Scores become weights (still as floats), and sums move on. The base of a row's weights is a
  // score that it once found to be its largest; it moves only when another is more than kRise above
  // it, for weights have the same relative error whatever the base. keep: what is left of what was
  // summed before, if it returns true; else nothing has moved.
  //
  // With WEIGHS_FIRST a block that nobody must mask is weighed first and looked at afterwards: if a
  // thread's sums tell of a score too far above (or are no numbers), again() makes the scores once
  // more. So nobody looks for the largest of a block, a seventh of the time of all where the tensor
  // cores decide; where memory does, it gains nothing.
  template <bool SOFTCAP, bool MASKED, bool WEIGHS_FIRST, typename Again>
  __device__ __forceinline__ bool softmax(const AttentionArgs& args, int begin, const Seen& seen,
                                          float (&keep)[2], Again&& again) {
    const float scale = args.scale * kLog2E;
    float added[2];
    cap<SOFTCAP>(args);
    if (WEIGHS_FIRST && !MASKED) {
      weigh(scale, added);
      if (__all_sync(~0u, added[0] < kMostAdded && added[1] < kMostAdded)) {
        sum[0] += added[0];
        sum[1] += added[1];
        return false;
      }
      again();
      cap<SOFTCAP>(args);
    }
    if (MASKED) mask(begin, seen);
    const bool moves = move_base(scale, keep);
    weigh(scale, added);
    sum[0] += added[0];
    sum[1] += added[1];
    return moves;
  }

  template <bool SOFTCAP>
  __device__ __forceinline__ void cap(const AttentionArgs& args) {
    if constexpr (SOFTCAP) {
#pragma unroll
      for (float& score : scores)
        score = softcapped(score * args.scale, args.softcap) * __fdividef(1.0f, args.scale);
    }
  }

  __device__ __forceinline__ void mask(int begin, const Seen& seen) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
      const int position = begin + i / 4 * 8 + lane % 4 * 2 + i % 2, half = i / 2 % 2;
      if (position > seen.last[half] || position < seen.first[half]) scores[i] = kNone;
    }
  }

  // Whether a base of the warp's rows moved; then keep, and sum is of the new base.
  __device__ __forceinline__ bool move_base(float scale, float (&keep)[2]) {
    // Four chains at once, for one alone would wait for each of its steps.
    float best[2][2] = {{kNone, kNone}, {kNone, kNone}}, most[2];
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
      float& chain = best[i / 2 % 2][i % 2];
      chain = fmaxf(chain, scores[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) most[half] = fmaxf(best[half][0], best[half][1]) * scale;
    if (!__any_sync(~0u, most[0] > largest[0] + kRise || most[1] > largest[1] + kRise))
      return false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float row = quad_max(most[half]);
      const float base = row > largest[half] + kRise ? row : largest[half];
      keep[half] = exp2_fast(largest[half] - base);
      largest[half] = base;
      sum[half] *= keep[half];
    }
    return true;
  }

  __device__ __forceinline__ void weigh(float scale, float (&added)[2]) {
    float chains[2][2] = {};
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
      scores[i] = exp2_fast(fmaf(scores[i], scale, -largest[i / 2 % 2]));
      chains[i / 2 % 2][i % 2] += scores[i];
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) added[half] = chains[half][0] + chains[half][1];
  }

  // What start_scores() makes, by each warp for itself.
  __device__ __forceinline__ void scores_again(const bf16* q, const bf16* k, int key) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = static_cast<int>(threadIdx.x) % kWarpGroup / 32 * 16 + lane % 16;
#pragma unroll
    for (float& score : scores) score = 0;
#pragma unroll 1
    for (int at = 0; at < DIM; at += 16) {
      uint32_t a[4];
      load_matrices(a, q + swizzled(row, at + lane / 16 * 8, 64));
#pragma unroll
      for (int n = 0; n < KEYS; n += 16) {
        uint32_t b[4];
        load_matrices(
            b, k + swizzled(key + n + lane % 8 + lane / 16 * 8, at + lane / 8 % 2 * 8, kRingKeys));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float c[4];
#pragma unroll
          for (int j = 0; j < 4; ++j) c[j] = scores[(n / 8 + i) * 4 + j];
          mma(c, a, b[2 * i], b[2 * i + 1]);
#pragma unroll
          for (int j = 0; j < 4; ++j) scores[(n / 8 + i) * 4 + j] = c[j];
        }
      }
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
