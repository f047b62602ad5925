#include "engine/startup/device.h"

#include <algorithm>

#include "base/log.h"

namespace espalier {
namespace {

// The memory left after weights and workspaces is the KV cache's: a GPU is given to its server.
constexpr double kCudaMemFraction = 1.0;
// The processors wait for the GPU; the scheduler's, the executor's and the server's threads take
// some of them. More than eight are never worth waking: what 256 sequences need is then done.
constexpr int32_t kMaskThreadsMax = 8;
// Prompt tokens of one step: about 0.2 seconds of an 8 B model.
constexpr int32_t kCudaChunk = 8192;

}  // namespace

Result<EngineDevice> choose_device(const std::string& device,
                                   const std::function<Result<cuda::DeviceInfo>()>& open_device) {
  if (device != "auto" && device != "cpu" && device != "cuda") {
    return fail(invalid_argument("device is '{}', but must be auto, cpu or cuda", device));
  }
  EngineDevice out{.name = "cpu", .system = read_system_info()};
  if (device == "cpu") return out;
  const auto info = open_device();
  if (!info) {
    if (device == "cuda") return fail(info.error());
    log_info("device=cpu reason=\"{}\"", info.error().message());
    return out;
  }
  ESP_ASSIGN_OR_RETURN(const cuda::DeviceMemory memory, cuda::read_device_memory());
  out.cuda = true;
  out.name = info->name;
  out.system.available_bytes = memory.free_bytes;
  out.system.mem_fraction = kCudaMemFraction;
  out.system.prefill_chunk = kCudaChunk;
  out.system.mask_threads = std::clamp(out.system.num_cpus / 2, 1, kMaskThreadsMax);
  return out;
}

}  // namespace espalier
