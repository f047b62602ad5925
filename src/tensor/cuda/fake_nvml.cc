// A library with NVML's symbols for nvml_test.cc: three GPUs, of which the second cannot be read
// and the third reports less.
#include <cstdint>
#include <cstring>

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* out, unsigned size) {
  std::strncpy(out, "550.54.15", size);
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<uintptr_t>(index + 1));
  return index == 1 ? 15 : 0;  // NVML_ERROR_GPU_IS_LOST
}
int nvmlDeviceGetName(void* device, char* out, unsigned size) {
  std::strncpy(out, reinterpret_cast<uintptr_t>(device) == 1 ? "NVIDIA H100" : "NVIDIA T4", size);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* total_free_used) {
  total_free_used[0] = 80'000'000'000;
  total_free_used[1] = 20'000'000'000;
  total_free_used[2] = 60'000'000'000;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* gpu_memory) {
  gpu_memory[0] = 87;
  gpu_memory[1] = 40;
  return 0;
}
int nvmlDeviceGetTemperature(void*, int sensor, unsigned* out) {
  *out = 64;
  return sensor;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* out) {
  *out = 412'500;
  return reinterpret_cast<uintptr_t>(device) == 1 ? 0 : 3;  // NVML_ERROR_NOT_SUPPORTED
}
int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned* out) {
  *out = 700'000;
  return reinterpret_cast<uintptr_t>(device) == 1 ? 0 : 3;
}

}  // extern "C"
