#include "tensor/cuda/releasable_buffer.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/check.h"
#include "base/log.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/error.h"

namespace espalier::cuda {
namespace {

// The driver's functions, through the runtime, so that nothing links the driver.
struct Driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free_address = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
};

template <typename Function>
Status find(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  ESP_RETURN_IF_ERROR(to_status(
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result), name));
  if (found == nullptr)
    return error(StatusCode::kUnavailable, "the driver has no {}: install a newer one", name);
  function = reinterpret_cast<Function>(found);
  return Status();
}

Result<Driver> find_driver() {
  Driver d;
  ESP_RETURN_IF_ERROR(find("cuMemGetAllocationGranularity", d.granularity));
  ESP_RETURN_IF_ERROR(find("cuMemAddressReserve", d.reserve));
  ESP_RETURN_IF_ERROR(find("cuMemAddressFree", d.free_address));
  ESP_RETURN_IF_ERROR(find("cuMemCreate", d.create));
  ESP_RETURN_IF_ERROR(find("cuMemRelease", d.release));
  ESP_RETURN_IF_ERROR(find("cuMemMap", d.map));
  ESP_RETURN_IF_ERROR(find("cuMemUnmap", d.unmap));
  ESP_RETURN_IF_ERROR(find("cuMemSetAccess", d.set_access));
  return d;
}

const Result<Driver>& driver() {
  static const Result<Driver> found = find_driver();
  return found;
}

Status to_driver_status(CUresult code, std::string_view what) {
  if (code == CUDA_SUCCESS) return Status();
  return error(StatusCode::kInternal, "{}: the driver's error {}", what, static_cast<int>(code));
}

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = device;
  prop.allocFlags.gpuDirectRDMACapable = 0;
  return prop;
}

double gib_of(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

}  // namespace

Result<std::unique_ptr<ReleasableBuffer>> ReleasableBuffer::allocate(int64_t size_bytes,
                                                                     std::string_view what) {
  std::unique_ptr<ReleasableBuffer> buffer(new ReleasableBuffer(size_bytes, what));
  if (size_bytes <= 0) return buffer;
  ESP_RETURN_IF_ERROR(to_status(cudaFree(nullptr), "open the device"));  // makes its context
  if (!driver()) return fail(driver().error());
  buffer->device_ = current_device();
  const CUmemAllocationProp prop = properties(buffer->device_);
  size_t granule = 0;
  ESP_RETURN_IF_ERROR(
      to_driver_status(driver()->granularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                       "ask for the granularity of device memory"));
  buffer->mapped_bytes_ = (static_cast<size_t>(size_bytes) + granule - 1) / granule * granule;
  CUdeviceptr address = 0;
  ESP_RETURN_IF_ERROR(to_driver_status(
      driver()->reserve(&address, buffer->mapped_bytes_, granule, 0, 0),
      fmt::format("reserve {:.2f} GiB of addresses for {}", gib_of(size_bytes), what)));
  buffer->address_ = address;
  ESP_RETURN_IF_ERROR(buffer->restore());
  return buffer;
}

Status ReleasableBuffer::open() const {
  std::vector<CUmemAccessDesc> access;
  const auto add = [&](int device) {
    access.push_back(
        {.location = properties(device).location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  };
  add(device_);
  for (const int32_t device : shared_with_) add(device);
  return to_driver_status(
      driver()->set_access(address_, mapped_bytes_, access.data(), access.size()),
      "open device memory");
}

Status ReleasableBuffer::share(std::span<const int32_t> devices) {
  if (address_ == 0) return Status();
  ESP_CHECK(!is_released());
  for (const int32_t device : devices)
    if (device != device_) shared_with_.push_back(device);
  return open();
}

ReleasableBuffer::~ReleasableBuffer() {
  if (address_ == 0) return;
  if (!is_released())
    if (const Status status = release(); !status.ok())
      log_error("device memory not given back what=\"{}\" reason=\"{}\"", what_, status.message());
  driver()->free_address(address_, mapped_bytes_);
}

Status ReleasableBuffer::release() {
  if (address_ == 0) return Status();
  ESP_CHECK(!is_released());
  ESP_RETURN_IF_ERROR(
      to_driver_status(driver()->unmap(address_, mapped_bytes_), "unmap device memory"));
  return to_driver_status(driver()->release(std::exchange(handle_, 0)), "release device memory");
}

Status ReleasableBuffer::restore() {
  if (address_ == 0) return Status();
  ESP_CHECK(is_released());
  const CUmemAllocationProp prop = properties(device_);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult code = driver()->create(&handle, mapped_bytes_, &prop, 0);
  if (code == CUDA_ERROR_OUT_OF_MEMORY) {
    const auto memory = read_device_memory();
    return error(StatusCode::kResourceExhausted,
                 "no device memory for {}: it takes {:.2f} GiB and {:.2f} GiB are free", what_,
                 gib_of(size_bytes_), memory ? gib_of(memory->free_bytes) : 0.0);
  }
  ESP_RETURN_IF_ERROR(to_driver_status(code, fmt::format("allocate {}", what_)));
  Status status =
      to_driver_status(driver()->map(address_, mapped_bytes_, 0, handle, 0), "map device memory");
  if (!status.ok()) {
    driver()->release(handle);
    return status;
  }
  if (status = open(); !status.ok()) {
    driver()->unmap(address_, mapped_bytes_);
    driver()->release(handle);
    return status;
  }
  handle_ = handle;
  return Status();
}

}  // namespace espalier::cuda
