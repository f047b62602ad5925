// Online softmax of a consumer warp group's 64 rows over the key blocks of a ring buffer
// (kv_pipeline_sm90.cuh): it computes the next block's scores while this block's values are
// weighted.
//
//   scores(0); softmax(0)
//   for each block:  start scores(j + 1); start out += weights(j) values(j)
//                    wait for the scores; softmax(j + 1); wait for the values; scale out
#pragma once

#include "kernels/attention/kv_pipeline_sm90.cuh"

namespace espalier::kernels::cuda {

// The positions that a thread's two rows (lane / 4 and 8 further) see.
struct Visible {
  int first[2], last[2];
};
// The key blocks of a warp group's rows; blocks in [whole_begin, whole_end) need no mask.
struct Blocks {
  int count, whole_begin, whole_end;
  int begin, step;  // positions: of the first block, from one to the next
};

constexpr float kLowest = -1e30f;  // the base of a row that has seen nothing
constexpr float kRescaleRise = 8;
constexpr float kMaxAdded = 65536;  // of a block's weights in a thread, before the base must move

// A stage of the ring buffer, and the parity of its barriers' phase.
struct StageSlot {
  int stage = 0;
  uint32_t parity = 0;
  template <int STAGES>
  __device__ void advance() {
    const bool around = stage == STAGES - 1;
    stage = around ? 0 : stage + 1;
    parity ^= around ? 1 : 0;
  }
};

// Makes a value that is uniform across the warp known as such to the compiler.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(~0u, value, 0); }

// 64 rows of a warp group over blocks of KEYS positions; keys of DIM elements, values of VALUE_DIM.
template <int DIM, int KEYS, int VALUE_DIM = DIM, int STAGES = kStages>
struct Rows {
  using Pipeline = KvPipeline<DIM, VALUE_DIM, STAGES>;
  float out[VALUE_DIM / 2];  // [column / 8][row half][2]
  float scores[KEYS / 2];
  uint32_t weights[KEYS / 16][4];
  float largest[2], sum[2];  // base 2; sums of this thread's columns

  // Goes over the pipeline's blocks from `slot` on, which advances, from row `key` of each stage
  // on. q: [64, DIM]. With TURNS the two consumer groups take turns at issuing matmuls, so that
  // one's softmax runs beside the other's matmuls: group `turn` waits at kTurnBarrier + turn, and
  // then releases the other group. after_scores() runs when all matmuls with q are done. Values
  // that the compiler does not know to be uniform (uniform()) make each matmul wait for its
  // descriptor.
  template <bool TURNS, bool WEIGHS_FIRST, bool SOFTCAP, typename AfterScores>
  __device__ __forceinline__ void run(const AttentionArgs& args, Pipeline& pipeline, const bf16* q,
                                      StageSlot& slot, const Blocks& blocks, int key, int turn,
                                      const Visible& seen, AfterScores&& after_scores) {
#pragma unroll
    for (float& value : out) value = 0;
    largest[0] = largest[1] = kLowest;
    sum[0] = sum[1] = 0;
    float keep[2];
    const uint64_t queries = matrix_descriptor(q, 16);
    wait_for(pipeline.k_full, pipeline.k_copied, slot);
    if (TURNS) named_barrier_sync(kTurnBarrier + turn, 2 * kWarpGroup);
    start_scores(pipeline, queries, slot.stage, key);
    if (TURNS) named_barrier_arrive(kTurnBarrier + 1 - turn, 2 * kWarpGroup);
    wgmma_wait<0>();
    pin(scores);
    release(pipeline.k_empty[slot.stage]);
    softmax<SOFTCAP, true, false>(args, blocks.begin, seen, keep, [] {});
    to_weights();
    int next = 1;  // block whose scores come next
    const auto until = [&]<bool MASKED>(int end) {
      for (; next < end; ++next) {
        const StageSlot values = slot;
        slot.template advance<STAGES>();
        wait_for(pipeline, slot, values);
        if (TURNS) named_barrier_sync(kTurnBarrier + turn, 2 * kWarpGroup);
        start_scores(pipeline, queries, slot.stage, key);
        start_values(pipeline, values.stage, key);
        if (TURNS) named_barrier_arrive(kTurnBarrier + 1 - turn, 2 * kWarpGroup);
        wgmma_wait<1>();
        pin(scores);
        const bool moved = softmax<SOFTCAP, MASKED, WEIGHS_FIRST>(
            args, blocks.begin + next * blocks.step, seen, keep,
            [&] { scores_again(q, pipeline.k[slot.stage], key); });
        release_after(pipeline.k_empty[slot.stage], sum[0] + sum[1]);
        wgmma_wait<0>();
        pin(out);
        release(pipeline.v_empty[values.stage]);
        if (moved) {
#pragma unroll
          for (int i = 0; i < VALUE_DIM / 2; ++i) out[i] *= keep[i / 2 % 2];
        }
        to_weights();
      }
    };
    until.template operator()<true>(min(blocks.whole_begin, blocks.count));
    until.template operator()<false>(min(blocks.whole_end, blocks.count));
    until.template operator()<true>(blocks.count);
    after_scores();
    wait_for(pipeline.v_full, pipeline.v_copied, slot);
    start_values(pipeline, slot.stage, key);
    wgmma_wait<0>();
    pin(out);
    release(pipeline.v_empty[slot.stage]);
    slot.template advance<STAGES>();
  }

  __device__ static void release(Barrier& empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(empty);
  }

  // As release(), but only once `sum`, which is not negative, is computed. The assembler hoists a
  // wait for matmuls above arithmetic that does not need it, and with it a softmax behind the
  // matmuls that it should run beside; it does not hoist one above this.
  __device__ static void release_after(Barrier& empty, float sum) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(*(&empty + (sum < 0 ? 1 : 0)));
  }

  __device__ static uint32_t copied_word(const uint8_t (&copied)[kProducerWarps]) {
    static_assert(kProducerWarps == 4);
    uint32_t word = 0;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(shared_address(copied)) : "memory");
    return word;
  }
  __device__ static void wait_for(Barrier (&full)[STAGES],
                                  const uint8_t (&copied)[STAGES][kProducerWarps],
                                  const StageSlot& at) {
    barrier_wait(full[at.stage], at.parity);
    if (copied_word(copied[at.stage]) != 0) fence_async();
  }
  __device__ static void wait_for(Pipeline& pipeline, const StageSlot& keys,
                                  const StageSlot& values) {
    barrier_wait(pipeline.k_full[keys.stage], keys.parity, pipeline.v_full[values.stage],
                 values.parity);
    if ((copied_word(pipeline.k_copied[keys.stage]) |
         copied_word(pipeline.v_copied[values.stage])) != 0)
      fence_async();
  }

  // Descriptors count in work items of 16 bytes.
  __device__ void start_scores(Pipeline& pipeline, uint64_t q, int stage, int key) {
    const uint64_t k = matrix_descriptor(pipeline.k[stage] + key * 64, 16);
    pin(scores);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < DIM; i += 16)
      wgmma_scores(scores, q + (i / 64 * 64 * 64 + i % 64) / 8,
                   k + (i / 64 * kStageKeys * 64 + i % 64) / 8, i > 0);
    wgmma_commit();
  }

  __device__ void start_values(Pipeline& pipeline, int stage, int key) {
    const uint64_t v = matrix_descriptor(pipeline.v[stage] + key * 64, kStageKeys * 128);
    pin(out);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < KEYS; i += 16) wgmma_values(out, weights[i / 16], v + i * 64 / 8);
    wgmma_commit();
  }

  // Turns scores into weights (still as floats) and updates the sums. The exponent base of a row's
  // weights is a score that was once its largest; it moves only when a score exceeds it by more
  // than kRescaleRise, since weights have the same relative error whatever the base. Returns
  // whether the base moved; `keep` is then the factor for what was summed before.
  //
  // With WEIGHS_FIRST an unmasked block is weighed first and checked afterwards: if a thread's sums
  // show a score too far above the base (or are NaN), again() computes the scores once more. So no
  // maximum of a block is searched for, which is a seventh of the time where the tensor cores
  // decide; where memory does, it gains nothing.
  template <bool SOFTCAP, bool MASKED, bool WEIGHS_FIRST, typename Again>
  __device__ __forceinline__ bool softmax(const AttentionArgs& args, int begin, const Visible& seen,
                                          float (&keep)[2], Again&& again) {
    const float scale = args.scale * kLog2E;
    float added[2];
    cap<SOFTCAP>(args);
    if (WEIGHS_FIRST && !MASKED) {
      weigh(scale, added);
      if (__all_sync(~0u, added[0] < kMaxAdded && added[1] < kMaxAdded)) {
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

  __device__ __forceinline__ void mask(int begin, const Visible& seen) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
      const int position = begin + i / 4 * 8 + lane % 4 * 2 + i % 2, half = i / 2 % 2;
      if (position > seen.last[half] || position < seen.first[half]) scores[i] = kMasked;
    }
  }

  // Returns whether the base of one of the warp's rows moved; then `keep` holds the factors and
  // `sum` is relative to the new base.
  __device__ __forceinline__ bool move_base(float scale, float (&keep)[2]) {
    // Four independent chains, since a single one would wait for each of its steps.
    float best[2][2] = {{kMasked, kMasked}, {kMasked, kMasked}}, most[2];
#pragma unroll
    for (int i = 0; i < KEYS / 2; ++i) {
      float& chain = best[i / 2 % 2][i % 2];
      chain = fmaxf(chain, scores[i]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) most[half] = fmaxf(best[half][0], best[half][1]) * scale;
    if (!__any_sync(~0u,
                    most[0] > largest[0] + kRescaleRise || most[1] > largest[1] + kRescaleRise))
      return false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float row = quad_max(most[half]);
      const float base = row > largest[half] + kRescaleRise ? row : largest[half];
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

  // Computes what start_scores() computes, each warp for itself with mma.sync.
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
            b, k + swizzled(key + n + lane % 8 + lane / 16 * 8, at + lane / 8 % 2 * 8, kStageKeys));
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
