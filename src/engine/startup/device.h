// Which device an engine runs on, and what that has to give.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "engine/config.h"
#include "engine/startup/system_info.h"
#include "tensor/cuda/device.h"

namespace espalier {

struct EngineDevice {
  bool cuda = false;
  std::string name;   // "cpu", or the GPU's: "NVIDIA H200"
  SystemInfo system;  // memory free now: the GPU's own, where one is taken
};

// Looks at the system. For "auto" a GPU that cannot be used is no failure; the log says why the
// CPU is taken. kInvalidArgument for a device that is not known; for "cuda" what open_device()
// says.
Result<EngineDevice> choose_device(
    const std::string& device,
    const std::function<Result<cuda::DeviceInfo>()>& open_device = cuda::open_device);

}  // namespace espalier
