#include "kernels/linear/linear_tuning.h"

#include <cstring>

#include "kernels/cuda/launch.h"
#include "kernels/linear/digest.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kProposals = 12;  // algorithms that are measured for a shape

// A hash of the bits of `rows` rows that the algorithm computes; nothing where it does not run.
Result<std::optional<uint64_t>> bits_of(const CublasLt& library, LinearArgs args, int32_t rows,
                                        const CublasLt::Algorithm& algorithm, void* workspace,
                                        Stream stream) {
  args.rows = rows;
  const size_t bytes =
      static_cast<size_t>(rows) * static_cast<size_t>(args.y_stride) * dtype_size(args.out_type);
  auto* sum = reinterpret_cast<uint64_t*>(static_cast<char*>(workspace) + kCublasLtBytes - 256);
  cudaMemsetAsync(args.y, 0, bytes, stream);
  // The library gets its part of the workspace but for the 256 bytes of the hash.
  if (!library.multiply(args, algorithm, args.y, workspace, stream, kCublasLtBytes - 256).ok())
    return std::optional<uint64_t>();
  cudaMemsetAsync(sum, 0, sizeof(*sum), stream);
  ESP_RETURN_IF_ERROR(digest(args.y, bytes, sum, stream));
  uint64_t value = 0;
  cudaMemcpyAsync(&value, sum, sizeof(value), cudaMemcpyDeviceToHost, stream);
  ESP_RETURN_IF_ERROR(cuda_status(cudaStreamSynchronize(stream), "linear: tuning"));
  return std::optional(value);
}

}  // namespace

Result<std::vector<CublasLt::Algorithm>> tuning_candidates(const CublasLt& library,
                                                           const LinearArgs& args) {
  std::vector<CublasLt::Algorithm> out;
  std::vector<int32_t> numbers{args.rows, args.rows + 1};
  if (library.row_invariant() && args.rows < 100) numbers.insert(numbers.end(), {17, 100});
  for (const int32_t rows : numbers) {
    LinearArgs other = args;
    other.rows = rows;
    ESP_ASSIGN_OR_RETURN(const auto proposals, library.propose(other, kProposals));
    for (const auto& proposal : proposals)
      if (std::ranges::none_of(out, [&](const auto& known) {
            return std::memcmp(&known, &proposal, sizeof(known)) == 0;
          }))
        out.push_back(proposal);
  }
  return out;
}

Result<std::vector<CublasLt::Algorithm>> same_bits(const CublasLt& library, const LinearArgs& args,
                                                   int32_t rows,
                                                   std::vector<CublasLt::Algorithm> all,
                                                   void* workspace, Stream stream) {
  LinearArgs plain = args;
  if (args.silu_mul) {  // gate and up together take the room of twice as many rows
    plain.silu_mul = false;
    plain.out_features = 2 * args.out_features;
    plain.y_stride = plain.out_features;
    rows /= 2;
  }
  ESP_ASSIGN_OR_RETURN(const auto first, library.standard(args));
  std::vector<CublasLt::Algorithm> out{first};
  if (rows < kComparedRows / 2) return out;
  const int32_t own_rows = std::min(rows, std::max(1, args.silu_mul ? args.rows / 2 : args.rows));
  ESP_ASSIGN_OR_RETURN(const auto wanted, bits_of(library, plain, rows, first, workspace, stream));
  ESP_ASSIGN_OR_RETURN(const auto own, bits_of(library, plain, own_rows, first, workspace, stream));
  for (const auto& algorithm : all) {
    ESP_ASSIGN_OR_RETURN(const auto bits,
                         bits_of(library, plain, rows, algorithm, workspace, stream));
    if (!bits || bits != wanted) continue;
    ESP_ASSIGN_OR_RETURN(const auto at_own,
                         bits_of(library, plain, own_rows, algorithm, workspace, stream));
    if (at_own && at_own == own) out.push_back(algorithm);
  }
  return out;
}

}  // namespace espalier::kernels::cuda
