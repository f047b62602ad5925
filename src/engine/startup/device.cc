#include "engine/startup/device.h"

#include <algorithm>
#include <charconv>

#include "base/log.h"

namespace espalier {
namespace {

// The memory left after weights and workspaces is the KV cache's: a GPU is given to its server.
constexpr double kCudaMemFraction = 1.0;
// The processors wait for the GPU; the scheduler's, the executor's and the server's threads take
// some of them. More than eight are never worth waking: what 256 sequences need is then done.
constexpr int32_t kMaskThreadsMax = 8, kImageThreadsMax = 16;
// Prompt tokens of one step: about 0.2 seconds of an 8 B model.
constexpr int32_t kCudaChunk = 8192;
// A decode step of few requests takes a hundredth of a chunk's time there, and prompts cut to twice
// that would leave most of the device idle.
constexpr double kCudaMixedStepRatio = 0;

}  // namespace

Result<DeviceName> parse_device(std::string_view device) {
  constexpr std::string_view kCuda = "cuda:";
  if (device == "auto" || device == "cpu" || device == "cuda") {
    return DeviceName{.kind = std::string(device)};
  }
  int32_t index = 0;
  const char *begin = device.data() + std::min(kCuda.size(), device.size()),
             *end = device.data() + device.size();
  const auto [stop, failed] = std::from_chars(begin, end, index);
  if (!device.starts_with(kCuda) || failed != std::errc() || stop != end || index < 0) {
    return fail(invalid_argument(
        "device is '{}', but must be auto, cpu or cuda, or cuda:N for the GPU N", device));
  }
  return DeviceName{.kind = "cuda", .index = index};
}

Result<EngineDevice> choose_device(
    const std::string& device, int32_t base_gpu_id,
    const std::function<Result<cuda::DeviceInfo>(int32_t)>& open_device) {
  ESP_ASSIGN_OR_RETURN(const DeviceName wanted, parse_device(device));
  if (wanted.index && base_gpu_id != 0 && *wanted.index != base_gpu_id) {
    return fail(invalid_argument(
        "device is '{}' and base_gpu_id is {}: these are two GPUs; leave one of them out", device,
        base_gpu_id));
  }
  EngineDevice out{.name = "cpu", .system = read_system_info()};
  if (wanted.kind == "cpu") return out;
  out.index = wanted.index.value_or(base_gpu_id);
  const auto info = open_device(out.index);
  if (!info) {
    if (wanted.kind == "cuda") return fail(info.error());
    log_info("device=cpu reason=\"{}\"", info.error().message());
    return out;
  }
  ESP_ASSIGN_OR_RETURN(const cuda::DeviceMemory memory, cuda::read_device_memory());
  out.cuda = true;
  out.name = info->name;
  out.system.available_bytes = memory.free_bytes;
  out.system.mem_fraction = kCudaMemFraction;
  out.system.prefill_chunk = kCudaChunk;
  out.system.mixed_step_ratio = out.system.mixed_step_ratio_most = kCudaMixedStepRatio;
  out.system.image_threads = std::clamp(out.system.num_cpus, 4, kImageThreadsMax);
  out.system.mask_threads = std::clamp(out.system.num_cpus / 2, 1, kMaskThreadsMax);
  return out;
}

}  // namespace espalier
