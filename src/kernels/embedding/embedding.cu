// gather_rows: rows of the embedding table by token id, bit for bit. One block a token, 16 bytes a
// thread where rows allow it.
// Roof: memory, 2 x tokens x dim x size bytes; at decode a launch's time.
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/embedding/cuda.h"

namespace espalier::kernels::cuda {
namespace {

// Word: the largest type that divides the rows.
template <typename Word>
__global__ void gather_kernel(GatherArgs args, int words, int64_t out_words) {
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
      static_cast<const Word*>(args.table) + static_cast<int64_t>(known ? id : 0) * words;
  Word* to = static_cast<Word*>(args.out) + token * out_words;
  for (int i = threadIdx.x; i < words; i += blockDim.x) to[i] = known ? from[i] : Word{};
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
  const auto grid = dim3(static_cast<unsigned>(args.tokens));
  const auto start = [&](auto kernel, int64_t word_bytes) {
    const auto words = static_cast<int>(row_bytes / word_bytes);
    const auto threads = static_cast<unsigned>(std::min(512, (words + 31) / 32 * 32));
    return launch_kernel("gather_rows", kernel, grid, dim3(threads), 0, launch, args, words,
                         out_bytes / word_bytes);
  };
  const bool by_16 = row_bytes % 16 == 0 && out_bytes % 16 == 0 && aligned(args.table, 16) &&
                     aligned(args.out, 16);
  if (by_16) return start(gather_kernel<uint4>, 16);
  return start(gather_kernel<uint16_t>, 2);
}

}  // namespace espalier::kernels::cuda
