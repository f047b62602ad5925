// Attention of encoders: contract in bidirectional.h; the kernel for Hopper is
// bidirectional_sm90.cu.
// bfloat16: one block for each tile of 128 rows of one head and sequence, eight warps of 16 rows
// (four where no sequence has more than 64 rows: windows), the online softmax of FlashAttention 2
// (Dao 2023) over 64 keys at a time, keys and values in two stages by cp.async; heads are widened
// with zeros to 32, 64, 80, 96 or 128 elements. float32, and heads that are no multiple of 8: a
// warp for each row and head, a key a lane; slow. Roof: tensor cores, 4 x head_dim x rows x rows x
// heads operations a sequence.
#include "kernels/attention/attention_device.cuh"
#include "kernels/attention/bidirectional.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tensor_map.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kKeys = 64;
constexpr int kFewRows = 64;  // of a sequence: four warps

template <int DIM, int WARPS>
struct Shared {
  struct Stage {
    bf16 k[kKeys][kPitch<DIM>];
    bf16 v[kKeys][kPitch<DIM>];
  };
  bf16 q[WARPS * 16][kPitch<DIM>];
  Stage stages[2];
};

// The block's tile, and where its head and sequence begin.
struct Tile {
  int row;                          // its first
  int rows;                         // of the sequence
  int64_t first, begin, out_begin;  // the sequence's first row; in elements with the head
};
__device__ Tile tile_of_block(const BidirectionalArgs& args, int tile_rows) {
  const auto head = static_cast<int64_t>(blockIdx.y) * args.head_dim;
  int64_t first = int64_t{blockIdx.z} * args.rows;
  int rows = args.rows;
  if (args.begins != nullptr) {
    first = args.begins[blockIdx.z];
    rows = args.begins[blockIdx.z + 1] - static_cast<int>(first);
  }
  return {.row = static_cast<int>(blockIdx.x) * tile_rows,
          .rows = rows,
          .first = first,
          .begin = first * args.stride + head,
          .out_begin = first * args.out_stride + head};
}

// Rows [first, first + count) of an array to shared memory; zeros beyond the sequence and the head.
template <int DIM, int WARPS>
__device__ void fetch_rows(const BidirectionalArgs& args, const void* array, const Tile& tile,
                           int first, int count, bf16 (*to)[kPitch<DIM>]) {
  constexpr int kVectors = DIM / 8;
  const bf16* base = static_cast<const bf16*>(array) + tile.begin;
  for (int i = static_cast<int>(threadIdx.x); i < count * kVectors; i += WARPS * 32) {
    const int row = i / kVectors, at = i % kVectors * 8;
    const bool known = first + row < tile.rows && at < args.head_dim;
    copy_async(&to[row][at], known ? base + (first + row) * args.stride + at : base, known);
  }
}

// A warp's 16 rows over all keys of the sequence.
template <int DIM, int WARPS>
struct WarpRows {
  using Memory = Shared<DIM, WARPS>;
  float out[DIM / 8][4] = {};
  float scores[kKeys / 8][4];
  uint32_t weights[kKeys / 16][4];
  float largest[2] = {kMasked, kMasked}, sum[2] = {0, 0};

  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ void score(const Memory& shared, const typename Memory::Stage& stage) {
#pragma unroll
    for (auto& of_eight : scores)
#pragma unroll
      for (float& one : of_eight) one = 0;
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
      uint32_t a[4];
      load_matrices(a, &shared.q[warp() * 16 + lane() % 16][k + lane() / 16 * 8]);
#pragma unroll
      for (int n = 0; n < kKeys; n += 16) {
        uint32_t b[4];
        load_matrices(b, &stage.k[n + lane() % 8 + lane() / 16 * 8][k + lane() / 8 % 2 * 8]);
        mma(scores[n / 8], a, b[0], b[1]);
        mma(scores[n / 8 + 1], a, b[2], b[3]);
      }
    }
  }

  // known: keys of the block that exist, at least one, so the largest score is a number, but where
  // REACHES: row: the warp's first one, counted from the block's first key.
  template <bool REACHES>
  __device__ void softmax(float scale, int known, int row, int reach) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float best = largest[half];
      const int own = row + half * 8 + lane() / 4;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float& score = scores[n][half * 2 + i];
          score *= scale * kLog2E;
          const int key = n * 8 + lane() % 4 * 2 + i;
          if (key >= known) score = kMasked;
          if (REACHES && (key < own - reach || key > own + reach)) score = kMasked;
          best = fmaxf(best, score);
        }
      best = quad_max(best);
      const float before = largest[half];
      largest[half] = best;
      if (REACHES && best == kMasked) best = 0;  // no key so far: all weights are 0
      const float keep = exp2_fast(before - best);
      float added = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const float w0 = exp2_fast(scores[n][half * 2] - best);
        const float w1 = exp2_fast(scores[n][half * 2 + 1] - best);
        added += w0 + w1;
        weights[n / 2][n % 2 * 2 + half] = pack_bf16(w0, w1);
      }
      sum[half] = sum[half] * keep + added;
#pragma unroll
      for (int i = 0; i < DIM / 8; ++i) {
        out[i][half * 2] *= keep;
        out[i][half * 2 + 1] *= keep;
      }
    }
  }

  __device__ void add_values(const typename Memory::Stage& stage) {
#pragma unroll
    for (int k = 0; k < kKeys; k += 16)
#pragma unroll
      for (int n = 0; n < DIM; n += 16) {
        uint32_t b[4];
        load_matrices_transposed(b, &stage.v[k + lane() % 16][n + lane() / 16 * 8]);
        mma(out[n / 8], weights[k / 16], b[0], b[1]);
        mma(out[n / 8 + 1], weights[k / 16], b[2], b[3]);
      }
  }

  __device__ void write(const BidirectionalArgs& args, const Tile& tile) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile.row + warp() * 16 + half * 8 + lane() / 4;
      const float factor = 1.0f / quad_sum(sum[half]);
      if (row >= tile.rows) continue;
      bf16* to =
          static_cast<bf16*>(args.out) + tile.out_begin + row * args.out_stride + lane() % 4 * 2;
#pragma unroll
      for (int i = 0; i < DIM / 8; ++i)
        if (i * 8 < args.head_dim)
          *reinterpret_cast<uint32_t*>(to + i * 8) =
              pack_bf16(out[i][half * 2] * factor, out[i][half * 2 + 1] * factor);
    }
  }
};

template <int DIM, int WARPS, bool REACHES>
__global__ void __launch_bounds__(WARPS * 32) bidirectional_kernel(const BidirectionalArgs args) {
  extern __shared__ __align__(16) char raw[];
  auto& shared = *reinterpret_cast<Shared<DIM, WARPS>*>(raw);
  release_next();
  wait_for_previous();
  const Tile tile = tile_of_block(args, WARPS * 16);
  if (tile.row >= tile.rows) return;
  int first = 0, end = tile.rows;  // of the keys that the tile's rows see
  if (REACHES) {
    first = max(0, tile.row - args.reach) / kKeys;
    end = min(end, tile.row + WARPS * 16 + args.reach);
  }
  const int blocks = (end + kKeys - 1) / kKeys;
  const auto fetch = [&](int block) {
    if (block < blocks) {
      auto& stage = shared.stages[block % 2];
      fetch_rows<DIM, WARPS>(args, args.k, tile, block * kKeys, kKeys, stage.k);
      fetch_rows<DIM, WARPS>(args, args.v, tile, block * kKeys, kKeys, stage.v);
    }
    copy_commit();
  };
  fetch_rows<DIM, WARPS>(args, args.q, tile, tile.row, WARPS * 16, shared.q);
  fetch(first);
  WarpRows<DIM, WARPS> rows;
  for (int block = first; block < blocks; ++block) {
    copy_wait<0>();
    __syncthreads();
    fetch(block + 1);
    const auto& stage = shared.stages[block % 2];
    rows.score(shared, stage);
    rows.template softmax<REACHES>(args.scale, tile.rows - block * kKeys,
                                   tile.row + rows.warp() * 16 - block * kKeys, args.reach);
    rows.add_values(stage);
  }
  rows.write(args, tile);
}

constexpr int kAnyWarps = 4, kLaneDims = kBidirectionalHeadDimMax / 32;

// Of 32 keys at a time each lane computes a score; then each lane adds up its elements of values.
template <typename T>
__global__ void __launch_bounds__(kAnyWarps * 32)
    bidirectional_any_kernel(const BidirectionalArgs args) {
  __shared__ float queries[kAnyWarps][kBidirectionalHeadDimMax];
  release_next();
  wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const Tile tile = tile_of_block(args, kAnyWarps);
  const int row = tile.row + warp;
  if (row >= tile.rows) return;
  const int64_t head = int64_t{blockIdx.y} * args.head_dim, first = tile.first;
  const auto at = [&](const void* array, int64_t of_row) {
    return static_cast<const T*>(array) + (first + of_row) * args.stride + head;
  };
  for (int i = lane; i < args.head_dim; i += 32) queries[warp][i] = to_float(at(args.q, row)[i]);
  __syncwarp();
  float largest = kMasked, sum = 0, out[kLaneDims] = {};
  const int reach = args.reach > 0 ? args.reach : tile.rows;
  const int end = min(tile.rows, row + reach + 1);
  for (int begin = max(0, row - reach) / 32 * 32; begin < end; begin += 32) {
    float score = kMasked;
    if (begin + lane < end && begin + lane >= row - reach) {
      const T* key = at(args.k, begin + lane);
      float dot = 0;
      for (int i = 0; i < args.head_dim; ++i) dot = fmaf(queries[warp][i], to_float(key[i]), dot);
      score = dot * args.scale * kLog2E;
    }
    float best = fmaxf(largest, score);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) best = fmaxf(best, __shfl_xor_sync(~0u, best, step));
    const float keep = exp2f(largest - best), weight = exp2f(score - best);
    largest = best;
    sum = sum * keep + warp_sum(weight);
#pragma unroll
    for (float& value : out) value *= keep;
    for (int i = 0; i < min(32, end - begin); ++i) {
      const T* value = at(args.v, begin + i);
      const float factor = __shfl_sync(~0u, weight, i);
#pragma unroll
      for (int d = 0; d < kLaneDims; ++d)
        if (d * 32 + lane < args.head_dim)
          out[d] = fmaf(factor, to_float(value[d * 32 + lane]), out[d]);
    }
  }
  T* to = static_cast<T*>(args.out) + (first + row) * args.out_stride + head;
#pragma unroll
  for (int d = 0; d < kLaneDims; ++d)
    if (d * 32 + lane < args.head_dim) to[d * 32 + lane] = from_float<T>(out[d] / sum);
}

dim3 grid_of(const BidirectionalArgs& args, int tile_rows) {
  return dim3(static_cast<unsigned>((args.rows + tile_rows - 1) / tile_rows),
              static_cast<unsigned>(args.num_heads), static_cast<unsigned>(args.sequences));
}

template <int DIM, int WARPS>
Status start_warps(const BidirectionalArgs& args, const LaunchOptions& launch) {
  constexpr size_t kBytes = sizeof(Shared<DIM, WARPS>);
  const auto kernel = args.reach > 0 ? bidirectional_kernel<DIM, WARPS, true>
                                     : bidirectional_kernel<DIM, WARPS, false>;
  ESP_RETURN_IF_ERROR(allow_shared("attention of encoders", kernel, kBytes));
  return launch_kernel("attention of encoders", kernel, grid_of(args, WARPS * 16), WARPS * 32,
                       kBytes, launch, args);
}

template <int DIM>
Status start(const BidirectionalArgs& args, const LaunchOptions& launch) {
  return args.rows <= kFewRows ? start_warps<DIM, 4>(args, launch)
                               : start_warps<DIM, 8>(args, launch);
}

Status check(const BidirectionalArgs& args) {
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "attention of encoders: F16 is not supported");
  if (args.head_dim < 1 || args.head_dim > kBidirectionalHeadDimMax)
    return error(StatusCode::kUnimplemented,
                 "attention of encoders: head_dim is {}, but at most {} are supported",
                 args.head_dim, kBidirectionalHeadDimMax);
  if (args.reach < 0 || args.sequences < 0 || args.sequences > 65535 || args.rows < 1 ||
      args.num_heads < 1 || args.num_heads > 65535)
    return invalid_argument("attention of encoders: {} sequences of {} rows, {} heads",
                            args.sequences, args.rows, args.num_heads);
  if (args.stride % 8 != 0 || args.out_stride % 8 != 0 || !aligned(args.q, 16) ||
      !aligned(args.k, 16) || !aligned(args.v, 16) || !aligned(args.out, 16))
    return invalid_argument(
        "attention of encoders: every array must start at 16 bytes, with strides of multiples of "
        "8");
  return {};
}

}  // namespace

Status bidirectional_attention(const BidirectionalArgs& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check(args));
  if (args.sequences == 0) return {};
  if (args.type == DType::kFloat32 || args.head_dim % 8 != 0)
    return launch_kernel("attention of encoders",
                         args.type == DType::kFloat32 ? bidirectional_any_kernel<float>
                                                      : bidirectional_any_kernel<bf16>,
                         grid_of(args, kAnyWarps), kAnyWarps * 32, 0, launch, args);
  ESP_ASSIGN_OR_RETURN(const DeviceTraits traits, device_traits());
  const int dim = args.head_dim;
  if (traits.compute_capability == 90 && (dim == 64 || dim >= 80) && args.begins == nullptr &&
      args.reach == 0 && tensor_map_encoder() != nullptr)
    return bidirectional_sm90(args, traits.num_multiprocessors, launch);
  if (dim <= 32) return start<32>(args, launch);
  if (dim <= 64) return start<64>(args, launch);
  if (dim <= 80) return start<80>(args, launch);
  if (dim <= 96) return start<96>(args, launch);
  return start<128>(args, launch);
}

}  // namespace espalier::kernels::cuda
