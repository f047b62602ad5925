// Records of 4-bit weights (int4_weights.h): made of numbers or of a checkpoint's codes, and turned
// into bfloat16.
// Layout of a record's codes: int4_records.cuh. In a word the step's nibbles are 0, 4, 1, 5 (the
// second step's 2, 6, 3, 7), so that a shift and a mask give two neighbours in the halves of a
// word. Records of experts (moe/int4_experts.h) are made of the same eight rows and 256 inputs: see
// moe/int4_expert_codes.cuh; those of NVFP4 in nvfp4_weights.cu. Parallel: a block a record when
// records are made, a thread 16 bytes when they are read. Roof: memory, the records and the numbers
// once.
#include <cuda_fp16.h>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/linear/int4_records.cuh"
#include "kernels/linear/int4_weights.h"
#include "kernels/linear/nvfp4_weights.h"
#include "kernels/moe/int4_experts.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kThreads = kRecordThreads;
constexpr int kZeroBytesAt = 16;  // bytes of scales a group, before all zero points

__host__ __device__ Int4ExpertShape expert_shape(const Int4Destination& to) {
  return {to.out_features, to.in_features, to.kind == Int4Records::kGatedExpert, to.format.group};
}

// Where eight rows of a matrix lie in records of experts: they are the upper or the lower eight of
// a warp's sixteen.
struct ExpertRows {
  int record, warp, lower;

  __device__ ExpertRows(const Int4Destination& to, int eight) {
    const int row = eight * kInt4Rows;
    if (to.kind == Int4Records::kGatedExpert) {  // up below the gate that it is multiplied with
      const int half = to.out_features / 2, of_half = row % half;
      record = of_half / 32, warp = of_half % 32 / 8, lower = row / half;
    } else {
      record = row / 64, warp = row % 64 / 16, lower = row % 16 / 8;
    }
  }
  // The step-th record of inputs.
  __device__ char* at(const Int4Destination& to, int step) const {
    const Int4ExpertShape shape = expert_shape(to);
    const int steps = shape.input_records();
    const int two = record / 2 * 2;                            // the first of the two
    const int beside = two + 1 < shape.row_records() ? 2 : 1;  // records of one step
    const int64_t index = int64_t{two} * steps + int64_t{step} * beside + record % 2;
    return static_cast<char*>(to.records) + index * shape.record_bytes();
  }
};

using Codes = RecordCodes;

// Two bytes of a word have the eight rows' codes, the others those of rows eight apart, which may
// be written at the same time.
__device__ void store_expert_codes(const Codes& codes, const Int4Destination& to, int k_tile,
                                   int eight) {
  const ExpertRows rows(to, eight);
  for (int i = static_cast<int>(threadIdx.x); i < kInt4Rows * kInt4Inputs / 4; i += kThreads) {
    const int lane = i % 4, row = i / 4 % kInt4Rows, sixteen = i / 32;
    const int of_step = expert_shape(to).record_inputs() / 16;  // sixteens of inputs
    const int step = k_tile * (kInt4Inputs / 16 / of_step) + sixteen / of_step;
    const int of_record = sixteen % of_step;
    if (step * of_step * 16 >= to.in_features) return;
    const uint8_t* four = codes[row] + sixteen * 16 + lane * 2;
    const int thread = rows.warp * 32 + row * 4 + lane;
    char* word = rows.at(to, step) + of_record / 4 * (kInt4ExpertCodeBytes / 2) + thread * 16 +
                 of_record % 4 * 4 + rows.lower;
    word[0] = static_cast<char>(four[0] | four[8] << 4);
    word[2] = static_cast<char>(four[1] | four[9] << 4);
  }
}

// The codes of a record's rows, from shared memory into their places.
__device__ __forceinline__ void store_codes(const Codes& codes, const Int4Destination& to,
                                            int k_tile, int eight) {
  if (to.kind != Int4Records::kDense) return store_expert_codes(codes, to, k_tile, eight);
  static_assert(kThreads == kInt4CodeBytes / 4);
  const int lane = static_cast<int>(threadIdx.x) / 4 % 32, word = static_cast<int>(threadIdx.x) % 4;
  const int first = static_cast<int>(threadIdx.x) / 128 * 128;
  uint32_t bits = 0;
#pragma unroll
  for (int nibble = 0; nibble < 8; ++nibble)
    bits |= static_cast<uint32_t>(codes[lane / 4][first + input_of(lane, word, nibble)])
            << 4 * nibble;
  reinterpret_cast<uint32_t*>(record_at(to, k_tile, eight))[threadIdx.x] = bits;
}

// Of a record of two groups: of each pair of rows eight apart the first group's, then the other's.
__device__ void store_small_scale(const Int4Destination& to, const ExpertRows& rows, int k_tile,
                                  int row, int group, uint16_t scale, uint8_t zero) {
  constexpr int kGroups = kInt4SmallInputs / kInt4SmallGroup;
  const int step = k_tile * (kInt4Inputs / kInt4SmallInputs) + group / kGroups;
  if (step * kInt4SmallInputs >= to.in_features) return;
  char* scales = rows.at(to, step) + kInt4SmallCodeBytes;
  const int at = ((rows.warp * 8 + row) * kGroups + group % kGroups) * 2 + rows.lower;
  reinterpret_cast<uint16_t*>(scales)[at] = scale;
  scales[kInt4SmallScaleBytes + at] = static_cast<char>(zero);
}

// The scale and zero point of a row, one of the eight, and of a group of the tile's inputs.
__device__ __forceinline__ void store_scale(const Int4Destination& to, int k_tile, int eight,
                                            int row, int group, uint16_t scale, uint8_t zero) {
  if (to.kind == Int4Records::kDense) {
    const int groups = to.format.groups_per_record();
    char* scales = record_at(to, k_tile, eight) + kInt4CodeBytes;
    reinterpret_cast<uint16_t*>(scales)[group * kInt4Rows + row] = scale;
    if (to.format.zeros)
      scales[groups * kZeroBytesAt + group * kInt4Rows + row] = static_cast<char>(zero);
    return;
  }
  const ExpertRows rows(to, eight);
  if (expert_shape(to).small_groups())
    return store_small_scale(to, rows, k_tile, row, group, scale, zero);
  const int step = k_tile * 2 + group;
  if (step * kInt4ExpertInputs >= to.in_features) return;
  char* scales = rows.at(to, step) + kInt4ExpertCodeBytes;
  const int at = (rows.warp * 8 + row) * 2 + rows.lower;
  reinterpret_cast<uint16_t*>(scales)[at] = scale;
  scales[kInt4ExpertScaleBytes + at] = static_cast<char>(zero);
}

// Of `width` neighbouring lanes the value of the largest magnitude; a NaN wins.
__device__ __forceinline__ float largest_of(float value, int width) {
  for (int step = width / 2; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(~0u, value, step);
    const uint32_t a = __float_as_uint(value) << 1, b = __float_as_uint(other) << 1;
    const bool takes = b > a || (b == a && __float_as_uint(other) > __float_as_uint(value));
    value = takes ? other : value;
  }
  return value;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) quantize_int4_kernel(const QuantizeInt4Args args) {
  __shared__ Codes codes;
  const Int4Destination& to = args.to;
  const int row = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int k_tile = static_cast<int>(blockIdx.x), eight = static_cast<int>(blockIdx.y);
  constexpr int kEach = kInt4Inputs / 32;  // inputs of a lane
  const int first = k_tile * kInt4Inputs + lane * kEach;
  const T* x = static_cast<const T*>(args.x) + (eight * kInt4Rows + row) * args.x_stride + first;
  float values[kEach] = {};
  if (first < to.in_features)
    for (int i = 0; i < kEach; ++i) values[i] = to_float(x[i]);
  float largest = values[0];
  for (int i = 1; i < kEach; ++i)
    if (!(fabsf(values[i]) <= fabsf(largest))) largest = values[i];
  largest = largest_of(largest, to.format.group / kEach);
  const __half scale = __float2half_rn(largest / -kInt4Zero);
  const float step = __half2float(scale);
  for (int i = 0; i < kEach; ++i) {
    const float code = step == 0 ? kInt4Zero : rintf(__fdiv_rn(values[i], step)) + kInt4Zero;
    codes[row][lane * kEach + i] = static_cast<uint8_t>(fminf(fmaxf(code, 0.0f), 15.0f));
  }
  const int place = to.first_row / kInt4Rows + eight, lanes = to.format.group / kEach;
  if (lane % lanes == 0)
    store_scale(to, k_tile, place, row, lane / lanes, __half_as_ushort(scale), kInt4Zero);
  __syncthreads();
  store_codes(codes, to, k_tile, place);
}

// Code of a row and an input of the range that a source has.
__device__ __forceinline__ uint8_t stored_code(const RepackInt4Args& args, int row, int input) {
  const char* codes = static_cast<const char*>(args.codes);
  const auto word = [&](int line, int index) {
    return *reinterpret_cast<const uint32_t*>(codes + line * args.line_bytes + int64_t{index} * 4);
  };
  switch (args.order) {
    case Int4Order::kRows:
      return word(row, input / 8) >> 4 * (input % 8) & 15;
    case Int4Order::kColumns:
      return word(input / 8, row) >> 4 * (input % 8) & 15;
    case Int4Order::kAwq:
      return word(input, row / 8) >> 4 * (row % 2 * 4 + row % 8 / 2) & 15;
    case Int4Order::kQ4_0: {
      const char* block = codes + row * args.line_bytes + input / 32 * 18;
      const auto byte = static_cast<uint8_t>(block[2 + input % 16]);
      return input % 32 < 16 ? byte & 15 : byte >> 4;
    }
  }
  return 0;
}

__global__ void __launch_bounds__(kThreads) repack_int4_kernel(const RepackInt4Args args) {
  __shared__ Codes codes;
  const Int4Destination& to = args.to;
  const int k_tile = static_cast<int>(blockIdx.x), eight = static_cast<int>(blockIdx.y);
  for (int i = static_cast<int>(threadIdx.x); i < kInt4Rows * kInt4Inputs; i += kThreads) {
    const int row = i / kInt4Inputs, input = k_tile * kInt4Inputs + i % kInt4Inputs;
    uint8_t code = kInt4Zero;
    if (input < args.inputs)
      code = stored_code(args, eight * kInt4Rows + row,
                         args.columns == nullptr ? input : args.columns[input]);
    codes[row][i % kInt4Inputs] = code;
  }
  const int to_tile = args.first_input / kInt4Inputs + k_tile;
  const int place = to.first_row / kInt4Rows + eight;
  const int groups = to.format.groups_per_record();
  const int all_groups = (args.inputs + to.format.group - 1) / to.format.group;
  if (static_cast<int>(threadIdx.x) < groups * kInt4Rows) {
    const int of_eight = static_cast<int>(threadIdx.x) % kInt4Rows;
    const int of_tile = static_cast<int>(threadIdx.x) / kInt4Rows;
    const int row = eight * kInt4Rows + of_eight, group = k_tile * groups + of_tile;
    uint16_t scale = 0;
    uint8_t zero = kInt4Zero;
    if (group < all_groups) {
      const int64_t at = int64_t{row} * all_groups + group;
      if (args.order == Int4Order::kQ4_0) {
        const char* block =
            static_cast<const char*>(args.codes) + row * args.line_bytes + group * 18;
        scale = *reinterpret_cast<const uint16_t*>(block);
      } else {
        scale = static_cast<const uint16_t*>(args.scales)[at];
      }
      if (to.format.zeros) zero = args.zeros[at];
    }
    store_scale(to, to_tile, place, of_eight, of_tile, scale, zero);
  }
  __syncthreads();
  store_codes(codes, to, to_tile, place);
}

// A thread has 16 bytes of a record's codes.
__global__ void __launch_bounds__(kThreads) widen_int4_kernel(const WidenInt4Args args) {
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
  const auto* scales = reinterpret_cast<const __half*>(record + kInt4CodeBytes);
  const auto* zeros =
      reinterpret_cast<const uint8_t*>(scales + args.format.groups_per_record() * kInt4Rows);
  bf16* y =
      static_cast<bf16*>(args.y) + (int64_t{eight} * kInt4Rows + row) * args.in_features + first;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const int input = vector / 32 * 128 + word * 32;  // of the record
    if (k_tile * kInt4Inputs + input >= args.in_features) break;
    const int at = input / args.format.group * kInt4Rows + row;
    const float scale = __half2float(scales[at]);
    const auto zero = static_cast<float>(args.format.zeros ? zeros[at] : kInt4Zero);
#pragma unroll
    for (int nibble = 0; nibble < 4; ++nibble) {
      const auto low = static_cast<float>(words[word] >> 4 * nibble & 15);
      const auto high = static_cast<float>(words[word] >> (4 * nibble + 16) & 15);
      *reinterpret_cast<uint32_t*>(y + input_of(lane, word, nibble)) =
          pack_bf16((low - zero) * scale, (high - zero) * scale);
    }
  }
}

Status check(const char* operation, const Int4Format& format, int32_t out, int32_t in,
             const void* records) {
  const bool known = format.group == 32 || format.group == 128 || (format.nvfp4() && !format.zeros);
  if (known && out > 0 && out % 16 == 0 && in > 0 && in % 32 == 0 && aligned(records, 16))
    return {};
  return invalid_argument(
      "{}: {} x {} in groups of {}, but groups are of 16, 32 or 128, outputs a multiple of 16, "
      "inputs of 32, and records aligned to 16 bytes",
      operation, out, in, format.group);
}

Status check_expert(const char* operation, const Int4Destination& to) {
  const int32_t rows = to.kind == Int4Records::kGatedExpert ? 2 * kInt4Rows : kInt4Rows;
  const int32_t inputs = expert_shape(to).record_inputs();
  const bool known = to.format.group == kInt4ExpertInputs || to.format.group == kInt4SmallGroup;
  if (known && to.in_features > 0 && to.in_features % inputs == 0 && to.out_features > 0 &&
      to.out_features % rows == 0 && aligned(to.records, 16))
    return {};
  return invalid_argument(
      "{}: an expert's {} x {} in groups of {}, but groups are of {} or {}, inputs a multiple of "
      "{} "
      "and outputs of {}",
      operation, to.out_features, to.in_features, to.format.group, kInt4ExpertInputs,
      kInt4SmallGroup, inputs, rows);
}

Status check(const char* operation, const Int4Destination& to) {
  ESP_RETURN_IF_ERROR(to.kind != Int4Records::kDense ? check_expert(operation, to)
                                                     : check(operation, to.format, to.out_features,
                                                             to.in_features, to.records));
  if (to.first_row % kInt4Rows == 0 && to.rows % kInt4Rows == 0 && to.first_row >= 0 &&
      to.first_row + to.rows <= to.out_features)
    return {};
  return invalid_argument("{}: rows {} to {} of {} are no whole records", operation, to.first_row,
                          to.first_row + to.rows, to.out_features);
}

}  // namespace

Status quantize_int4(const QuantizeInt4Args& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check("quantize_int4", args.to));
  if (args.to.format.zeros && args.to.kind == Int4Records::kDense)
    return invalid_argument("quantize_int4: numbers are rounded without zero points");
  if (args.to.rows == 0) return {};
  if (args.to.format.nvfp4()) return quantize_nvfp4(args, launch);
  const dim3 grid = records_grid(args.to.in_features, args.to.rows);
  return args.type == DType::kFloat32 ? launch_kernel("quantize_int4", quantize_int4_kernel<float>,
                                                      grid, dim3(kThreads), 0, launch, args)
                                      : launch_kernel("quantize_int4", quantize_int4_kernel<bf16>,
                                                      grid, dim3(kThreads), 0, launch, args);
}

Status repack_int4(const RepackInt4Args& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check("repack_int4", args.to));
  const bool whole =
      args.inputs % kInt4Inputs == 0 || args.first_input + args.inputs == args.to.in_features;
  if (args.first_input % kInt4Inputs != 0 || !whole || args.inputs % 32 != 0 ||
      (args.order == Int4Order::kQ4_0 && args.to.format.group != 32) ||
      (args.columns != nullptr && args.inputs != args.to.in_features))
    return invalid_argument("repack_int4: inputs {} to {} are no whole records of groups of {}",
                            args.first_input, args.first_input + args.inputs, args.to.format.group);
  if (args.to.rows == 0 || args.inputs == 0) return {};
  if (args.to.format.nvfp4()) return repack_nvfp4(args, launch);
  return launch_kernel("repack_int4", repack_int4_kernel, records_grid(args.inputs, args.to.rows),
                       dim3(kThreads), 0, launch, args);
}

Status widen_int4(const WidenInt4Args& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(
      check("widen_int4", args.format, args.out_features, args.in_features, args.records));
  if (args.format.nvfp4()) return widen_nvfp4(args, launch);
  const int64_t threads = int4_records(args.out_features, args.in_features) * (kInt4CodeBytes / 16);
  return launch_kernel("widen_int4", widen_int4_kernel,
                       dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads)),
                       dim3(kThreads), 0, launch, args);
}

}  // namespace espalier::kernels::cuda
