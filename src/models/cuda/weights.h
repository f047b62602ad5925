// A decoder's weights in device memory: one block, matrices as the checkpoint has them (rows of
// in_features), q, k, v and gate, up stacked. A weight is found by its id, as operations of a
// program name it.
//
// Immutable once loaded, so any thread may read it. Owns the block that all data lies in.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "models/cuda/tensor_loader.h"
#include "models/decoder_spec.h"
#include "models/model.h"
#include "models/storage_format.h"
#include "models/weight_id.h"
#include "models/weight_layout.h"
#include "tensor/cuda/memory.h"
#include "tensor/dtype.h"

namespace espalier {

// A matrix [out_features, in_features], a stack of them (one for each expert or head), or a vector
// [out_features], with in_features 1. Null data: the model has no such weight. Of a layer norm the
// weight, then the bias.
struct CudaWeight {
  const void* data = nullptr;
  int32_t in_features = 0;
  int32_t out_features = 0;
  int64_t group_stride = 0;  // elements between the matrices of a stack
  StorageFormat format;      // elements of the model's type; of weights that are float32 in
                             // weight_id.h, float32
  Shard shard;               // what this device holds of it
};

class CudaWeights {
 public:
  CudaWeights() = default;
  CudaWeights(DType type, size_t num_layers);

  // Of activations too: kBFloat16 or kFloat32.
  DType type() const { return type_; }
  // REQUIRES: the id's index is a layer of the model, or -1.
  const CudaWeight& at(WeightId id) const { return table_[index_of(id)]; }
  CudaWeight& at(WeightId id) { return table_[index_of(id)]; }
  // Null where there is none, or the id is empty.
  const void* data(WeightId id) const { return at(id).data; }
  const float* floats(WeightId id) const { return static_cast<const float*>(at(id).data); }

  int64_t size_bytes() const { return block_.size_bytes(); }
  void set_block(cuda::DeviceBuffer block) { block_ = std::move(block); }

 private:
  static size_t index_of(WeightId id);

  DType type_ = DType::kBFloat16;
  cuda::DeviceBuffer block_;
  std::vector<CudaWeight> table_;  // [1 + layers, kinds]
};

// Weights whose values may still be missing: their memory holds zeros until the loader has
// finished. Where the checkpoint has some in another order than the GEMMs need, all are there at
// once.
struct PendingCudaWeights {
  CudaWeights weights;
  std::unique_ptr<CudaTensorLoader> loader;  // started
};

// Begins to load what `options` say: a checkpoint, read by several threads into pinned buffers that
// the device copies from meanwhile, or weights drawn on the device. kUnimplemented names a format
// or a shard that the GPU's kernels do not read.
Result<PendingCudaWeights> load_cuda_weights(const DecoderSpec& spec, DType type,
                                             const ModelLoadOptions& options);

}  // namespace espalier
