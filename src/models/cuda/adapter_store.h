// The LoRA adapters of a decoder in device memory: one block, taken at start, from which each
// adapter has a range. Adapters are loaded and unloaded beside running steps, by a stream and
// pinned memory of the store's own.
//
// Thread-safe. The range of an adapter that was unloaded is used again when the steps that may name
// it have ended: the executor states which steps have been launched and which have ended.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "checkpoint/peft_adapter.h"
#include "kernels/lora/cuda.h"
#include "models/cuda/adapted_layers.h"
#include "models/cuda/free_ranges.h"
#include "models/model.h"
#include "seams/forward_batch.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"
#include "tensor/dtype.h"

namespace espalier {

// Writes adjacent bytes of device memory through two pinned buffers: one is filled while the other
// is copied. Not thread-safe.
class DeviceWriter {
 public:
  static Result<DeviceWriter> create();

  // Where the next bytes go.
  void begin(std::byte* device) { device_ = device; }
  // Room for the next `size` bytes, which the caller fills at once. REQUIRES: at most kHalfBytes.
  Result<std::byte*> next(int64_t size);
  // Waits until all is there.
  Status finish();
  static constexpr int64_t kHalfBytes = int64_t{8} << 20;

 private:
  Status flush();

  cuda::Stream stream_;
  cuda::PinnedBuffer buffer_;
  std::array<cuda::Event, 2> copied_;
  int half_ = 0;
  int64_t filled_ = 0;  // of the half
  std::byte* device_ = nullptr;
};

class CudaAdapterStore {
 public:
  // matrices: borrowed. type: of the factors. bytes: of all adapters together.
  static Result<std::unique_ptr<CudaAdapterStore>> create(const AdaptedMatrices& matrices,
                                                          DType type, int64_t bytes);
  int64_t size_bytes() const { return block_.size_bytes(); }

  // As Model::load_adapter(). kResourceExhausted where no range is large enough.
  Result<AdapterInfo> load(AdapterId id, const std::filesystem::path& folder, int32_t rank_max);
  void unload(AdapterId id);

  // A step is about to be launched, and the oldest one in flight has ended. What find() returns in
  // between is valid until then.
  void begin_step();
  void end_step();
  // Parts of each adapter, for LoraTile::parts: null where it is not loaded.
  void find(std::span<const AdapterId> ids, std::span<const kernels::cuda::LoraPart*> parts);

 private:
  struct Range {
    int64_t begin = 0, size = 0;
  };
  struct Retired {
    Range range;
    uint64_t last_step = 0;  // that may name the adapter, counted as launched_
  };
  CudaAdapterStore(const AdaptedMatrices& matrices, DType type, cuda::DeviceBuffer block,
                   DeviceWriter writer);
  Result<Range> take(int64_t size);
  void give_back_retired();  // REQUIRES: mutex_ is locked

  const AdaptedMatrices& matrices_;
  const DType type_;
  const int32_t device_;
  const cuda::DeviceBuffer block_;

  std::mutex load_mutex_;  // of writer_; locked before mutex_
  DeviceWriter writer_;

  std::mutex mutex_;
  std::condition_variable step_ended_;
  FreeRanges free_;
  std::unordered_map<AdapterId, Range> loaded_;
  std::vector<Retired> retired_;
  uint64_t launched_ = 0, ended_ = 0;  // steps
};

}  // namespace espalier
