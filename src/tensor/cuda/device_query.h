// Whether the device that CUDA reports can be used; separate from CUDA itself, so that every
// failure can be tested on any system. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace espalier::cuda {

// What CUDA's runtime reports of this system. Versions in its numbering: 1000 major + 10 minor.
struct DeviceQuery {
  enum class Found : uint8_t {
    kDevices,     // it looked, and found num_devices
    kOldDriver,   // the driver is older than this build's CUDA
    kNone,        // no device
    kOtherError,  // `error` says what
  };
  int32_t driver_version = 0;   // that the driver supports; 0: there is no driver
  int32_t runtime_version = 0;  // of this build
  Found found = Found::kNone;
  int32_t num_devices = 0;
  int32_t index = 0;  // of the device that is to be used
  std::string error;
  int32_t compute_major = 0, compute_minor = 0;  // of that device
  std::string architectures;                     // that this build has code for: see code_for
};

// Returns ok, or kUnavailable with what is missing and what to do.
Status check_device(const DeviceQuery& query);

// The code of a build that a device runs.
struct DeviceCode {
  int32_t architecture = 0;  // 80, 90 ...: kernels may use what that has, whatever the device has
  bool own = false;          // with what no other architecture has ("90a")
};

// Of code for `architectures` (CMake's notation, with commas: "80-virtual,90a-real"), what runs on
// a device: its own machine code before PTX, and the newest of these; nothing: none does. Code
// of a device ("real") runs on its own major version from its minor one on, that with a letter
// ("90a") on its own version alone; PTX ("virtual") on all versions from its own on; without either
// word it is both.
std::optional<DeviceCode> code_for(std::string_view architectures, int32_t major, int32_t minor);

}  // namespace espalier::cuda
