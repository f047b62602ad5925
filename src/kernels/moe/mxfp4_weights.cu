// repack_mxfp4, quantize_mxfp4: blocks of a checkpoint, or numbers, to records of MXFP4.
// Parallel: a thread for each block of 32 inputs of a row. A word of a record has codes of two rows
// eight apart, so words are made by atomic or. Roof: memory; runs once for each weight at load.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/moe/mxfp4_weights.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kMxfp4Threads = 256;
// The exponent that the kernel's factor of a block has: its weights are multiplied as 2^-62 of
// themselves, so that the factors of usual scales are bfloat16 (coded_experts.cu).
constexpr int kFactorOffset = 64, kMostScale = 190;

struct BlockCodes {
  uint32_t words[4];  // 32 codes, low halves of bytes first
  int scale;
};

// Where pair `pair` of a word has its codes: of each half the sign's bit and the lowest of the
// three others. The fourth pair has what the others leave (put_pair()).
__device__ __forceinline__ uint32_t put_pair(int pair, uint32_t even, uint32_t odd) {
  const auto put = [pair](uint32_t code) {
    const uint32_t sign = code >> 3, rest = code & 7;
    if (pair < 3) return sign << (15 - 3 * pair) | rest << (6 - 3 * pair);
    return sign << 14 | (rest >> 2) << 13 | (rest & 3) << 10;
  };
  return put(even) | put(odd) << 16;
}

// A lane of a fragment has inputs 2 (lane % 4) + {0, 1, 8, 9} of every 16, of rows lane / 4 and
// lane / 4 + 8; pairs 0 and 2 of a word are the former row's.
__device__ void write_block(const Mxfp4Destination& to, int row, int block,
                            const BlockCodes& codes) {
  int record, warp, of_warp;  // of_warp: of the warp's 16 rows
  if (to.shape.gated) {
    record = row / 128 * 2 + row % 128 / 64;
    warp = row % 64 / 16, of_warp = row % 16 / 2 + row % 2 * 8;
  } else {
    record = row / 64, warp = row % 64 / 16, of_warp = row % 16;
  }
  const int all = to.shape.row_records(), steps = to.shape.input_records();
  const int two = record / 2 * 2;            // the first of the two
  const int beside = two + 1 < all ? 2 : 1;  // records of one step
  const int64_t index = int64_t{two} * steps + int64_t{block / 2} * beside + record % 2;
  char* at = static_cast<char*>(to.records) + index * kMxfp4RecordBytes;
  auto* words = reinterpret_cast<uint32_t*>(at);
#pragma unroll
  for (int sixteen = 0; sixteen < 2; ++sixteen) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint32_t low = codes.words[2 * sixteen] >> (8 * c);
      const uint32_t high = codes.words[2 * sixteen + 1] >> (8 * c);
      const int first = of_warp / 8;  // pair of inputs 2c, 2c + 1
      const uint32_t word =
          put_pair(first, low & 15, low >> 4 & 15) | put_pair(first + 2, high & 15, high >> 4 & 15);
      const int thread = warp * 32 + of_warp % 8 * 4 + c;
      if (word != 0) atomicOr(words + thread * 4 + block % 2 * 2 + sixteen, word);
    }
  }
  const int factor = codes.scale > kMostScale ? 255 : codes.scale + kFactorOffset;
  at[kMxfp4CodeBytes + (warp * 8 + of_warp % 8) * 4 + block % 2 * 2 + of_warp / 8] =
      static_cast<char>(factor);
}

__global__ void __launch_bounds__(kMxfp4Threads) repack_mxfp4_kernel(RepackMxfp4Args args) {
  const int64_t blocks = args.to.shape.row_blocks();
  const int64_t index = int64_t{blockIdx.x} * kMxfp4Threads + threadIdx.x;
  if (index >= blocks * args.to.rows) return;
  const uint4 from = static_cast<const uint4*>(args.blocks)[index];
  const BlockCodes codes{{from.x, from.y, from.z, from.w}, args.scales[index]};
  write_block(args.to, args.to.first_row + static_cast<int>(index / blocks) * args.to.row_step,
              static_cast<int>(index % blocks), codes);
}

// The code of the nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6; of ties the even code.
__device__ __forceinline__ uint32_t nearest_code(float value) {
  const float size = fabsf(value);
  const uint32_t code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) +
                        (size > 2.5f) + (size >= 3.5f) + (size > 5.0f);
  return code | (signbit(value) ? 8u : 0u);
}

template <typename T>
__global__ void __launch_bounds__(kMxfp4Threads) quantize_mxfp4_kernel(QuantizeMxfp4Args args) {
  const int64_t blocks = args.to.shape.row_blocks();
  const int64_t index = int64_t{blockIdx.x} * kMxfp4Threads + threadIdx.x;
  if (index >= blocks * args.to.rows) return;
  const int64_t row = index / blocks, block = index % blocks;
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride + block * kMxfp4Block;
  const int known =
      min(kMxfp4Block, args.to.shape.in_features - static_cast<int>(block) * kMxfp4Block);
  float most = 0;
  bool finite = true;
  for (int i = 0; i < known; ++i) {
    most = fmaxf(most, fabsf(to_float(x[i])));
    finite = finite && isfinite(to_float(x[i]));
  }
  int exponent = 0;  // most = m 2^exponent, m in [0.5, 1)
  frexpf(most, &exponent);
  const int shift = most == 0 ? 0 : max(exponent - 3, -127);
  BlockCodes codes{{0, 0, 0, 0}, finite ? shift + 127 : 255};
  for (int i = 0; i < known; ++i)
    codes.words[i / 8] |= nearest_code(ldexpf(to_float(x[i]), -shift)) << (i % 8 * 4);
  write_block(args.to, args.to.first_row + static_cast<int>(row) * args.to.row_step,
              static_cast<int>(block), codes);
}

Status check_mxfp4(const Mxfp4Destination& to) {
  const Mxfp4Shape& shape = to.shape;
  if (shape.in_features < 8 || shape.in_features % 8 != 0 || shape.out_features < 1 ||
      (shape.gated && shape.out_features % 2 != 0) || !aligned(to.records, 16))
    return invalid_argument("MXFP4: matrices of {} x {}", shape.out_features, shape.in_features);
  const int64_t last = to.first_row + int64_t{to.rows - 1} * to.row_step;
  if (to.first_row < 0 || to.rows < 1 || to.row_step < 1 || last >= shape.out_features)
    return invalid_argument("MXFP4: rows {} to {} of {}", to.first_row, last, shape.out_features);
  return {};
}

dim3 mxfp4_grid(const Mxfp4Destination& to) {
  const int64_t blocks = int64_t{to.rows} * to.shape.row_blocks();
  return dim3(static_cast<unsigned>((blocks + kMxfp4Threads - 1) / kMxfp4Threads));
}

}  // namespace

Status repack_mxfp4(const RepackMxfp4Args& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_mxfp4(args.to));
  if (!aligned(args.blocks, 16) || args.to.shape.in_features % kMxfp4Block != 0)
    return invalid_argument("MXFP4: whole blocks must lie at multiples of 16 bytes");
  return launch_kernel("MXFP4", repack_mxfp4_kernel, mxfp4_grid(args.to), kMxfp4Threads, 0, launch,
                       args);
}

Status quantize_mxfp4(const QuantizeMxfp4Args& args, const LaunchOptions& launch) {
  ESP_RETURN_IF_ERROR(check_mxfp4(args.to));
  auto* kernel =
      args.type == DType::kFloat32 ? quantize_mxfp4_kernel<float> : quantize_mxfp4_kernel<bf16>;
  return launch_kernel("MXFP4", kernel, mxfp4_grid(args.to), kMxfp4Threads, 0, launch, args);
}

}  // namespace espalier::kernels::cuda
