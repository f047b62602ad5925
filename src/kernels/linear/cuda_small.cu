// y = x W^T for 1 to 16 rows: a stream of the weights through the tensor cores.
//
// Bytes: the weights, 2 x out x in; all else is small. At 4.26 TB/s a layer of the Llama-3.1-8B
// shape is qkv 11.8, o 7.9, gate and up 55.1, down 27.6 us, the head 247 us. Operations: 2 x rows x
// out x in, at 16 rows 16 a byte, a twelfth of what the tensor cores could do meanwhile.
//
// A tile is 16 outputs (8 of gate and the same 8 of up with SiLU) by all inputs; a block of 16
// warps takes one tile after another. Warp w takes blocks w, w + 8, ... of 32 inputs, so that at
// each time the block reads 512 bytes of each of 16 rows. The order of a sum is free as long as
// both sides agree, so a lane's 16-byte loads go straight to the tensor cores: in row g (lane / 4)
// lane t (lane % 4) takes inputs 8t .. 8t+7 of the 32, and they play k = 2t, 2t+1, 2t+8, 2t+9 of
// two products of 16.
//
//        inputs of a block of 32:  0-7     8-15    16-23   24-31
//        row g of the weights:     lane 0  lane 1  lane 2  lane 3    (and row g + 8 likewise)
//
// Loads run kAhead blocks before their use, across tiles, and begin before wait_for_previous(): the
// weights are nobody's output. Sums of the warps meet in shared memory, two buffers by turns, so
// one barrier a tile. The result of a row depends on that row and the weights alone.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/linear/cuda_small.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kTile = 16;   // outputs of a tile, as the tensor cores see it
constexpr int kBlock = 32;  // inputs of a block
constexpr int kAhead = 8;   // 2 x 16 bytes x 8 a thread: 64 KiB a multiprocessor in flight

struct Params {
  const bf16* x;
  int64_t x_stride;
  const bf16* weights;
  void* y;
  int64_t y_stride;
  const bf16* bias;
  const bf16* residual;
  const bf16* norm_weight;
  float norm_epsilon;
  int rows, in, out, num_tiles;
  int x_pitch;  // of x in shared memory, elements
  bool float_out;
};

__device__ __forceinline__ uint4 load_stream(const bf16* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// x into shared memory as it is, or normed as rms_norm() does it (rounded to bfloat16).
__device__ void stage_rows(const Params& p, bf16* to, float (*scratch)[kWarps]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int eights = p.in / 8;
  for (int row = 0; row < p.rows; ++row) {
    float sum = 0;
    for (int c = threadIdx.x; c < eights; c += kThreads) {
      const uint4 raw = *reinterpret_cast<const uint4*>(p.x + row * p.x_stride + c * 8);
      *reinterpret_cast<uint4*>(to + row * p.x_pitch + c * 8) = raw;
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (uint32_t word : words)
        sum += low_half(word) * low_half(word) + high_half(word) * high_half(word);
    }
    if (p.norm_weight == nullptr) continue;
    sum = warp_sum(sum);
    if (lane == 0) scratch[row][warp] = sum;
  }
  __syncthreads();
  if (p.norm_weight == nullptr) return;
  for (int row = 0; row < p.rows; ++row) {
    const float sum = warp_sum(lane < kWarps ? scratch[row][lane] : 0.0f);
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(p.in) + p.norm_epsilon);
    for (int c = threadIdx.x; c < eights; c += kThreads) {
      float value[8], weight[8];
      load8(to + row * p.x_pitch + c * 8, value);
      load8(p.norm_weight + c * 8, weight);
#pragma unroll
      for (int i = 0; i < 8; ++i) value[i] = value[i] * scale * weight[i];
      store8(to + row * p.x_pitch + c * 8, value);
    }
  }
  __syncthreads();
}

__device__ __forceinline__ void write_out(const Params& p, int row, int out, float value) {
  const int64_t at = row * p.y_stride + out;
  if (p.residual != nullptr) value += __bfloat162float(p.residual[at]);
  if (p.float_out)
    static_cast<float*>(p.y)[at] = value;
  else
    static_cast<bf16*>(p.y)[at] = __float2bfloat16_rn(value);
}

// Sums of a tile, [warp][output][row], become outputs.
template <int ROW_TILES, bool SILU>
__device__ __forceinline__ void finish_tile(const Params& p, const float* sums, int tile) {
  constexpr int kRows = 8 * ROW_TILES;
  constexpr int kOutputs = SILU ? 8 : 16;
  for (int i = threadIdx.x; i < kOutputs * p.rows; i += kThreads) {
    const int output = i % kOutputs, row = i / kOutputs, out = tile * kOutputs + output;
    if (out >= p.out) continue;
    float value = 0, up = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      value += sums[(w * kTile + output) * kRows + row];
      if (SILU) up += sums[(w * kTile + output + 8) * kRows + row];
    }
    if (p.bias != nullptr) {
      value += __bfloat162float(p.bias[out]);
      if (SILU) up += __bfloat162float(p.bias[p.out + out]);
    }
    write_out(p, row, out, SILU ? silu(value) * up : value);
  }
}

template <int ROW_TILES, bool SILU, bool SHARED_X>
__global__ void __launch_bounds__(kThreads, 2) small_linear_kernel(const Params p) {
  constexpr int kRows = 8 * ROW_TILES;
  constexpr int kSums = kWarps * kTile * kRows;
  extern __shared__ __align__(16) char shared[];
  float* sums = reinterpret_cast<float*>(shared);                        // [2][kSums]
  bf16* staged = reinterpret_cast<bf16*>(shared + 2 * kSums * 4);        // [rows][x_pitch]
  float(*scratch)[kWarps] = reinterpret_cast<float(*)[kWarps]>(shared);  // over sums, before them

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const int steps = (p.in + kBlock * kWarps - 1) / (kBlock * kWarps);  // of a tile
  const int first = static_cast<int>(blockIdx.x), stride = static_cast<int>(gridDim.x);
  const int tiles = first < p.num_tiles ? (p.num_tiles - first + stride - 1) / stride : 0;
  const int k_lane = warp * kBlock + t * 8;

  // The next load: tile, step within it, and the lane's two rows.
  int load_tile = first, load_step = 0, left_to_load = tiles * steps;
  const bf16 *top_row = nullptr, *bottom_row = nullptr;
  bool top_known = false, bottom_known = false;
  const auto seek = [&] {
    const int top = SILU ? load_tile * 8 + g : load_tile * kTile + g;
    const int bottom = SILU ? p.out + load_tile * 8 + g : top + 8;
    top_known = top < p.out;
    bottom_known = SILU ? top_known : bottom < p.out;
    top_row = p.weights + static_cast<int64_t>(top) * p.in;
    bottom_row = p.weights + static_cast<int64_t>(bottom) * p.in;
  };
  const auto load_next = [&](uint4& top, uint4& bottom) {
    top = bottom = uint4{};
    if (left_to_load == 0) return;
    --left_to_load;
    const int k = load_step * (kBlock * kWarps) + k_lane;
    if (k < p.in) {
      if (top_known) top = load_stream(top_row + k);
      if (bottom_known) bottom = load_stream(bottom_row + k);
    }
    if (++load_step == steps) {
      load_step = 0;
      load_tile += stride;
      seek();
    }
  };

  release_next();
  uint4 top[kAhead], bottom[kAhead];
  seek();
#pragma unroll
  for (int u = 0; u < kAhead; ++u) load_next(top[u], bottom[u]);
  wait_for_previous();
  if (SHARED_X) stage_rows(p, staged, scratch);

  const auto x_part = [&](int row, int k) -> uint4 {
    if (row >= p.rows || k >= p.in) return uint4{};
    if (SHARED_X) return *reinterpret_cast<const uint4*>(staged + row * p.x_pitch + k);
    return *reinterpret_cast<const uint4*>(p.x + row * p.x_stride + k);
  };
  float acc[ROW_TILES][4] = {};
  int step = 0, tile = first, parity = 0;
  for (int left = tiles * steps; left > 0;) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (left == 0) break;
      --left;
      const int k = step * (kBlock * kWarps) + k_lane;
#pragma unroll
      for (int r = 0; r < ROW_TILES; ++r) {
        const uint4 x = x_part(r * 8 + g, k);
        mma(acc[r], top[u].x, bottom[u].x, top[u].y, bottom[u].y, x.x, x.y);
        mma(acc[r], top[u].z, bottom[u].z, top[u].w, bottom[u].w, x.z, x.w);
      }
      load_next(top[u], bottom[u]);
      if (++step < steps) continue;
      step = 0;
      float* mine = sums + parity * kSums + warp * kTile * kRows;
#pragma unroll
      for (int r = 0; r < ROW_TILES; ++r) {
        const int row = r * 8 + 2 * t;
        *reinterpret_cast<float2*>(mine + g * kRows + row) = make_float2(acc[r][0], acc[r][1]);
        *reinterpret_cast<float2*>(mine + (g + 8) * kRows + row) =
            make_float2(acc[r][2], acc[r][3]);
        acc[r][0] = acc[r][1] = acc[r][2] = acc[r][3] = 0;
      }
      __syncthreads();
      finish_tile<ROW_TILES, SILU>(p, sums + parity * kSums, tile);
      parity ^= 1;
      tile += stride;
    }
  }
}

int x_pitch(int in) { return (in + 63) / 64 * 64 + 32; }  // rows start half a line apart

size_t sums_bytes(int rows) { return size_t{2} * kWarps * kTile * (rows > 8 ? 16 : 8) * 4; }
size_t staged_bytes(int rows, int in) { return static_cast<size_t>(rows) * x_pitch(in) * 2; }

// x is staged where that leaves room for a second block beside this one, or where a norm needs it.
bool stages(const LinearArgs& args, const DeviceTraits& traits) {
  const auto most = static_cast<size_t>(traits.shared_bytes_per_block);
  const size_t bytes = sums_bytes(args.rows) + staged_bytes(args.rows, args.in_features);
  return bytes <= (args.norm_weight != nullptr ? most : most / 2);
}

template <int ROW_TILES, bool SILU, bool SHARED_X>
Status start(const Params& params, int blocks, size_t shared_bytes, const LaunchOptions& launch) {
  const auto kernel = small_linear_kernel<ROW_TILES, SILU, SHARED_X>;
  ESP_RETURN_IF_ERROR(allow_shared("linear", kernel, shared_bytes));
  return launch_kernel("linear", kernel, dim3(static_cast<unsigned>(blocks)), kThreads,
                       shared_bytes, launch, params);
}

}  // namespace

bool small_linear_takes(const LinearArgs& args, const DeviceTraits& traits) {
  return args.type == DType::kBFloat16 && args.rows <= kSmallRows && args.in_features % 8 == 0 &&
         args.out_features % 8 == 0 && args.x_stride % 8 == 0 && aligned(args.x, 16) &&
         aligned(args.weights, 16) &&
         (args.norm_weight == nullptr || (aligned(args.norm_weight, 16) && stages(args, traits)));
}

Status small_linear(const LinearArgs& args, const DeviceTraits& traits,
                    const LaunchOptions& launch) {
  const int outputs = args.silu_mul ? 8 : 16;
  const Params params{.x = static_cast<const bf16*>(args.x),
                      .x_stride = args.x_stride,
                      .weights = static_cast<const bf16*>(args.weights),
                      .y = args.y,
                      .y_stride = args.y_stride,
                      .bias = static_cast<const bf16*>(args.bias),
                      .residual = static_cast<const bf16*>(args.residual),
                      .norm_weight = static_cast<const bf16*>(args.norm_weight),
                      .norm_epsilon = args.norm_epsilon,
                      .rows = args.rows,
                      .in = args.in_features,
                      .out = args.out_features,
                      .num_tiles = (args.out_features + outputs - 1) / outputs,
                      .x_pitch = x_pitch(args.in_features),
                      .float_out = args.out_type == DType::kFloat32};
  const bool shared_x = stages(args, traits);
  const size_t bytes =
      sums_bytes(args.rows) + (shared_x ? staged_bytes(args.rows, args.in_features) : 0);
  const int blocks = std::min(params.num_tiles, traits.num_multiprocessors);
  const auto with_silu = [&](auto row_tiles, auto silu) {
    constexpr int kTiles = decltype(row_tiles)::value;
    constexpr bool kSilu = decltype(silu)::value;
    return shared_x ? start<kTiles, kSilu, true>(params, blocks, bytes, launch)
                    : start<kTiles, kSilu, false>(params, blocks, bytes, launch);
  };
  const auto with_rows = [&](auto row_tiles) {
    return args.silu_mul ? with_silu(row_tiles, std::true_type())
                         : with_silu(row_tiles, std::false_type());
  };
  return args.rows > 8 ? with_rows(std::integral_constant<int, 2>())
                       : with_rows(std::integral_constant<int, 1>());
}

}  // namespace espalier::kernels::cuda
