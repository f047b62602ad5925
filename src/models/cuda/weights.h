// A decoder's weights in device memory: one block, row-major matrices (rows of in_features), q, k,
// v and gate, up stacked. A weight is found by its id, as operations of a program name it.
//
// Immutable once loaded, so any thread may read it. Owns the block that all data lies in.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "models/cuda/tensor_loader.h"
#include "models/cuda/weight_placer.h"
#include "models/decoder_spec.h"
#include "models/model.h"
#include "models/weight_id.h"
#include "tensor/cuda/memory.h"
#include "tensor/dtype.h"

namespace espalier {

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
  // Whether some matrices are codes with scales.
  bool has_codes() const { return has_codes_; }
  const float* floats(WeightId id) const { return static_cast<const float*>(at(id).data); }

  int64_t size_bytes() const { return block_.size_bytes(); }
  void set_block(cuda::DeviceBuffer block) { block_ = std::move(block); }
  // When all are placed.
  void note_formats();

 private:
  static size_t index_of(WeightId id);

  DType type_ = DType::kBFloat16;
  bool has_codes_ = false;
  cuda::DeviceBuffer block_;
  std::vector<CudaWeight> table_;  // [1 + layers, kinds]
};

// Weights whose values may still be missing: their memory has zeros until the loader has finished.
// Where the GPU has to convert some of them, all are there at once.
struct PendingCudaWeights {
  CudaWeights weights;
  std::unique_ptr<CudaTensorLoader> loader;  // started
};

// Begins to load the layout's matrices, or their shards, from what `options` name: a checkpoint,
// read and decoded by several threads into pinned buffers that the device copies from meanwhile, or
// weights drawn on the device. kUnimplemented names a type or a shard that the GPU's kernels do not
// read.
// Of `types` the elements' type, e4m3, int4 and, for matrices that are stored in such codes,
// keep_blocks count; GPUs before Hopper refuse the former and have numbers of the latter.
Result<PendingCudaWeights> load_cuda_weights(const DecoderSpec& spec, const WeightLayout& layout,
                                             const WeightTypes& types,
                                             const ModelLoadOptions& options);

}  // namespace espalier
