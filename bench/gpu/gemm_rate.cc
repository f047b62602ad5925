#include "gemm_rate.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "kernels/linear/cuda.h"
#include "kernels/random/cuda.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier::bench {

namespace kc = kernels::cuda;

Result<double> gemm_rate(const DecoderSpec& spec, int32_t rows) {
  const MlpSpec& mlp = spec.layers[0].mlp;
  const int32_t hidden = spec.hidden_size, inner = (mlp.intermediate_size + 7) / 8 * 8;
  const int32_t shapes[][2] = {{hidden, 3 * hidden},
                               {hidden, hidden},
                               {hidden, (mlp.gated ? 2 : 1) * inner},
                               {inner, hidden}};
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  ESP_ASSIGN_OR_RETURN(auto linear, kc::Linear::create({.cache_folder = {}}));
  const int64_t widest = std::max(3 * hidden, 2 * inner);
  std::vector<kc::LinearArgs> gemms;
  for (const auto& [in, out] : shapes) {
    gemms.push_back(
        {.rows = rows, .in_features = in, .out_features = out, .x_stride = in, .y_stride = out});
  }
  const auto workspace_bytes = static_cast<int64_t>(linear->workspace_bytes(gemms, rows));
  const auto allocate = [&](int64_t elements) -> Result<cuda::DeviceBuffer> {
    ESP_ASSIGN_OR_RETURN(auto buffer, cuda::DeviceBuffer::allocate(2 * elements, "GEMMs"));
    ESP_RETURN_IF_ERROR(
        kc::draw({.out = buffer.data(), .count = elements}, {.stream = stream.get()}));
    return buffer;
  };
  ESP_ASSIGN_OR_RETURN(const auto x, allocate(rows * widest));
  ESP_ASSIGN_OR_RETURN(const auto y, allocate(rows * widest));
  ESP_ASSIGN_OR_RETURN(const auto weights, allocate(widest * widest));
  ESP_ASSIGN_OR_RETURN(const auto workspace, allocate(workspace_bytes / 2 + 1));
  double operations = 0;
  for (kc::LinearArgs& args : gemms) {
    args.x = x.data(), args.y = y.data(), args.weights = weights.data();
    operations += 2.0 * rows * args.in_features * args.out_features;
  }
  const auto size = static_cast<size_t>(workspace_bytes);
  ESP_RETURN_IF_ERROR(linear->tune(gemms, workspace.data(), size, stream.get()));
  constexpr int kTurns = 30;
  std::chrono::steady_clock::time_point start;
  for (int turn = -5; turn < kTurns; ++turn) {
    if (turn == 0) {
      ESP_RETURN_IF_ERROR(stream.synchronize());
      start = std::chrono::steady_clock::now();
    }
    for (const kc::LinearArgs& args : gemms)
      ESP_RETURN_IF_ERROR(linear->run(args, workspace.data(), size, {.stream = stream.get()}));
  }
  ESP_RETURN_IF_ERROR(stream.synchronize());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return operations * kTurns / seconds.count();
}

}  // namespace espalier::bench
