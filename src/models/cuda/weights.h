// A decoder's weights in device memory: one block, row-major matrices (rows of in_features), q, k,
// v and gate, up stacked. A weight is found by its id, as operations of a program name it.
//
// Immutable once loaded, so any thread may read it. Owns the block that all data lies in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "models/cuda/tensor_loader.h"
#include "models/cuda/weight_placer.h"
#include "models/decoder_spec.h"
#include "models/model.h"
#include "models/weight_id.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/releasable_buffer.h"
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

  int64_t size_bytes() const { return block_ == nullptr ? 0 : block_->size_bytes(); }
  void set_block(std::unique_ptr<cuda::ReleasableBuffer> block) { block_ = std::move(block); }
  // Where all data lies; weights that replace these are written there (CudaWeightUpdate).
  std::byte* block() const { return block_ == nullptr ? nullptr : block_->data(); }
  // The same memory, which may be released while no step runs. REQUIRES: set_block().
  cuda::ReleasableBuffer& memory() const { return *block_; }
  // Whether all weights have the same shapes and formats at the same places.
  bool places_as(const CudaWeights& other) const;
  // When all are placed.
  void note_formats();

 private:
  static size_t index_of(WeightId id);

  DType type_ = DType::kBFloat16;
  bool has_codes_ = false;
  std::unique_ptr<cuda::ReleasableBuffer> block_;
  std::vector<CudaWeight> table_;  // [1 + layers, kinds]
};

// Weights whose values may still be missing: their memory has zeros until the loader has finished.
// Where the GPU has to convert some of them, all are there at once.
struct PendingCudaWeights {
  CudaWeights weights;
  std::unique_ptr<CudaTensorLoader> loader;  // started
};

using MakeTensorLoader =
    std::function<Result<std::unique_ptr<CudaTensorLoader>>(const DecoderSpec& spec)>;

// Weights with what they were placed by.
struct PlacedWeights {
  const DecoderSpec& spec;  // of the rank's part
  WeightLayout layout;      // the same
  WeightTypes types;
  const CudaWeights& weights;
};

// Puts all tensors into `visitor`, with where the weights have them. What the GPU converts has a
// place beside the weights' block, of an arena without memory.
Status visit_tensors(const PlacedWeights& current, CudaTensorLoader& visitor);

// The first elements of a tensor, at most so many, from where `current` has them. As ModelWeights'.
Result<std::vector<float>> read_cuda_weight(const PlacedWeights& current, const std::string& name,
                                            int64_t num_max);

// Weights of another checkpoint of the same layout on their way into the memory of a model's. The
// GPU has no room for both, so what can be checked is checked before the first byte is written.
// Used from one thread, whose current device is the weights'.
class CudaWeightUpdate {
 public:
  // Every tensor is there with its shape, in the formats that `current` has. Takes memory for what
  // the GPU has to convert. options: as current was loaded, but for the path.
  // kFailedPrecondition where the checkpoint stores other codes than the one before.
  // some: not null, it makes the loader of some tensors, and the others stay as they are.
  static Result<CudaWeightUpdate> prepare(const PlacedWeights& current,
                                          const ModelLoadOptions& options,
                                          const MakeTensorLoader& some);
  // Begins to write; finish() returns when all is there. No step runs from here on until finish()
  // has succeeded.
  Status start();
  Status finish();

 private:
  std::unique_ptr<CudaTensorLoader> loader_;
  cuda::DeviceBuffer staging_;
  std::vector<kernels::cuda::RelayoutArgs> relayouts_;
  std::byte* block_ = nullptr;
  int64_t zeroed_bytes_ = 0;  // of the block, before it is written
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
