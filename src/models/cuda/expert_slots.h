// The slots that experts lie in on one GPU, where some lie in several or change places: which
// expert each slot of all ranks has, for kernels, and copies between slots of ranks.
//
// Not thread-safe. Borrows specs and weights, which outlive it; calls come from threads whose
// current device is theirs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "kernels/router/cuda.h"
#include "models/cuda/weights.h"
#include "models/decoder_spec.h"
#include "models/expert_placement.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

class CudaExpertSlots {
 public:
  // whole: of all ranks; spec: of this rank's part, whose slots set() changes, too. Null where
  // experts are slots.
  static Result<std::unique_ptr<CudaExpertSlots>> create(DecoderSpec& whole, DecoderSpec& spec,
                                                         const CudaWeights& weights);

  // Of a layer with experts; the positions are the step's.
  kernels::cuda::Replicas replicas(int32_t layer) const;

  // Room for an expert beside those in slots, which is the spare slot; `ranks`: the devices of all,
  // which get access to the weights.
  Status reserve_moves(std::span<const int32_t> ranks);
  // Enqueues a copy between slots of this GPU and of `source`, whose memory it reaches.
  // REQUIRES: reserve_moves() of both; no step runs on either.
  Status copy(int32_t layer, const SlotCopy& copy, const CudaExpertSlots& source,
              const cuda::Stream& stream);
  // Which experts the slots of a layer have in steps from here on. REQUIRES: no step runs. Returns
  // when the device has them.
  Status set(int32_t layer, const ExpertSlots& slots, const cuda::Stream& stream);

 private:
  CudaExpertSlots(DecoderSpec& whole, DecoderSpec& spec, const CudaWeights& weights)
      : whole_(whole), spec_(spec), weights_(weights) {}
  Status upload(int32_t layer, const cuda::Stream& stream);
  const ExpertsSpec& experts(int32_t layer) const {
    return *spec_.layers[static_cast<size_t>(layer)].experts;
  }
  int32_t* table(int32_t layer) const {
    return reinterpret_cast<int32_t*>(tables_.data()) + layer * table_size_;
  }
  struct Part;
  // Where a weight of the expert in a slot lies; no bytes: the model has no such weight.
  Part part(int32_t layer, int32_t slot, size_t index) const;

  DecoderSpec& whole_;
  DecoderSpec& spec_;
  const CudaWeights& weights_;
  cuda::DeviceBuffer tables_;  // [layers, table_size_]: replica_table()
  int64_t table_size_ = 0;     // of the layer with the most slots
  cuda::DeviceBuffer spare_;   // of the parts of the largest expert
};

}  // namespace espalier
