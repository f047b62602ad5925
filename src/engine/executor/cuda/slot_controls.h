// The control vector of each slot in device memory, where the layers of steps find it.
//
// Not thread-safe: the executor's thread enqueues. Owns the memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "models/model.h"
#include "seams/control_use.h"
#include "seams/forward_batch.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

class SlotControls {
 public:
  // Null where the model has no control vectors.
  static Result<std::unique_ptr<SlotControls>> create(const ModelInfo& info, int32_t max_slots);

  // The slots' controls of steps that are enqueued from here on.
  Status init(const std::vector<SlotInit>& inits, const cuda::Stream& stream);
  // Whether any of the batch's entries has one.
  bool any(const ForwardBatch& batch) const;
  const ControlUse* device() const { return reinterpret_cast<const ControlUse*>(device_.data()); }

 private:
  explicit SlotControls(int32_t max_slots) : known_(static_cast<size_t>(max_slots)) {}

  std::vector<ControlUse> known_;  // of each slot
  cuda::DeviceBuffer device_;      // the same
};

}  // namespace espalier
