// Where a model's tensors come from while it is packed: a checkpoint, or a seed.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "models/decoder_spec.h"
#include "models/load_progress.h"
#include "models/storage_format.h"
#include "tensor/block_format.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"
#include "tensor/work_pool.h"

namespace espalier {

// Row-major elements, aligned for their type.
struct LentTensor {
  const void* data = nullptr;
  DType type = DType::kFloat32;
};

float element_of(const LentTensor& tensor, int64_t i);

// Used from one thread, by the loader.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // The tensor `name` (with its ".weight" or ".bias"), borrowed until give_back(name). Fails by
  // name where it is missing or has another shape.
  virtual Result<LentTensor> lend(const std::string& name, std::span<const int64_t> shape) = 0;
  // The same of a tensor of bytes (U8), for what the loader decodes itself. Fails by name where the
  // source has no such tensors.
  virtual Result<std::span<const std::byte>> lend_bytes(const std::string& name,
                                                        std::span<const int64_t> shape);
  // The format of a matrix's blocks, for those that kernels read themselves; nothing for any other
  // tensor.
  virtual std::optional<BlockFormat> stored_format(std::string_view name) const;
  // Such a matrix's blocks, as lend() lends elements. REQUIRES: it has a stored_format.
  virtual Result<StoredBlocks> lend_blocks(const std::string& name, std::span<const int64_t> shape);
  // The loader has copied it; its memory may go.
  virtual void give_back(const std::string& name) = 0;
  // It belongs to another rank: it counts as requested.
  virtual void pass_over(const std::string&) {}
  // After the last tensor: fails by name for one that was never requested.
  virtual Status finish() = 0;
};

// Borrows the checkpoint; the spec says which tensors may be left over. Tensors that have to be
// computed (quantised ones) are, as `type` (float32, else bfloat16), on the pool's threads if there
// is a pool.
// The codes that a tensor is stored in and a GPU keeps; none for null.
WeightCodes stored_codes(const CheckpointTensor* tensor);

class CheckpointSource final : public WeightSource {
 public:
  CheckpointSource(const Checkpoint& checkpoint, const DecoderSpec& spec,
                   DType type = DType::kBFloat16, WorkPool* pool = nullptr);
  bool has(const std::string& name) const { return checkpoint_.find(stored_name(name)) != nullptr; }
  // Reports from here on how many bytes have been given back.
  void report_to(ReportLoaded progress);
  // The tensor, checked as lend() does and counted as used, for loaders that decode it themselves
  // (checkpoint/convert.h).
  Result<const CheckpointTensor*> find(const std::string& name, std::span<const int64_t> shape);
  Result<LentTensor> lend(const std::string& name, std::span<const int64_t> shape) override;
  Result<std::span<const std::byte>> lend_bytes(const std::string& name,
                                                std::span<const int64_t> shape) override;
  std::optional<BlockFormat> stored_format(std::string_view name) const override;
  Result<StoredBlocks> lend_blocks(const std::string& name,
                                   std::span<const int64_t> shape) override;
  void give_back(const std::string& name) override;
  void pass_over(const std::string& name) override { lent_.insert(stored_name(name)); }
  Status finish() override;

 private:
  Result<LentTensor> compute(const CheckpointTensor& tensor);
  const CheckpointTensor* make_zeros(const std::string& name, std::span<const int64_t> shape);
  // Folders that hold a bare model, as those of embedding models do, name its tensors without the
  // prefix ("model.") that they have beside a head.
  std::string stored_name(const std::string& name) const;
  bool may_be_left(std::string_view name) const;
  Status check_unused_head() const;

  const Checkpoint& checkpoint_;
  const WeightNames names_;
  const bool tied_;
  std::string left_out_prefix_;
  const DType type_;
  WorkPool* const pool_;
  std::set<std::string> lent_;        // ever
  std::set<std::string> given_back_;  // where progress is reported
  int64_t given_back_bytes_ = 0;
  const SteadyClock clock_;
  std::optional<LoadProgress> progress_;
  std::map<std::string, Buffer> made_;  // of tensors that are computed or lie askew in their file
  std::deque<CheckpointTensor> zeros_;  // WeightNames::absent_suffixes
  std::deque<std::vector<std::byte>> zero_bytes_;
};

// How dummy weights are drawn: a matrix's elements have mean 0 and deviation 1 / sqrt(columns), so
// that activations and logits keep a deviation near 1; norms lie around 1, biases around 0. Element
// i of a tensor is a function of (seed, name, i) alone.
struct DummyTensor {
  uint64_t key = 0;
  float centre = 0;
  float deviation = 0;
};
DummyTensor dummy_tensor(uint64_t seed, std::string_view name, std::span<const int64_t> shape);

// Random weights for any spec.
class DummySource final : public WeightSource {
 public:
  // type: of what it makes. pool: borrowed, works in parallel.
  DummySource(uint64_t seed, DType type, WorkPool& pool);
  Result<LentTensor> lend(const std::string& name, std::span<const int64_t> shape) override;
  void give_back(const std::string& name) override;
  Status finish() override;

 private:
  Result<Buffer> take_buffer(size_t size_bytes);

  const uint64_t seed_;
  const DType type_;
  WorkPool& pool_;
  std::map<std::string, Buffer> made_;
  std::vector<Buffer> spare_;  // to be filled again: fresh memory costs more than the drawing
};

}  // namespace espalier
