// Which device an engine runs on, and what that has to give.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/config.h"
#include "engine/startup/system_info.h"
#include "tensor/cuda/device.h"

namespace espalier {

struct EngineDevice {
  bool cuda = false;
  int32_t index = 0;  // of the GPU
  std::string name;   // "cpu", or the GPU's: "NVIDIA H200"
  SystemInfo system;  // memory free now: the GPU's own, where one is taken
};

struct DeviceName {
  std::string kind;              // "auto", "cpu" or "cuda"
  std::optional<int32_t> index;  // of "cuda:N"
};
// kInvalidArgument for any other text.
Result<DeviceName> parse_device(std::string_view device);

// "auto", "cpu", "cuda" (the GPU base_gpu_id) or "cuda:N". A GPU is opened and becomes the thread's
// current device. For "auto" a GPU that cannot be used is no failure; the log says why the CPU is
// taken. kInvalidArgument for a device that is not known, or for two indices; for "cuda" what
// open_device() returns.
Result<EngineDevice> choose_device(
    const std::string& device, int32_t base_gpu_id = 0,
    const std::function<Result<cuda::DeviceInfo>(int32_t)>& open_device = cuda::open_device);

}  // namespace espalier
