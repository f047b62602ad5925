// qk_rope_append: RMS norm of q and k heads, rotary embedding, and the new keys and values into
// their pages. q [tokens, heads, head_dim] in place, k and v [tokens, kv_heads, head_dim].
// Parallel: one block for a token; whole bfloat16 heads of 64, 128 and 256 take vectors of eight
// elements, other shapes one warp a head. Angles are computed here once a block (sincosf, accurate)
// and not read from a table.
// Roof: memory, (2 heads + 4 kv_heads) x head_dim x size bytes a token (q twice, k and v read and
// written); at decode a launch's time. 8,192 rows 61 us on an H200. History:
// docs/notes/elementwise.md.
#include <cuda_fp8.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/kv_append/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kRopeWarps = 8;
constexpr int kRopeMaxDim = kMaxHeadDim;
constexpr int kRowThreads = 384;  // 48 heads of 128 in one go

// What a pair of a token's heads turns by.
__device__ __forceinline__ int position_of(const QkRopeAppendArgs& args, int64_t token, int pair) {
  if (args.places == nullptr) return args.positions[token];
  int component = (pair >= args.section_ends[0]) + (pair >= args.section_ends[1]);
  if (args.interleaved_sections) {
    const int turn = pair % 3;
    component = turn > 0 && pair < args.section_ends[turn - 1] ? turn : 0;
  }
  return args.places[token * 3 + component];
}

template <typename T>
struct HeadWork {
  const T* from = nullptr;
  T* to = nullptr;        // in the q rows or among the new keys, and
  void* kv_to = nullptr;  // in a page
  const T* norm = nullptr;
  bool rotate = false;
};

template <typename T>
__device__ HeadWork<T> head_work(const QkRopeAppendArgs& args, int64_t token, int head,
                                 int64_t kv_row) {
  const int dim = args.kv.head_dim;
  HeadWork<T> work;
  if (head < args.num_heads) {
    T* q = static_cast<T*>(args.q) + token * args.q_stride + int64_t{head} * dim;
    work = {.from = q, .to = q, .norm = static_cast<const T*>(args.q_norm), .rotate = true};
    return work;
  }
  head -= args.num_heads;
  const bool is_k = head < args.kv.num_kv_heads;
  if (!is_k) head -= args.kv.num_kv_heads;
  if (kv_row < 0 || (!is_k && args.v == nullptr)) return work;
  const int64_t element = kv_row / args.kv.page_size * args.kv.page_stride +
                          kv_row % args.kv.page_size * args.kv.token_stride +
                          head * args.kv.head_stride;
  const int64_t size = args.kv.type == KvType::kFloat32    ? 4
                       : args.kv.type == KvType::kBFloat16 ? 2
                                                           : 1;
  work.kv_to = static_cast<char*>(is_k ? args.kv.k : args.kv.v) + element * size;
  if (is_k) {
    work.from = static_cast<const T*>(args.k) + token * args.k_stride + int64_t{head} * dim;
    if (args.new_keys != nullptr)
      work.to = static_cast<T*>(args.new_keys) + token * args.k_stride + int64_t{head} * dim;
    work.norm = static_cast<const T*>(args.k_norm);
    work.rotate = true;
  } else {
    work.from = static_cast<const T*>(args.v) + token * args.v_stride + int64_t{head} * dim;
  }
  return work;
}

template <typename T>
__global__ void __launch_bounds__(kRopeWarps * 32) qk_rope_append_kernel(QkRopeAppendArgs args) {
  __shared__ float cosine[kRopeMaxDim / 2], sine[kRopeMaxDim / 2];
  __shared__ float heads[kRopeWarps][kRopeMaxDim];
  release_next();
  wait_for_previous();
  const int64_t token = blockIdx.x;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int half = args.frequencies == nullptr ? 0 : args.rotary_dim / 2;
  const int dim = args.kv.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < half; i += kRopeWarps * 32) {
    // The angle is rounded to float32 first, as on the CPU.
    const float angle = static_cast<float>(position_of(args, token, i)) * args.frequencies[i];
    float s, c;
    sincosf(angle, &s, &c);
    cosine[i] = c * args.attention_factor;
    sine[i] = s * args.attention_factor;
  }
  __syncthreads();
  const int head = static_cast<int>(blockIdx.y) * kRopeWarps + warp;
  if (head >= args.num_heads + 2 * args.kv.num_kv_heads) return;
  const int64_t kv_row = args.kv_rows == nullptr ? -1 : args.kv_rows[token];
  const HeadWork<T> work = head_work<T>(args, token, head, kv_row);
  if (work.from == nullptr) return;

  float* row = heads[warp];
  float sum = 0;
  for (int i = lane; i < dim; i += 32) {
    row[i] = to_float(work.from[i]);
    sum += row[i] * row[i];
  }
  __syncwarp();
  if (work.norm != nullptr) {
    const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(dim) + args.epsilon);
    for (int i = lane; i < dim; i += 32)
      row[i] =
          to_float(from_float<T>(row[i] * scale * (to_float(work.norm[i]) + args.norm_offset)));
    __syncwarp();
  }
  if (work.rotate) {
    float* rotated = row + args.rotary_begin;
    for (int i = lane; i < half; i += 32) {
      float& first = rotated[args.interleaved ? 2 * i : i];
      float& second = rotated[args.interleaved ? 2 * i + 1 : i + half];
      const float a = first, b = second;
      first = a * cosine[i] - b * sine[i];
      second = b * cosine[i] + a * sine[i];
    }
    __syncwarp();
  }
  for (int i = lane; i < dim; i += 32) {
    if (work.to != nullptr) work.to[i] = from_float<T>(row[i]);
    if (work.kv_to == nullptr) continue;
    if (args.kv.type == KvType::kFloat32)
      static_cast<float*>(work.kv_to)[i] = row[i];
    else if (args.kv.type == KvType::kFloat8E4M3)
      static_cast<__nv_fp8_e4m3*>(work.kv_to)[i] = __nv_fp8_e4m3(row[i]);
    else
      static_cast<bf16*>(work.kv_to)[i] = __float2bfloat16_rn(row[i]);
  }
}

// Rounds to nearest, ties to even; beyond 448 to 448.
__device__ __forceinline__ uint32_t four_e4m3(const float* values) {
  const uint32_t low =
      __nv_cvt_float2_to_fp8x2(make_float2(values[0], values[1]), __NV_SATFINITE, __NV_E4M3);
  const uint32_t high =
      __nv_cvt_float2_to_fp8x2(make_float2(values[2], values[3]), __NV_SATFINITE, __NV_E4M3);
  return low | high << 16;
}
__device__ __forceinline__ void store8_e4m3(uint8_t* to, const float (&from)[8]) {
  *reinterpret_cast<uint2*>(to) = make_uint2(four_e4m3(from), four_e4m3(from + 4));
}

// As qk_rope_append_kernel, for whole bfloat16 heads of DIM whose halves rotate against each other:
// one block for a token, so its angles are computed once; a thread has eight elements of either
// half, 16 bytes each.
template <int DIM>
__global__ void __launch_bounds__(kRowThreads) qk_rope_append_rows(QkRopeAppendArgs args) {
  constexpr int kLanes = DIM / 16;  // threads of a head
  __shared__ __align__(16) float cosine[DIM / 2], sine[DIM / 2];
  release_next();
  wait_for_previous();
  const int64_t token = blockIdx.x;
  if (static_cast<int>(threadIdx.x) < DIM / 2) {
    const int pair = static_cast<int>(threadIdx.x);
    const float angle = static_cast<float>(position_of(args, token, pair)) * args.frequencies[pair];
    float s, c;
    sincosf(angle, &s, &c);
    cosine[threadIdx.x] = c * args.attention_factor;
    sine[threadIdx.x] = s * args.attention_factor;
  }
  const int64_t kv_row = args.kv_rows == nullptr ? -1 : args.kv_rows[token];
  const int all = (args.num_heads + 2 * args.kv.num_kv_heads) * kLanes;
  __syncthreads();
  for (int first = 0; first < all; first += kRowThreads) {
    const int index = first + static_cast<int>(threadIdx.x), at = index % kLanes * 8;
    HeadWork<bf16> work;
    if (index < all) work = head_work<bf16>(args, token, index / kLanes, kv_row);
    float a[8] = {}, b[8] = {};
    if (work.from != nullptr) {
      load8(work.from + at, a);
      load8(work.from + DIM / 2 + at, b);
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += a[i] * a[i] + b[i] * b[i];
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (work.from == nullptr) continue;
    if (work.norm != nullptr) {
      const float scale = 1.0f / sqrtf(sum / static_cast<float>(DIM) + args.epsilon);
      float norm_a[8], norm_b[8];
      load8(work.norm + at, norm_a);
      load8(work.norm + DIM / 2 + at, norm_b);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        a[i] = to_float(from_float<bf16>(a[i] * scale * (norm_a[i] + args.norm_offset)));
        b[i] = to_float(from_float<bf16>(b[i] * scale * (norm_b[i] + args.norm_offset)));
      }
    }
    if (work.rotate) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float c = cosine[at + i], s = sine[at + i], x = a[i];
        a[i] = x * c - b[i] * s;
        b[i] = b[i] * c + x * s;
      }
    }
    const bool e4m3 = args.kv.type == KvType::kFloat8E4M3;
    for (bf16* to : {work.to, e4m3 ? nullptr : static_cast<bf16*>(work.kv_to)}) {
      if (to == nullptr) continue;
      store8(to + at, a);
      store8(to + DIM / 2 + at, b);
    }
    if (e4m3 && work.kv_to != nullptr) {
      auto* codes = static_cast<uint8_t*>(work.kv_to);
      store8_e4m3(codes + at, a);
      store8_e4m3(codes + DIM / 2 + at, b);
    }
  }
}

// Whether qk_rope_append_rows supports it: 16-byte rows, all of each head rotated.
bool whole_rows(const QkRopeAppendArgs& args) {
  const KvPlanes& kv = args.kv;
  const int dim = kv.head_dim;
  return args.type == DType::kBFloat16 && kv.type != KvType::kFloat32 && args.v != nullptr &&
         args.frequencies != nullptr && args.rotary_dim == dim && !args.interleaved &&
         (dim == 64 || dim == 128 || dim == 256) && args.q_stride % 8 == 0 &&
         args.k_stride % 8 == 0 && args.v_stride % 8 == 0 && kv.page_stride % 8 == 0 &&
         kv.token_stride % 8 == 0 && kv.head_stride % 8 == 0 && aligned(args.q, 16) &&
         aligned(args.k, 16) && aligned(args.new_keys, 16) && aligned(args.v, 16) &&
         aligned(kv.k, 16) && aligned(kv.v, 16) && aligned(args.q_norm, 16) &&
         aligned(args.k_norm, 16);
}

}  // namespace

Status qk_rope_append(const QkRopeAppendArgs& args, const LaunchOptions& launch) {
  const KvPlanes& kv = args.kv;
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "qk_rope_append: F16 is not supported");
  if (kv.head_dim < 8 || kv.head_dim > kRopeMaxDim || kv.head_dim % 8 != 0)
    return error(StatusCode::kUnimplemented,
                 "qk_rope_append: head_dim is {}, but must be a multiple of 8 up to {}",
                 kv.head_dim, kRopeMaxDim);
  if (args.rotary_dim < 0 || args.rotary_dim % 2 != 0 || args.rotary_begin < 0 ||
      args.rotary_begin + args.rotary_dim > kv.head_dim)
    return invalid_argument("qk_rope_append: {} elements from {} are rotated in heads of {}",
                            args.rotary_dim, args.rotary_begin, kv.head_dim);
  if (args.tokens < 0 || args.num_heads < 0 || kv.num_kv_heads < 1 || kv.page_size < 1)
    return invalid_argument("qk_rope_append: {} tokens, {} heads, {} kv heads, pages of {}",
                            args.tokens, args.num_heads, kv.num_kv_heads, kv.page_size);
  if (args.tokens == 0) return {};
  if (whole_rows(args)) {
    const auto kernel = kv.head_dim == 64    ? qk_rope_append_rows<64>
                        : kv.head_dim == 128 ? qk_rope_append_rows<128>
                                             : qk_rope_append_rows<256>;
    return launch_kernel("qk_rope_append", kernel, dim3(static_cast<unsigned>(args.tokens)),
                         kRowThreads, 0, launch, args);
  }
  const int heads = args.num_heads + 2 * kv.num_kv_heads;
  const dim3 grid(static_cast<unsigned>(args.tokens),
                  static_cast<unsigned>((heads + kRopeWarps - 1) / kRopeWarps));
  return launch_kernel(
      "qk_rope_append",
      args.type == DType::kBFloat16 ? qk_rope_append_kernel<bf16> : qk_rope_append_kernel<float>,
      grid, kRopeWarps * 32, 0, launch, args);
}

}  // namespace espalier::kernels::cuda
