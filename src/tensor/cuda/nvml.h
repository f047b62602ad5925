// What the driver's management library (NVML, as nvidia-smi shows it) says of the GPUs. The library
// comes with the driver and is loaded when it is asked for, so a program runs without it, and a
// build needs no CUDA.
// Source: https://docs.nvidia.com/deploy/nvml-api
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace espalier::cuda {

// One GPU now. What this GPU does not report is not there.
struct GpuFigures {
  int32_t index = 0;  // as nvidia-smi counts: CUDA_VISIBLE_DEVICES does not change it
  std::string name;
  int64_t memory_used_bytes = 0, memory_total_bytes = 0;  // of all programs
  std::optional<double> utilisation;  // share of the last sample in which a kernel ran, 0 to 1
  std::optional<double> temperature_celsius;
  std::optional<double> power_watts, power_limit_watts;
};

// Move-only. Used by one thread at a time.
class Nvml {
 public:
  // kNotFound where there is no such library, kUnavailable where it finds no driver. May take some
  // hundred milliseconds.
  static Result<Nvml> open(const std::string& library = "libnvidia-ml.so.1");
  Nvml(Nvml&&) noexcept;
  ~Nvml();

  // All GPUs that can be read; some milliseconds each.
  std::vector<GpuFigures> read() const;
  Result<std::string> driver_version() const;  // "550.54.15"

 private:
  struct Library;
  explicit Nvml(std::unique_ptr<Library> library);
  std::unique_ptr<Library> library_;
};

}  // namespace espalier::cuda
