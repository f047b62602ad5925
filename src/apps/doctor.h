// What `espalier doctor` looks at: each check says what it found and, where that stands in the way
// of serving, what to do.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tensor/cuda/device.h"
#include "tensor/cuda/nvml.h"

namespace espalier::apps {

enum class Health : uint8_t {
  kGood,
  kNote,     // serving works; something could be better, or is not there and not needed
  kProblem,  // serving does not work as it was asked for
};

struct Finding {
  std::string what;  // "GPU"
  Health health = Health::kGood;
  std::string found;   // a sentence without a full stop
  std::string advice;  // what to do; empty: nothing
};

struct DoctorOptions {
  std::string host = "127.0.0.1";
  int port = 30000;
  std::filesystem::path model_path;  // empty: the model that ships
  bool offline = false;              // do not ask the hub
};

// Pure parts, for tests.
Finding check_gpu(int32_t num_devices, const Result<cuda::DeviceInfo>& opened, int64_t free_bytes);
// version: as NVML reports it. The library comes with the driver, and containers may lack it.
Finding check_driver(const Result<std::string>& version, int32_t num_devices);
// A GPU beside the one that check_gpu() opened, as NVML sees it.
Finding check_other_gpu(const cuda::GpuFigures& gpu);
Finding check_memory(int64_t available_bytes, int64_t total_bytes);
Finding check_open_files(uint64_t soft, uint64_t hard);
// version: as NCCL numbers it, 10000 major + 100 minor + patch; nothing: the library is not there.
Finding check_nccl(std::optional<int> version, int32_t num_devices);

std::vector<Finding> examine(const DoctorOptions& options);

}  // namespace espalier::apps
