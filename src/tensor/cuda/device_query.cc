#include "tensor/cuda/device_query.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <tuple>

namespace espalier::cuda {
namespace {

constexpr int32_t kOldestMajor = 8;

std::string version(int32_t code) { return fmt::format("{}.{}", code / 1000, code % 1000 / 10); }

template <typename... Args>
Status unavailable(fmt::format_string<Args...> format, Args&&... args) {
  return error(StatusCode::kUnavailable, format, std::forward<Args>(args)...);
}

// How well one of the architectures suits a device: 0: not at all, 1: from PTX, 2: as machine code.
int fit(std::string_view architecture, int32_t device, DeviceCode& code) {
  const size_t dash = architecture.find('-');
  const std::string_view kind =
      dash == std::string_view::npos ? std::string_view() : architecture.substr(dash + 1);
  std::string_view number = architecture.substr(0, dash);
  code.own = !number.empty() && std::isalpha(static_cast<unsigned char>(number.back())) != 0;
  if (code.own) number.remove_suffix(1);
  if (std::from_chars(number.begin(), number.end(), code.architecture).ec != std::errc()) return 0;
  if (code.own) return device == code.architecture ? 2 : 0;
  if (device < code.architecture) return 0;
  if (kind != "virtual" && device / 10 == code.architecture / 10) return 2;
  return kind != "real" ? 1 : 0;
}

}  // namespace

std::optional<DeviceCode> code_for(std::string_view architectures, int32_t major, int32_t minor) {
  std::optional<DeviceCode> best;
  std::tuple<int, int32_t, bool> best_rank{0, 0, false};
  while (!architectures.empty()) {
    const size_t end = std::min(architectures.find(','), architectures.size());
    DeviceCode code;
    const int fits = fit(architectures.substr(0, end), 10 * major + minor, code);
    const std::tuple rank{fits, code.architecture, code.own};
    if (fits > 0 && rank > best_rank) best = code, best_rank = rank;
    architectures.remove_prefix(std::min(end + 1, architectures.size()));
  }
  return best;
}

Status check_device(const DeviceQuery& query) {
  using Found = DeviceQuery::Found;
  if (query.driver_version == 0)
    return unavailable("no NVIDIA driver was found; install one, or use --device cpu");
  if (query.found == Found::kOldDriver)
    return unavailable(
        "the NVIDIA driver supports CUDA {} and this build needs {}; update the driver, or use "
        "--device cpu",
        version(query.driver_version), version(query.runtime_version));
  if (query.found == Found::kOtherError)
    return unavailable(
        "CUDA cannot look for devices: {}; see what nvidia-smi says, or use --device cpu",
        query.error);
  if (query.found == Found::kNone || query.num_devices == 0)
    return unavailable(
        "no NVIDIA device is visible (see CUDA_VISIBLE_DEVICES and nvidia-smi); or use --device "
        "cpu");
  if (query.index < 0 || query.index >= query.num_devices)
    return unavailable(
        "there is no GPU {}: CUDA finds {} (their indices begin at 0, and CUDA_VISIBLE_DEVICES "
        "hides others); choose one of these, or use --device cpu",
        query.index, query.num_devices);
  if (query.compute_major < kOldestMajor)
    return unavailable(
        "the device has compute capability {}.{} and {}.0 is the oldest supported; use --device "
        "cpu",
        query.compute_major, query.compute_minor, kOldestMajor);
  if (!code_for(query.architectures, query.compute_major, query.compute_minor))
    return unavailable(
        "the device has compute capability {}.{} and this build has code for {} alone; build with "
        "-DESPALIER_CUDA_ARCHITECTURES={}{}, or use --device cpu",
        query.compute_major, query.compute_minor, query.architectures, query.compute_major,
        query.compute_minor);
  return Status();
}

}  // namespace espalier::cuda
