// gather_rows: rows of the embedding table by token id, bit for bit. One block a token, 16 bytes a
// thread where rows allow it. place_patches: one block a row.
// Roof: memory, 2 x tokens x dim x size bytes; at decode a launch's time.
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/embedding/cuda.h"

namespace espalier::kernels::cuda {
namespace {

// Word: the largest type that divides the rows.
template <typename Word>
__global__ void gather_kernel(GatherArgs args, int words, int64_t table_words, int64_t out_words) {
  release_next();
  wait_for_previous();
  const int64_t token = blockIdx.x;
  int id = args.ids[token];
  if (id == -1 && args.token_slots != nullptr && args.slot_tokens != nullptr) {
    const int slot = args.token_slots[token];
    if (slot >= 0) id = args.slot_tokens[slot];
  }
  id -= args.first_id;
  const bool known = id >= 0 && id < args.num_rows;
  const Word* from =
      static_cast<const Word*>(args.table) + static_cast<int64_t>(known ? id : 0) * table_words;
  Word* to = static_cast<Word*>(args.out) + token * out_words;
  for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = known ? from[i] : Word{};
}

template <typename T>
__global__ void patches_kernel(PlacePatchesArgs args) {
  release_next();
  wait_for_previous();
  const int rows = args.patches_each + (args.class_row ? 1 : 0);
  const int picture = static_cast<int>(blockIdx.x) / rows;
  const int patch = static_cast<int>(blockIdx.x) % rows - (args.class_row ? 1 : 0);
  const float* from = args.patches + (int64_t{picture} * args.patches_each + patch) * args.features;
  T* to = static_cast<T*>(args.out) + int64_t{blockIdx.x} * args.columns;
  for (int i = static_cast<int>(threadIdx.x); i < args.columns; i += static_cast<int>(blockDim.x))
    to[i] = from_float<T>(patch >= 0 && i < args.features ? from[i] : 0.0f);
}

constexpr int kMixThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kMixThreads) mix_kernel(MixRowsArgs args) {
  release_next();
  wait_for_previous();
  const MixedRow row = args.rows[blockIdx.x];
  const T* x = static_cast<const T*>(args.x);
  const T* corners[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    corners[i] = row.corners[0] < 0 ? static_cast<const T*>(args.apart)
                                    : x + int64_t{row.corners[i]} * args.dim;
  T* to = static_cast<T*>(args.out) + int64_t{blockIdx.x} * args.dim;
  for (int at = static_cast<int>(threadIdx.x) * 8; at < args.dim; at += kMixThreads * 8) {
    float v[8];
    load8(corners[0] + at, v);
    if (row.across != 0 || row.down != 0) {
      float right[8], below[8], last[8];
      load8(corners[1] + at, right);
      load8(corners[2] + at, below);
      load8(corners[3] + at, last);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float upper = (1 - row.across) * v[i] + row.across * right[i];
        const float lower = (1 - row.across) * below[i] + row.across * last[i];
        v[i] = (1 - row.down) * upper + row.down * lower;
      }
    }
    store8(to + at, v);
  }
}

}  // namespace

Status gather_rows(const GatherArgs& args, const LaunchOptions& launch) {
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "gather_rows: F16 is not supported");
  if (args.tokens < 0 || args.dim < 1 || args.num_rows < 1)
    return invalid_argument("gather_rows: {} tokens of a table of {} rows of {}", args.tokens,
                            args.num_rows, args.dim);
  if (args.tokens == 0) return {};
  const auto size = static_cast<int64_t>(dtype_size(args.type));
  const int64_t row_bytes = args.dim * size, out_bytes = args.out_stride * size;
  const int64_t table_bytes = args.table_stride == 0 ? row_bytes : args.table_stride * size;
  const auto grid = dim3(static_cast<unsigned>(args.tokens));
  const auto start = [&](auto kernel, int64_t word_bytes) {
    const auto words = static_cast<int>(row_bytes / word_bytes);
    const auto threads = static_cast<unsigned>(std::min(512, (words + 31) / 32 * 32));
    return launch_kernel("gather_rows", kernel, grid, dim3(threads), 0, launch, args, words,
                         table_bytes / word_bytes, out_bytes / word_bytes);
  };
  const bool by_16 = row_bytes % 16 == 0 && table_bytes % 16 == 0 && out_bytes % 16 == 0 &&
                     aligned(args.table, 16) && aligned(args.out, 16);
  if (by_16) return start(gather_kernel<uint4>, 16);
  return start(gather_kernel<uint16_t>, 2);
}

Status place_rows(const PlaceRowsArgs& args, const LaunchOptions& launch) {
  const int64_t stride = args.rows_stride == 0 ? args.dim : args.rows_stride;
  if (args.count < 0 || args.dim < 1 || args.out_stride < args.dim || stride < args.dim)
    return invalid_argument("place_rows: {} rows of {}, {} apart, to rows {} apart", args.count,
                            args.dim, stride, args.out_stride);
  if (args.count == 0) return {};
  const size_t size = dtype_size(args.type), width = static_cast<size_t>(args.dim) * size;
  return cuda_status(
      cudaMemcpy2DAsync(args.out, static_cast<size_t>(args.out_stride) * size, args.rows,
                        static_cast<size_t>(stride) * size, width, static_cast<size_t>(args.count),
                        cudaMemcpyDefault, launch.stream),
      "place_rows");
}

Status mix_rows(const MixRowsArgs& args, const LaunchOptions& launch) {
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "mix_rows: F16 is not supported");
  if (args.count < 0 || args.dim < 8 || args.dim % 8 != 0 || !aligned(args.x, 16) ||
      !aligned(args.apart, 16) || !aligned(args.out, 16))
    return invalid_argument("mix_rows: {} rows of {}, which must be whole vectors of 16 bytes",
                            args.count, args.dim);
  if (args.count == 0) return {};
  return launch_kernel("mix_rows",
                       args.type == DType::kBFloat16 ? mix_kernel<bf16> : mix_kernel<float>,
                       dim3(static_cast<unsigned>(args.count)), kMixThreads, 0, launch, args);
}

Status place_patches(const PlacePatchesArgs& args, const LaunchOptions& launch) {
  if (args.type == DType::kFloat16)
    return error(StatusCode::kUnimplemented, "place_patches: F16 is not supported");
  if (args.pictures < 0 || args.patches_each < 1 || args.features < 1 ||
      args.columns < args.features)
    return invalid_argument("place_patches: {} pictures of {} patches of {} in {} columns",
                            args.pictures, args.patches_each, args.features, args.columns);
  if (args.pictures == 0) return {};
  const int32_t rows = args.pictures * (args.patches_each + (args.class_row ? 1 : 0));
  return launch_kernel("place_patches",
                       args.type == DType::kBFloat16 ? patches_kernel<bf16> : patches_kernel<float>,
                       dim3(static_cast<unsigned>(rows)), dim3(256), 0, launch, args);
}

}  // namespace espalier::kernels::cuda
