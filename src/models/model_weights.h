// The weights of a model that runs, replaced by those of another checkpoint of the same shapes, all
// of them or some by name, in two steps: what can be checked while steps run, and the exchange
// between two steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "models/model.h"

namespace espalier {

// A tensor in the memory of another process on the same GPU (CUDA IPC): row-major, `offset_bytes`
// into the allocation that the handle opens.
struct SharedTensor {
  std::string name;   // in the checkpoint
  std::string dtype;  // as safetensors names it: F32, BF16, F16
  std::vector<int64_t> shape;
  std::string handle;  // the 64 bytes of cudaIpcMemHandle_t
  int64_t offset_bytes = 0;
};

// Thread safety: one thread at a time. Borrows the model, which outlives it.
class ModelWeights {
 public:
  virtual ~ModelWeights() = default;

  // Opens a checkpoint and checks it: its config.json describes the same model, files have their
  // full lengths and, on a GPU, every tensor is there with its shape; on the CPU commit() finds
  // that out, and leaves the old weights. Changes nothing; steps may run. What was prepared before
  // is dropped.
  virtual Status prepare(const std::filesystem::path& path) = 0;
  // The same of one safetensors file with some of the tensors, by their names in the checkpoint;
  // the others stay as they are. kNotFound for a name that the model has not. REQUIRES: is_whole().
  virtual Status prepare_some(const std::filesystem::path& file) = 0;

  // The same of tensors that another process has on the GPU, and keeps until commit() has returned.
  // kUnimplemented where the model is not on one GPU.
  virtual Status prepare_shared(std::vector<SharedTensor> tensors);

  // Puts what was prepared in place of the weights. After a failure is_whole() says whether the
  // weights are still the ones of before. REQUIRES: prepare() has succeeded, and no step runs.
  virtual Status commit() = 0;

  // Gives back what was prepared and not committed: files, memory, mappings of other processes'.
  virtual void drop() {}

  // The first elements of a tensor, at most so many, row-major: on a GPU from its memory, on the
  // CPU from the file that they were packed from. kNotFound for a name that the model has not;
  // kUnimplemented for a tensor whose values are held in codes. Steps may run.
  virtual Result<std::vector<float>> read(const std::string& name, int64_t num_max) = 0;

  // False where a commit() failed when it had begun to write: the weights are then a mixture, and
  // steps compute nonsense until another commit() succeeds.
  virtual bool is_whole() const { return true; }

  // Of the host's memory, which copies of a GPU's weights take while these are on the GPU.
  virtual int64_t backup_bytes() const { return 0; }
};

// Of a model that load_model() made with these options, whose pool outlives the result. commit()
// reads the new weights into memory of their own, so the old ones stay whole where that fails.
Result<std::unique_ptr<ModelWeights>> make_model_weights(Model& model,
                                                         const ModelLoadOptions& options);

// The options of the same model from another path, whose weights are those of files. Fails by the
// field where config.json there describes another model than `config`. Fields that describe the
// files, not the model (the element type, the version of a library), may differ.
Result<ModelLoadOptions> options_of_update(const JsonObject& config, const ModelLoadOptions& loaded,
                                           const std::filesystem::path& path);

}  // namespace espalier
