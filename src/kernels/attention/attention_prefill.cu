// Prefill attention for every GPU from compute capability 8.0 on: entries with more than 16 query
// rows.
// q [tokens, heads, head_dim], K and V in pages, out as q; bfloat16, head_dim 64, 80, 96, 128, 256.
// Parallel: one block for each tile of 128 rows (query token x group) of one kv head, over all its
// keys with the online softmax of FlashAttention 2 (Dao 2023); a warp has 16 x kRowTiles rows, two
// row tiles where registers allow it, so that each key fragment is used twice.
// Pipeline: keys and values in two stages of 64 (32) positions by cp.async, one block barrier for
// each.
// Roof: tensor cores, 4 x head_dim x heads x (query, key) pairs, half of them where causal; keys
// and values come from L2 once a tile. 174 TFLOP/s at 16,384 tokens on an H200, where
// attention_prefill_sm90.cu takes over.
#include "kernels/attention/attention_device.cuh"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

template <int DIM>
struct Layout {
  static constexpr int kRowTiles = DIM > 128 ? 1 : 2;          // of 16 rows, for a warp
  static constexpr int kWarps = kTileRows / (16 * kRowTiles);  // 4 or 8
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kKeys = DIM > 128 ? 32 : 64;  // positions of a block
  struct Stage {
    bf16 k[kKeys][kPitch<DIM>];
    bf16 v[kKeys][kPitch<DIM>];
  };
  struct Shared {
    bf16 q[kTileRows][kPitch<DIM>];
    Stage stages[2];
    int64_t offsets[2][kKeys];  // of the positions of the next two blocks
  };
};

struct Tile {
  int entry, kv_head, tokens, query_begin;  // of this tile
  int first_position;                       // of its first token
  int key_begin, key_end;
};

__device__ Tile tile_at(const AttentionArgs& args, const PlanView& plan, int index, int kv_head) {
  const EntryArrays& entries = args.entries;
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int per_tile = kTileRows / group;
  Tile t;
  t.kv_head = kv_head;
  t.entry = bucket_of(plan.tile_begin, entries.num_entries, index);
  const int skipped = (index - plan.tile_begin[t.entry]) * per_tile;
  const int begin = entries.query_begin[t.entry], end = entries.query_begin[t.entry + 1];
  t.query_begin = begin + skipped;
  t.tokens = min(per_tile, end - t.query_begin);
  t.first_position = entries.prefix_len[t.entry] + skipped;
  t.key_begin = first_visible(t.first_position, args.shape.sliding_window);
  t.key_end = t.first_position + t.tokens;
  return t;
}

template <int DIM>
__global__ void __launch_bounds__(Layout<DIM>::kThreads)
    prefill_kernel(const AttentionArgs args, const PlanView plan) {
  using L = Layout<DIM>;
  constexpr int kVectors = DIM / 8;
  extern __shared__ __align__(16) char raw[];
  auto& shared = *reinterpret_cast<typename L::Shared*>(raw);
  release_next();
  wait_for_previous();
  // An entry's last tiles have the most keys, so they start first.
  const int index = plan.header->num_tiles - 1 - static_cast<int>(blockIdx.y);
  if (index < 0) return;
  const Tile tile = tile_at(args, plan, index, static_cast<int>(blockIdx.x));
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int rows = tile.tokens * group;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t* pages = args.entries.page_tables + args.entries.page_begin[tile.entry];

  for (int i = threadIdx.x; i < kTileRows * kVectors; i += L::kThreads) {
    const int row = i / kVectors, at = i % kVectors * 8;
    const bf16* from = static_cast<const bf16*>(args.q);
    if (row < rows)
      from += (tile.query_begin + row / group) * args.q_stride +
              int64_t{tile.kv_head * group + row % group} * DIM + at;
    copy_async(&shared.q[row][at], from, row < rows);
  }
  const int blocks = (tile.key_end - tile.key_begin + L::kKeys - 1) / L::kKeys;
  const auto position_of = [&](int block) {  // the position that this thread looks up
    return min(tile.key_begin + block * L::kKeys + static_cast<int>(threadIdx.x), tile.key_end - 1);
  };
  const auto page_of = [&](int block) {
    const bool mine = block < blocks && static_cast<int>(threadIdx.x) < L::kKeys;
    return mine ? kv_page(args.kv, pages, position_of(block)) : 0;
  };
  const auto keep_offset = [&](int block, int page) {
    if (static_cast<int>(threadIdx.x) < L::kKeys)
      shared.offsets[block % 2][threadIdx.x] =
          kv_offset(args.kv, page, position_of(block), tile.kv_head);
  };
  const auto fetch = [&](int block) {
    if (block < blocks) {
      typename L::Stage& stage = shared.stages[block % 2];
      const int begin = tile.key_begin + block * L::kKeys;
      for (int i = threadIdx.x; i < L::kKeys * kVectors; i += L::kThreads) {
        const int row = i / kVectors, at = i % kVectors * 8;
        const int64_t from = shared.offsets[block % 2][row] + at;
        const bool known = begin + row < tile.key_end;
        copy_async(&stage.k[row][at], static_cast<const bf16*>(args.kv.k) + from, known);
        copy_async(&stage.v[row][at], static_cast<const bf16*>(args.kv.v) + from, known);
      }
    }
    copy_commit();
  };

  float out[L::kRowTiles][DIM / 8][4] = {};
  float largest[L::kRowTiles][2], sum[L::kRowTiles][2];
#pragma unroll
  for (int m = 0; m < L::kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) largest[m][half] = kMasked, sum[m][half] = 0;

  keep_offset(0, page_of(0));
  keep_offset(1, page_of(1));
  __syncthreads();
  fetch(0);
  const int warp_row = warp * 16 * L::kRowTiles;
  for (int block = 0; block < blocks; ++block) {
    copy_wait<0>();
    __syncthreads();
    fetch(block + 1);
    const int page_after = page_of(block + 2);  // read now, needed when this block is done
    typename L::Stage& stage = shared.stages[block % 2];
    const int begin = tile.key_begin + block * L::kKeys;

    float scores[L::kRowTiles][L::kKeys / 8][4] = {};
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
      uint32_t a[L::kRowTiles][4];
#pragma unroll
      for (int m = 0; m < L::kRowTiles; ++m)
        load_matrices(a[m], &shared.q[warp_row + m * 16 + lane % 16][k + lane / 16 * 8]);
#pragma unroll
      for (int n = 0; n < L::kKeys; n += 16) {
        uint32_t b[4];
        load_matrices(b, &stage.k[n + lane % 8 + lane / 16 * 8][k + lane / 8 % 2 * 8]);
#pragma unroll
        for (int m = 0; m < L::kRowTiles; ++m) {
          mma(scores[m][n / 8], a[m], b[0], b[1]);
          mma(scores[m][n / 8 + 1], a[m], b[2], b[3]);
        }
      }
    }

    const int window = args.shape.sliding_window;
    uint32_t weights[L::kRowTiles][L::kKeys / 16][4];
#pragma unroll
    for (int m = 0; m < L::kRowTiles; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + m * 16 + half * 8 + lane / 4;
        const int last = tile.first_position + row / group;
        const int first = window > 0 ? last - window + 1 : 0;
        const bool whole =
            begin + L::kKeys - 1 <= last && begin >= first && begin + L::kKeys <= tile.key_end;
        float best = largest[m][half];
#pragma unroll
        for (int n = 0; n < L::kKeys / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& score = scores[m][n][half * 2 + i];
            score = to_score(score, args.scale, args.softcap);
            const int position = begin + n * 8 + lane % 4 * 2 + i;
            if (!whole && (position > last || position < first || position >= tile.key_end))
              score = kMasked;
            best = fmaxf(best, score);
          }
        best = quad_max(best);
        const float base = best == kMasked ? 0.0f : best;
        const float keep = exp2_fast(largest[m][half] - base);
        largest[m][half] = best;
        float added = 0;
#pragma unroll
        for (int n = 0; n < L::kKeys / 8; ++n) {
          const float w0 = exp2_fast(scores[m][n][half * 2] - base);
          const float w1 = exp2_fast(scores[m][n][half * 2 + 1] - base);
          added += w0 + w1;
          weights[m][n / 2][n % 2 * 2 + half] = pack_bf16(w0, w1);
        }
        sum[m][half] = sum[m][half] * keep + added;
#pragma unroll
        for (int i = 0; i < DIM / 8; ++i) {
          out[m][i][half * 2] *= keep;
          out[m][i][half * 2 + 1] *= keep;
        }
      }
#pragma unroll
    for (int k = 0; k < L::kKeys; k += 16)
#pragma unroll
      for (int n = 0; n < DIM; n += 16) {
        uint32_t b[4];
        load_matrices_transposed(b, &stage.v[k + lane % 16][n + lane / 16 * 8]);
#pragma unroll
        for (int m = 0; m < L::kRowTiles; ++m) {
          mma(out[m][n / 8], weights[m][k / 16], b[0], b[1]);
          mma(out[m][n / 8 + 1], weights[m][k / 16], b[2], b[3]);
        }
      }
    keep_offset(block + 2, page_after);
  }

#pragma unroll
  for (int m = 0; m < L::kRowTiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + m * 16 + half * 8 + lane / 4;
      const float total = quad_sum(sum[m][half]);
      if (row >= rows) continue;
      const int head = tile.kv_head * group + row % group;
      float factor = 1.0f / total;
      if (args.sinks != nullptr) {
        const float sink = args.sinks[head] * kLog2E, all = fmaxf(largest[m][half], sink);
        const float keep = exp2f(largest[m][half] - all);
        factor = keep / (total * keep + exp2f(sink - all));
      }
      bf16* to = static_cast<bf16*>(args.out) + (tile.query_begin + row / group) * args.out_stride +
                 int64_t{head} * DIM + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < DIM / 8; ++i)
        *reinterpret_cast<uint32_t*>(to + i * 8) =
            pack_bf16(out[m][i][half * 2] * factor, out[m][i][half * 2 + 1] * factor);
    }
}

template <int DIM>
Status start(const AttentionArgs& args, const PlanView& plan, const LaunchOptions& launch) {
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const int tiles = args.entries.num_tokens / tokens_per_tile(group) + args.entries.num_entries;
  constexpr size_t kBytes = sizeof(typename Layout<DIM>::Shared);
  ESP_RETURN_IF_ERROR(allow_shared("attention", prefill_kernel<DIM>, kBytes));
  return launch_kernel(
      "attention", prefill_kernel<DIM>,
      dim3(static_cast<unsigned>(args.shape.num_kv_heads), static_cast<unsigned>(tiles)),
      Layout<DIM>::kThreads, kBytes, launch, args, plan);
}

}  // namespace

Status attention_prefill(const AttentionArgs& args, const PlanView& plan,
                         const LaunchOptions& launch) {
  switch (args.shape.head_dim) {
    case 64:
      return start<64>(args, plan, launch);
    case 80:
      return start<80>(args, plan, launch);
    case 96:
      return start<96>(args, plan, launch);
    case 128:
      return start<128>(args, plan, launch);
    default:
      return start<256>(args, plan, launch);
  }
}

}  // namespace espalier::kernels::cuda
