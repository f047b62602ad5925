#include "models/cuda/tensor_digests.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "base/sha256.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {
namespace {

constexpr int64_t kChunkBytes = int64_t{32} << 20;
constexpr unsigned kThreadsMax = 8;

struct DeviceBytes {
  const std::byte* data = nullptr;
  int64_t size = 0;
};
using Parts = std::map<std::string, std::vector<DeviceBytes>>;  // of a tensor, in their order

// Notes where each tensor lies.
class TensorLister final : public CudaTensorLoader {
 public:
  TensorLister(const std::byte* block, int64_t size) : block_(block), size_(size) {}

  Status put(const TensorPart& part, DType type, std::byte* device) override {
    const int64_t count = part.slice.value_or(TensorSlice::whole(part.shape)).num_elements();
    const bool in_block = device >= block_ && device < block_ + size_;
    if (!in_block) return refuse(part.name);
    std::vector<DeviceBytes>& parts = parts_[part.name];
    const bool again =
        std::ranges::any_of(parts, [&](const DeviceBytes& other) { return other.data == device; });
    if (!again) parts.push_back({device, count * static_cast<int64_t>(dtype_size(type))});
    return Status();
  }
  WeightCodes stored_codes(const std::string&) const override { return {}; }
  Status put_e4m3(const TensorPart& part, std::byte*, float*) override { return refuse(part.name); }
  Status put_block_e4m3(const TensorPart& part, std::byte*, float*) override {
    return refuse(part.name);
  }
  Status put_int4(const TensorPart& part, const kernels::cuda::Int4Destination&) override {
    return refuse(part.name);
  }
  Status put_mxfp4(const std::string& name, int64_t,
                   const kernels::cuda::Mxfp4Destination&) override {
    return refuse(name);
  }
  Status put_rounded_mxfp4(const TensorPart& part,
                           const kernels::cuda::Mxfp4Destination&) override {
    return refuse(part.name);
  }
  Status put_bytes(const std::string& name, std::span<const int64_t>, std::byte*) override {
    return refuse(name);
  }
  Status start() override { return Status(); }
  Status finish() override { return Status(); }

  const Parts& parts() const { return parts_; }

 private:
  static Status refuse(const std::string& name) {
    return error(StatusCode::kUnimplemented,
                 "tensor '{}' is held in codes, or in another order than its own, so its digest is "
                 "not taken",
                 name);
  }

  const std::byte* const block_;
  const int64_t size_;
  Parts parts_;
};

// Of one thread.
class Hasher {
 public:
  static Result<Hasher> create() {
    Hasher hasher;
    ESP_ASSIGN_OR_RETURN(hasher.chunk_, cuda::PinnedBuffer::allocate(kChunkBytes, "digests"));
    ESP_ASSIGN_OR_RETURN(hasher.stream_, cuda::Stream::create());
    return hasher;
  }

  Result<Sha256::Digest> digest(const std::vector<DeviceBytes>& parts) {
    Sha256 hash;
    for (const DeviceBytes& part : parts)
      for (int64_t at = 0; at < part.size; at += kChunkBytes) {
        const int64_t count = std::min(kChunkBytes, part.size - at);
        ESP_RETURN_IF_ERROR(cuda::copy_to_host(chunk_.data(), part.data + at, count, *stream_));
        ESP_RETURN_IF_ERROR(stream_->synchronize());
        hash.update(std::span(chunk_.data(), static_cast<size_t>(count)));
      }
    return hash.finish();
  }

 private:
  cuda::PinnedBuffer chunk_;
  std::optional<cuda::Stream> stream_;
};

// Takes tensors in turn until there are none.
Status hash_some(const Parts& parts, int device, std::atomic<size_t>& next,
                 std::vector<TensorDigest>& out) {
  ESP_RETURN_IF_ERROR(cuda::use_device(device));
  ESP_ASSIGN_OR_RETURN(Hasher hasher, Hasher::create());
  for (size_t i = next++; i < out.size(); i = next++) {
    ESP_ASSIGN_OR_RETURN(out[i].digest, hasher.digest(parts.at(out[i].name)));
  }
  return Status();
}

}  // namespace

Result<std::vector<TensorDigest>> cuda_tensor_digests(const PlacedWeights& placed) {
  TensorLister lister(placed.weights.block(), placed.weights.size_bytes());
  ESP_RETURN_IF_ERROR(visit_tensors(placed, lister));
  std::vector<TensorDigest> out;
  for (const auto& [name, parts] : lister.parts()) out.push_back({name, {}});
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  Status failed;
  const auto work = [&, device = cuda::current_device()] {
    Status status = hash_some(lister.parts(), device, next, out);
    const std::lock_guard lock(mutex);
    if (failed.ok()) failed = std::move(status);
  };
  std::vector<std::jthread> threads;
  const unsigned count = std::clamp(std::thread::hardware_concurrency(), 1u, kThreadsMax);
  for (unsigned i = 0; i < count; ++i) threads.emplace_back(work);
  threads.clear();
  ESP_RETURN_IF_ERROR(failed);
  return out;
}

}  // namespace espalier
