#include "tensor/cuda/nvml.h"

#include <dlfcn.h>

#include <array>

namespace espalier::cuda {
namespace {

// NVML's own types, as its interface keeps them stable.
using Device = void*;
struct MemoryInfo {
  unsigned long long total, free, used;  // bytes
};
struct UtilizationRates {
  unsigned gpu, memory;  // per cent
};
constexpr int kTemperatureOfGpu = 0;
constexpr unsigned kTextSize = 96;  // of names and versions

}  // namespace

struct Nvml::Library {
  ~Library() {
    if (started) shutdown();
    if (handle != nullptr) ::dlclose(handle);
  }
  template <typename Function>
  bool find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(handle, name));
    return function != nullptr;
  }

  void* handle = nullptr;
  bool started = false;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*device_count)(unsigned*) = nullptr;
  int (*device_by_index)(unsigned, Device*) = nullptr;
  int (*device_name)(Device, char*, unsigned) = nullptr;
  int (*memory)(Device, MemoryInfo*) = nullptr;
  int (*utilization)(Device, UtilizationRates*) = nullptr;
  int (*temperature)(Device, int, unsigned*) = nullptr;
  int (*power)(Device, unsigned*) = nullptr;        // milliwatts
  int (*power_limit)(Device, unsigned*) = nullptr;  // milliwatts
};

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Nvml::Nvml(Nvml&&) noexcept = default;
Nvml::~Nvml() = default;

Result<Nvml> Nvml::open(const std::string& name) {
  auto library = std::make_unique<Library>();
  Library& l = *library;
  l.handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (l.handle == nullptr)
    return fail(
        error(StatusCode::kNotFound, "{} is not there; it comes with NVIDIA's driver", name));
  const bool whole = l.find(l.init, "nvmlInit_v2") && l.find(l.shutdown, "nvmlShutdown") &&
                     l.find(l.driver_version, "nvmlSystemGetDriverVersion") &&
                     l.find(l.device_count, "nvmlDeviceGetCount_v2") &&
                     l.find(l.device_by_index, "nvmlDeviceGetHandleByIndex_v2") &&
                     l.find(l.device_name, "nvmlDeviceGetName") &&
                     l.find(l.memory, "nvmlDeviceGetMemoryInfo") &&
                     l.find(l.utilization, "nvmlDeviceGetUtilizationRates") &&
                     l.find(l.temperature, "nvmlDeviceGetTemperature") &&
                     l.find(l.power, "nvmlDeviceGetPowerUsage") &&
                     l.find(l.power_limit, "nvmlDeviceGetEnforcedPowerLimit");
  if (!whole) return fail(error(StatusCode::kUnavailable, "{} is no NVML that is known", name));
  if (const int code = l.init(); code != 0)
    return fail(error(StatusCode::kUnavailable,
                      "{} finds no driver (code {}): is its kernel module loaded, and is the GPU "
                      "given to this container?",
                      name, code));
  l.started = true;
  return Nvml(std::move(library));
}

std::vector<GpuFigures> Nvml::read() const {
  const Library& l = *library_;
  std::vector<GpuFigures> out;
  unsigned count = 0;
  if (l.device_count(&count) != 0) return out;
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    MemoryInfo memory{};
    std::array<char, kTextSize> name{};
    if (l.device_by_index(i, &device) != 0 || l.memory(device, &memory) != 0 ||
        l.device_name(device, name.data(), kTextSize) != 0)
      continue;
    GpuFigures& gpu = out.emplace_back();
    gpu.index = static_cast<int32_t>(i);
    gpu.name = name.data();
    gpu.memory_used_bytes = static_cast<int64_t>(memory.used);
    gpu.memory_total_bytes = static_cast<int64_t>(memory.total);
    UtilizationRates rates{};
    unsigned value = 0;
    if (l.utilization(device, &rates) == 0) gpu.utilisation = rates.gpu / 100.0;
    if (l.temperature(device, kTemperatureOfGpu, &value) == 0) gpu.temperature_celsius = value;
    if (l.power(device, &value) == 0) gpu.power_watts = value / 1e3;
    if (l.power_limit(device, &value) == 0) gpu.power_limit_watts = value / 1e3;
  }
  return out;
}

Result<std::string> Nvml::driver_version() const {
  std::array<char, kTextSize> version{};
  if (const int code = library_->driver_version(version.data(), kTextSize); code != 0)
    return fail(
        error(StatusCode::kUnavailable, "the driver does not report its version (code {})", code));
  return std::string(version.data());
}

}  // namespace espalier::cuda
