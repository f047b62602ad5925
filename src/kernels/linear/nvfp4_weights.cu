// Records of NVFP4 (int4_weights.h): made of numbers or of a checkpoint's codes, and turned into
// bfloat16. Layout: int4_records.cuh, with the bits of codes and scales of nvfp4_codes.cuh; of a
// word's four codes in each half the first two are of the first step of 16 inputs. Parallel: a
// block a record when records are made, a thread 16 bytes when they are read. Roof: memory, the
// records and the numbers once (numbers that are rounded twice: rows have scales first).
#include <cuda_fp8.h>

#include "kernels/cuda/barrier.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/linear/int4_records.cuh"
#include "kernels/linear/nvfp4_codes.cuh"
#include "kernels/linear/nvfp4_weights.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kThreads = kRecordThreads;
constexpr int kGroups = kInt4Inputs / kNvfp4Group;  // of a record
constexpr float kLargestCode = 6, kLargestScale = 448;

// A scale that has no sign (bits of e4m3) as a byte of a record; 0 stays one.
__device__ __forceinline__ uint8_t scale_byte(uint32_t e4m3) {
  if (e4m3 == 0) return 0;
  if (e4m3 == 0x7f) return kNvfp4NoNumber;
  if (e4m3 >= 8) return static_cast<uint8_t>(e4m3 + (3 << 3));
  const uint32_t high = 31 - __clz(static_cast<int>(e4m3));  // the leading bit of a subnormal one
  return static_cast<uint8_t>((1 + high) << 3 | (e4m3 << (3 - high) & 7));
}
__device__ __forceinline__ float byte_value(uint32_t byte) {
  if (byte == kNvfp4NoNumber) return __int_as_float(0x7fc00000);
  return __uint_as_float(((byte >> 3) + 127 - 10) << 23 | (byte & 7) << 20);
}
__device__ __forceinline__ float e4m3_value(uint32_t e4m3) {
  return e4m3 == 0 ? 0 : byte_value(scale_byte(e4m3));
}

__device__ __forceinline__ float* row_scales(const Int4Destination& to) {
  return reinterpret_cast<float*>(static_cast<char*>(to.records) +
                                  nvfp4_row_scales_at(to.out_features, to.in_features));
}

// The nearest E2M1, ties to even.
__device__ __forceinline__ uint8_t nearest_code(float value) {
  const float size = fabsf(value);
  const int code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) +
                   (size > 2.5f) + (size >= 3.5f) + (size > 5.0f);
  return static_cast<uint8_t>(code | (value < 0 ? 8 : 0));
}
__device__ __forceinline__ float code_value(uint32_t code) {
  const float size = __uint_as_float(((code >> 1 & 3) + 126) << 23 | (code & 1) << 22);
  const float value = (code & 7) < 2 ? 0.5f * static_cast<float>(code & 1) : size;
  return (code & 8) != 0 ? -value : value;
}

// A record's codes, from shared memory into their places. A group without a scale has none.
__device__ void store_codes(const RecordCodes& codes, char* record) {
  const int lane = static_cast<int>(threadIdx.x) / 4 % 32, word = static_cast<int>(threadIdx.x) % 4;
  const int first = static_cast<int>(threadIdx.x) / 128 * 128;
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    bits |= e2m1_place(codes[lane / 4][first + input_of(lane, word, i)], i % 4) << 16 * (i / 4);
  reinterpret_cast<uint32_t*>(record)[threadIdx.x] = bits;
}

__global__ void __launch_bounds__(kThreads) repack_kernel(const RepackInt4Args args) {
  __shared__ RecordCodes codes;
  const Int4Destination& to = args.to;
  const int k_tile = static_cast<int>(blockIdx.x), eight = static_cast<int>(blockIdx.y);
  const int of_eight = static_cast<int>(threadIdx.x) / 32;
  const int row = eight * kInt4Rows + of_eight, lane = static_cast<int>(threadIdx.x) % 32;
  char* record =
      record_at(to, args.first_input / kInt4Inputs + k_tile, to.first_row / kInt4Rows + eight);
  // Two lanes have a group of 16: a word of codes each.
  const int input = k_tile * kInt4Inputs + lane * 8, group = input / kNvfp4Group;
  uint32_t word = 0, scale = 0;
  if (input < args.inputs) {
    word = *reinterpret_cast<const uint32_t*>(static_cast<const char*>(args.codes) +
                                              row * args.line_bytes + input / 2);
    scale = static_cast<const uint8_t*>(
        args.scales)[int64_t{row} * (args.inputs / kNvfp4Group) + group];
  }
  // A code's sign takes that of its scale.
  if ((scale & 0x80) != 0) word ^= 0x88888888u, scale &= 0x7f;
  for (int i = 0; i < 8; ++i) codes[of_eight][lane * 8 + i] = scale == 0 ? 0 : word >> 4 * i & 15;
  if (scale == 0x7f)  // no number: whatever the codes are, but 0
    for (int i = 0; i < 8; ++i) codes[of_eight][lane * 8 + i] = 1;
  if (lane % 2 == 0)
    record[kInt4CodeBytes + of_eight * kGroups + lane / 2] = static_cast<char>(scale_byte(scale));
  if (k_tile == 0 && args.first_input == 0 && lane == 0)
    row_scales(to)[to.first_row + row] = args.row_scales[row] * kNvfp4Whole;
  __syncthreads();
  store_codes(codes, record);
}

// A warp a row.
template <typename T>
__global__ void __launch_bounds__(kThreads) row_scales_kernel(const QuantizeInt4Args args) {
  const Int4Destination& to = args.to;
  const int row = static_cast<int>(blockIdx.x) * kInt4Rows + static_cast<int>(threadIdx.x) / 32;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  float largest = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < to.in_features; i += 32) {
    const float size = fabsf(to_float(x[i]));
    if (size < INFINITY) largest = fmaxf(largest, size);  // false for NaN
  }
  for (int step = 16; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  if (threadIdx.x % 32 == 0)
    row_scales(to)[to.first_row + row] = largest / (kLargestCode * kLargestScale) * kNvfp4Whole;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const QuantizeInt4Args args) {
  __shared__ RecordCodes codes;
  const Int4Destination& to = args.to;
  const int k_tile = static_cast<int>(blockIdx.x), eight = static_cast<int>(blockIdx.y);
  const int of_eight = static_cast<int>(threadIdx.x) / 32;
  const int row = eight * kInt4Rows + of_eight, lane = static_cast<int>(threadIdx.x) % 32;
  char* record = record_at(to, k_tile, to.first_row / kInt4Rows + eight);
  const int first = k_tile * kInt4Inputs + lane * 8;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride + first;
  float values[8] = {}, largest = 0;
  bool numbers = true;
  for (int i = 0; i < 8 && first < to.in_features; ++i) {
    values[i] = to_float(x[i]);
    numbers = numbers && fabsf(values[i]) < INFINITY;
    largest = fmaxf(largest, fabsf(values[i]));
  }
  largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
  numbers = __shfl_xor_sync(~0u, static_cast<int>(numbers), 1) != 0 && numbers;
  const float of_row = row_scales(to)[to.first_row + row] / kNvfp4Whole;
  uint32_t scale = 0;
  if (of_row > 0)
    scale = __nv_cvt_float_to_fp8(largest / kLargestCode / of_row, __NV_SATFINITE, __NV_E4M3);
  if (!numbers) scale = 0x7f;
  const float step = scale == 0x7f ? 0 : e4m3_value(scale) * of_row;
  for (int i = 0; i < 8; ++i)
    codes[of_eight][lane * 8 + i] = !numbers ? 1 : step > 0 ? nearest_code(values[i] / step) : 0;
  if (lane % 2 == 0)
    record[kInt4CodeBytes + of_eight * kGroups + lane / 2] = static_cast<char>(scale_byte(scale));
  __syncthreads();
  store_codes(codes, record);
}

// The code of a word that repack and quantize put at place i.
__device__ __forceinline__ uint32_t code_at(uint32_t word, int i) {
  const uint32_t half = i < 4 ? word & 0xffff : word >> 16;
  switch (i % 4) {
    case 0:
      return half >> 12 & 8 | half >> 6 & 7;
    case 1:
      return half >> 9 & 8 | half >> 3 & 7;
    case 2:
      return half >> 6 & 8 | half & 7;
    default:
      return half >> 11 & 8 | half >> 11 & 4 | half >> 10 & 3;
  }
}

__global__ void __launch_bounds__(kThreads) widen_kernel(const WidenInt4Args args) {
  constexpr int kVectors = kInt4CodeBytes / 16;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int eights = args.out_features / kInt4Rows;
  const int64_t record_index = index / kVectors;
  const int vector = static_cast<int>(index % kVectors), lane = vector % 32, row = lane / 4;
  const int k_tile = static_cast<int>(record_index / eights);
  const int eight = static_cast<int>(record_index % eights);
  const int first = k_tile * kInt4Inputs + vector / 32 * 128;
  if (first >= args.in_features) return;
  const char* record =
      static_cast<const char*>(args.records) + record_index * args.format.record_bytes();
  const uint4 four = reinterpret_cast<const uint4*>(record)[vector];
  const uint32_t words[4] = {four.x, four.y, four.z, four.w};
  const auto* scales = reinterpret_cast<const uint8_t*>(record) + kInt4CodeBytes + row * kGroups;
  const int64_t y_row = int64_t{eight} * kInt4Rows + row;
  const auto* of_rows =
      reinterpret_cast<const float*>(static_cast<const char*>(args.records) +
                                     nvfp4_row_scales_at(args.out_features, args.in_features));
  const float of_row = of_rows[y_row] / kNvfp4Whole;
  bf16* y = static_cast<bf16*>(args.y) + y_row * args.in_features + first;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    if (first + word * 32 >= args.in_features) break;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int input = input_of(lane, word, i);
      if (first + input >= args.in_features) continue;
      const float scale = byte_value(scales[(vector / 32 * 128 + input) / kNvfp4Group]) * of_row;
      *reinterpret_cast<uint32_t*>(y + input) =
          pack_bf16(code_value(code_at(words[word], i)) * scale,
                    code_value(code_at(words[word], i + 4)) * scale);
    }
  }
}

}  // namespace

Status repack_nvfp4(const RepackInt4Args& args, const LaunchOptions& launch) {
  if (args.order != Int4Order::kRows || args.columns != nullptr || args.scales == nullptr ||
      args.row_scales == nullptr)
    return invalid_argument(
        "repack_int4: NVFP4 has rows of words with scales of groups and of rows");
  return launch_kernel("repack_int4", repack_kernel, records_grid(args.inputs, args.to.rows),
                       dim3(kThreads), 0, launch, args);
}

Status quantize_nvfp4(const QuantizeInt4Args& args, const LaunchOptions& launch) {
  const auto run = [&]<typename T>(T) -> Status {
    ESP_RETURN_IF_ERROR(launch_kernel("quantize_int4", row_scales_kernel<T>,
                                      dim3(static_cast<unsigned>(args.to.rows / kInt4Rows)),
                                      dim3(kThreads), 0, {.stream = launch.stream}, args));
    return launch_kernel("quantize_int4", quantize_kernel<T>,
                         records_grid(args.to.in_features, args.to.rows), dim3(kThreads), 0,
                         {.stream = launch.stream}, args);
  };
  return args.type == DType::kFloat32 ? run(float{}) : run(bf16{});
}

Status widen_nvfp4(const WidenInt4Args& args, const LaunchOptions& launch) {
  const int64_t threads = int4_records(args.out_features, args.in_features) * (kInt4CodeBytes / 16);
  return launch_kernel("widen_int4", widen_kernel,
                       dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)),
                       dim3(kThreads), 0, launch, args);
}

}  // namespace espalier::kernels::cuda
