// Multi-head latent attention (DeepSeek), absorbed form: one latent of 512 elements and 64 rotated
// ones is key and value of all heads.
// q [tokens, heads, 576], latents in pages of one plane, out [tokens, heads, 576]; bfloat16. A last
// tile of fewer than 16 heads, as a rank may have, is filled up with zeros.
// Parallel: a block has 16 heads of one token as one tile of rows, which is what the tensor cores
// multiply at once, and one split of the token's keys. Few rows are split over the keys until every
// multiprocessor has two blocks; merge_kernel merges the partial results. Each of four warps
// multiplies the queries with 8 of a stage's 32 keys, then all weights with its quarter of the
// value columns.
// Pipeline: two stages of 32 latents by cp.async; a latent is copied once and used as key and as
// value.
// Roof: memory at decode, 1,152 bytes a key for 16 heads (32 operations a byte); L2 and shared
// memory at prefill, whose tokens each read all keys before them. Whole steps:
// bench/results/gpu_families_h200.txt.
#include <algorithm>

#include "kernels/attention/attention_device.cuh"
#include "kernels/attention/attention_mla.h"
#include "kernels/cuda/launch.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kDim = 576;
constexpr int kRows = 16;  // heads of a tile
constexpr int kKeys = 32;  // positions of a block
constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kColumns = kDim / kWarps;  // of the values, for a warp
constexpr int kVectors = kDim / 8;
constexpr int kMinBlocks = 2;  // of keys, in a split

struct Shared {
  bf16 q[kRows][kPitch<kDim>];
  bf16 keys[2][kKeys][kPitch<kDim>];
  bf16 weights[kRows][kKeys + 8];
  float largest[kWarps][kRows];
  float sums[kWarps][kRows];
  int64_t offsets[2][kKeys];  // of the positions of the next two blocks
};

// The partial results: [tiles][splits][kRows] rows.
struct Partials {
  float* out = nullptr;     // [rows][kDim]
  float2* sums = nullptr;   // [rows]: largest score, sum (base 2)
  int splits = 1;           // 1: no partial results
  int tiles_per_token = 1;  // of heads
};

struct SplitKeys {
  int token, head, position;  // first head; the token's position
  const int32_t* pages;
  int begin, end;  // keys
};

// Blocks of keys in a split of a token that sees `keys` keys.
__device__ int blocks_per_split(int keys, int splits) {
  const int blocks = (keys + kKeys - 1) / kKeys;
  return max(kMinBlocks, (blocks + splits - 1) / splits);
}

__device__ bool left_out(const AttentionArgs& args, int entry) {
  const int tokens = args.entries.query_begin[entry + 1] - args.entries.query_begin[entry];
  return args.latent_tokens_max > 0 && tokens > args.latent_tokens_max;
}

__device__ bool split_at(const AttentionArgs& args, const Partials& partials,
                         SplitKeys& keys_of_split) {
  const EntryArrays& entries = args.entries;
  keys_of_split.token = static_cast<int>(blockIdx.x) / partials.tiles_per_token;
  if (keys_of_split.token >= entries.query_begin[entries.num_entries]) return false;
  keys_of_split.head = static_cast<int>(blockIdx.x) % partials.tiles_per_token * kRows;
  const int entry = bucket_of(entries.query_begin, entries.num_entries, keys_of_split.token);
  if (left_out(args, entry)) return false;
  keys_of_split.position =
      entries.prefix_len[entry] + keys_of_split.token - entries.query_begin[entry];
  keys_of_split.pages = entries.page_tables + entries.page_begin[entry];
  const int keys = keys_of_split.position + 1;
  const int step = blocks_per_split(keys, partials.splits) * kKeys;
  keys_of_split.begin = static_cast<int>(blockIdx.y) * step;
  keys_of_split.end = min(keys, keys_of_split.begin + step);
  return keys_of_split.begin < keys_of_split.end;
}

__global__ void __launch_bounds__(kThreads)
    mla_kernel(const AttentionArgs args, const Partials partials) {
  extern __shared__ __align__(16) char raw[];
  auto& shared = *reinterpret_cast<Shared*>(raw);
  release_next();
  wait_for_previous();
  SplitKeys keys_of_split;
  if (!split_at(args, partials, keys_of_split)) return;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;

  const bf16* queries = static_cast<const bf16*>(args.q) + keys_of_split.token * args.q_stride +
                        int64_t{keys_of_split.head} * kDim;
  for (int i = thread; i < kRows * kVectors; i += kThreads)
    copy_async(&shared.q[i / kVectors][i % kVectors * 8], queries + int64_t{i} * 8,
               keys_of_split.head + i / kVectors < args.shape.num_heads);
  const int blocks = (keys_of_split.end - keys_of_split.begin + kKeys - 1) / kKeys;
  const auto position_of = [&](int block) {  // the position that this thread looks up
    return min(keys_of_split.begin + block * kKeys + thread, keys_of_split.end - 1);
  };
  const auto page_of = [&](int block) {
    return block < blocks && thread < kKeys
               ? kv_page(args.kv, keys_of_split.pages, position_of(block))
               : 0;
  };
  const auto keep_offset = [&](int block, int page) {
    if (thread < kKeys)
      shared.offsets[block % 2][thread] = kv_offset(args.kv, page, position_of(block), 0);
  };
  // Rows beyond the end are zeros: their weight is 0, and so must be the result.
  const auto fetch = [&](int block) {
    if (block < blocks)
      for (int i = thread; i < kKeys * kVectors; i += kThreads) {
        const int row = i / kVectors, at = i % kVectors * 8;
        copy_async(&shared.keys[block % 2][row][at],
                   static_cast<const bf16*>(args.kv.k) + shared.offsets[block % 2][row] + at,
                   keys_of_split.begin + block * kKeys + row < keys_of_split.end);
      }
    copy_commit();
  };

  float out[kColumns / 8][4] = {};
  float largest[2] = {kMasked, kMasked}, sum[2] = {};  // of rows lane / 4, + 8; sum: this warp's
  keep_offset(0, page_of(0));
  keep_offset(1, page_of(1));
  __syncthreads();
  fetch(0);
  for (int block = 0; block < blocks; ++block) {
    copy_wait<0>();
    __syncthreads();
    fetch(block + 1);
    const int page_after = page_of(block + 2);  // read now, needed when this block is done
    const bf16(*keys)[kPitch<kDim>] = shared.keys[block % 2];

    float scores[2][4] = {};  // of even and odd steps: two chains of MMAs
#pragma unroll 6
    for (int k = 0; k < kDim; k += 32) {
      uint32_t even[4], odd[4], b[4];
      load_matrices(even, &shared.q[lane % 16][k + lane / 16 * 8]);
      load_matrices(odd, &shared.q[lane % 16][k + 16 + lane / 16 * 8]);
      load_matrices(b, &keys[warp * 8 + lane % 8][k + lane / 8 * 8]);
      mma(scores[0], even, b[0], b[1]);
      mma(scores[1], odd, b[2], b[3]);
    }
    const int position = keys_of_split.begin + block * kKeys + warp * 8 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      scores[0][i] = position + i % 2 < keys_of_split.end
                         ? to_score(scores[0][i] + scores[1][i], args.scale, 0)
                         : kMasked;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float best = quad_max(fmaxf(scores[0][half * 2], scores[0][half * 2 + 1]));
      if (lane % 4 == 0) shared.largest[warp][lane / 4 + half * 8] = best;
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + half * 8;
      float best = largest[half];  // finite from the first block on: it has a key that is seen
#pragma unroll
      for (int w = 0; w < kWarps; ++w) best = fmaxf(best, shared.largest[w][row]);
      const float keep = exp2_fast(largest[half] - best);
      largest[half] = best;
      const float w0 = exp2_fast(scores[0][half * 2] - best);
      const float w1 = exp2_fast(scores[0][half * 2 + 1] - best);
      sum[half] = sum[half] * keep + w0 + w1;
      *reinterpret_cast<uint32_t*>(&shared.weights[row][warp * 8 + lane % 4 * 2]) =
          pack_bf16(w0, w1);
#pragma unroll
      for (auto& tile : out) tile[half * 2] *= keep, tile[half * 2 + 1] *= keep;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kKeys; k += 16) {
      uint32_t a[4];
      load_matrices(a, &shared.weights[lane % 16][k + lane / 16 * 8]);
#pragma unroll
      for (int n = 0; n < kColumns; n += 16) {
        uint32_t b[4];
        load_matrices_transposed(b, &keys[k + lane % 16][warp * kColumns + n + lane / 16 * 8]);
        mma(out[n / 8], a, b[0], b[1]);
        mma(out[n / 8 + 1], a, b[2], b[3]);
      }
    }
    keep_offset(block + 2, page_after);
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = quad_sum(sum[half]);
    if (lane % 4 == 0) shared.sums[warp][lane / 4 + half * 8] = total;
  }
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + half * 8, column = warp * kColumns + lane % 4 * 2;
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += shared.sums[w][row];
    if (partials.splits > 1) {
      const int64_t at = (int64_t{blockIdx.x} * partials.splits + blockIdx.y) * kRows + row;
      if (warp == 0 && lane % 4 == 0) partials.sums[at] = make_float2(largest[half], total);
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i)
        *reinterpret_cast<float2*>(partials.out + at * kDim + column + i * 8) =
            make_float2(out[i][half * 2], out[i][half * 2 + 1]);
    } else if (keys_of_split.head + row < args.shape.num_heads) {
      bf16* to = static_cast<bf16*>(args.out) + keys_of_split.token * args.out_stride +
                 int64_t{keys_of_split.head + row} * kDim + column;
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i)
        *reinterpret_cast<uint32_t*>(to + i * 8) =
            pack_bf16(out[i][half * 2] / total, out[i][half * 2 + 1] / total);
    }
  }
}

// Merges the splits of one row (token and head): one block a row, four columns a thread.
constexpr int kMergeThreads = kDim / 4;
__global__ void __launch_bounds__(kMergeThreads)
    merge_kernel(const AttentionArgs args, const Partials partials) {
  release_next();
  wait_for_previous();
  const EntryArrays& entries = args.entries;
  const int token = static_cast<int>(blockIdx.x) / partials.tiles_per_token;
  if (token >= entries.query_begin[entries.num_entries]) return;
  const int row = static_cast<int>(blockIdx.y);
  const int head = static_cast<int>(blockIdx.x) % partials.tiles_per_token * kRows + row;
  const int entry = bucket_of(entries.query_begin, entries.num_entries, token);
  if (head >= args.shape.num_heads || left_out(args, entry)) return;
  const int keys = entries.prefix_len[entry] + token - entries.query_begin[entry] + 1;
  const int step = blocks_per_split(keys, partials.splits) * kKeys;
  const int count = (keys + step - 1) / step;
  const int64_t first = int64_t{blockIdx.x} * partials.splits * kRows + row;
  float best = kMasked;
  for (int s = 0; s < count; ++s) best = fmaxf(best, partials.sums[first + int64_t{s} * kRows].x);
  float4 out = make_float4(0, 0, 0, 0);
  float total = 0;
  for (int s = 0; s < count; ++s) {
    const int64_t at = first + int64_t{s} * kRows;
    const float2 part = partials.sums[at];
    const float keep = exp2f(part.x - best);
    const float4 value = reinterpret_cast<const float4*>(partials.out + at * kDim)[threadIdx.x];
    total += part.y * keep;
    out.x += value.x * keep, out.y += value.y * keep;
    out.z += value.z * keep, out.w += value.w * keep;
  }
  auto* to = reinterpret_cast<uint2*>(static_cast<bf16*>(args.out) + token * args.out_stride +
                                      int64_t{head} * kDim);
  to[threadIdx.x] =
      make_uint2(pack_bf16(out.x / total, out.y / total), pack_bf16(out.z / total, out.w / total));
}

// Upper bound of the partial results of all tiles together, where there are any.
int max_partials(const DeviceTraits& traits) { return 2 * traits.num_multiprocessors; }

}  // namespace

bool mla_shape(const AttentionShape& shape, const DeviceTraits& traits) {
  return shape.type == DType::kBFloat16 && shape.head_dim == kDim && shape.num_kv_heads == 1 &&
         shape.sliding_window == 0 && shape.fixed_split == 0 && traits.compute_capability >= 80 &&
         traits.shared_bytes_per_block >= static_cast<int64_t>(sizeof(Shared));
}

size_t mla_workspace_bytes(const DeviceTraits& traits) {
  return static_cast<size_t>(max_partials(traits)) * kRows *
         (kDim * sizeof(float) + sizeof(float2));
}

Status attention_mla(const AttentionArgs& args, const DeviceTraits& traits,
                     const LaunchOptions& launch) {
  Partials partials;
  partials.tiles_per_token = (args.shape.num_heads + kRows - 1) / kRows;
  const int items = args.entries.num_tokens * partials.tiles_per_token;
  partials.splits = std::max(1, max_partials(traits) / items);
  partials.out = static_cast<float*>(args.workspace);
  partials.sums =
      reinterpret_cast<float2*>(partials.out + int64_t{max_partials(traits)} * kRows * kDim);
  ESP_RETURN_IF_ERROR(allow_shared("attention of latents", mla_kernel, sizeof(Shared)));
  ESP_RETURN_IF_ERROR(
      launch_kernel("attention of latents", mla_kernel,
                    dim3(static_cast<unsigned>(items), static_cast<unsigned>(partials.splits)),
                    kThreads, sizeof(Shared), launch, args, partials));
  if (partials.splits == 1) return {};
  return launch_kernel("attention of latents", merge_kernel,
                       dim3(static_cast<unsigned>(items), kRows), kMergeThreads, 0, launch, args,
                       partials);
}

}  // namespace espalier::kernels::cuda
