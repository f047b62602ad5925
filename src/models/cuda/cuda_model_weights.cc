#include "models/cuda/cuda_model_weights.h"

#include <functional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "models/checkable_weights.h"
#include "models/cuda/tensor_digests.h"
#include "models/cuda/weight_copies.h"
#include "models/cuda/weights.h"
#include "models/model_plan.h"
#include "models/random_tensors.h"
#include "models/releasable_memory.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {

class CudaModelWeights final : public ModelWeights,
                               public ReleasableMemory,
                               public CheckableWeights {
 public:
  CudaModelWeights(std::vector<const CudaDecoder*> decoders, const ModelLoadOptions& options,
                   JsonObject config)
      : decoders_(std::move(decoders)),
        options_(options),
        config_(std::move(config)),
        loaded_(options),
        copies_(decoders_) {}

  // Takes the host's memory for copies of the weights, for as long as this lives.
  Status keep_copies() {
    ESP_RETURN_IF_ERROR(copies_.allocate());
    backup_bytes_ = copies_.size_bytes();
    return Status();
  }

  Status prepare(const std::filesystem::path& path) override {
    ESP_ASSIGN_OR_RETURN(const ModelLoadOptions options,
                         options_of_update(config_, options_, path));
    return prepare_from(options, nullptr);
  }

  Status prepare_some(const std::filesystem::path& file) override {
    return prepare_from(options_,
                        [&](const DecoderSpec& spec) { return make_partial_loader(file, spec); });
  }

  Status prepare_shared(std::vector<SharedTensor> tensors) override {
    if (decoders_.size() > 1) return ModelWeights::prepare_shared(std::move(tensors));
    return prepare_from(options_, [&](const DecoderSpec&) { return make_shared_loader(tensors); });
  }

  // Of the first rank, which has the tensor or its first part.
  Result<std::vector<float>> read(const std::string& name, int64_t num_max) override {
    ESP_RETURN_IF_ERROR(cuda::use_device(decoders_.front()->device()));
    return read_cuda_weight(decoders_.front()->placed_weights(), name, num_max);
  }

  Status commit() override {
    ESP_CHECK(!updates_.empty());
    if (moves_experts()) {  // which they may have done since
      const ModelLoadOptions options = *prepared_;
      ESP_RETURN_IF_ERROR(prepare_from(options, nullptr));
    }
    std::vector<CudaWeightUpdate> updates = std::exchange(updates_, {});
    is_whole_ = false;
    copies_.outdate();
    ESP_RETURN_IF_ERROR(each([&](size_t i) { return updates[i].start(); }));
    ESP_RETURN_IF_ERROR(each([&](size_t i) { return updates[i].finish(); }));
    is_whole_ = true;
    loaded_ = std::exchange(prepared_, {});
    return Status();
  }

  void drop() override { updates_.clear(); }

  // Weights of files are read from them again, unless the host keeps copies. Those that came by
  // name or from another process are nowhere else, so it keeps them meanwhile in any case.
  Result<int64_t> release_memory() override {
    if (backup_bytes_ > 0 || !loaded_) {
      ESP_RETURN_IF_ERROR(copies_.save());
    } else {
      ESP_RETURN_IF_ERROR(prepare_from(*loaded_, nullptr));  // they can be read again
      drop();
    }
    int64_t bytes = 0;
    const Status status = each([&](size_t i) {
      bytes += memory(i).size_bytes();
      return memory(i).release();
    });
    if (status.ok()) return bytes;
    ESP_RETURN_IF_ERROR(restore_released());
    return fail(status);
  }

  Status restore_memory() override {
    Status status = restore_released();
    if (status.ok()) return status;
    is_whole_ = true;
    ESP_RETURN_IF_ERROR(
        each([&](size_t i) { return memory(i).is_released() ? Status() : memory(i).release(); }));
    return status;
  }

  Result<std::vector<TensorDigest>> digests() override {
    if (decoders_.size() > 1)
      return fail(error(StatusCode::kUnimplemented,
                        "tensors are divided among GPUs, and their digests are not taken: start "
                        "with --tp-size 1"));
    ESP_RETURN_IF_ERROR(cuda::use_device(decoders_.front()->device()));
    return cuda_tensor_digests(decoders_.front()->placed_weights());
  }

  Status prepare_random(uint64_t seed) override {
    ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options_.path));
    return with_random_tensors(
        checkpoint, seed, [this](const std::filesystem::path& file) { return prepare_some(file); });
  }

  bool is_whole() const override { return is_whole_; }
  int64_t backup_bytes() const override { return backup_bytes_; }

 private:
  bool moves_experts() const { return options_.experts.rebalance.num_iterations > 0; }

  Status prepare_from(const ModelLoadOptions& options, const MakeTensorLoader& some) {
    updates_.clear();
    if (some && moves_experts())
      return error(StatusCode::kUnimplemented,
                   "experts change places on these GPUs, and their tensors are not replaced by "
                   "name: bring a whole checkpoint, or start without --enable-eplb");
    std::vector<CudaWeightUpdate> updates(decoders_.size());
    ESP_RETURN_IF_ERROR(each([&](size_t i) -> Status {
      ESP_ASSIGN_OR_RETURN(
          updates[i], CudaWeightUpdate::prepare(decoders_[i]->placed_weights(), options, some));
      return Status();
    }));
    updates_ = std::move(updates);
    prepared_ = some ? std::nullopt : std::optional(options);
    return Status();
  }

  cuda::ReleasableBuffer& memory(size_t i) const {
    return decoders_[i]->placed_weights().weights.memory();
  }

  // Zeros, which the loader expects.
  static Status fill(const cuda::ReleasableBuffer& memory) {
    ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
    ESP_RETURN_IF_ERROR(cuda::fill_bytes(memory.data(), 0, memory.size_bytes(), stream));
    return stream.synchronize();
  }

  Status read_again() {
    ESP_RETURN_IF_ERROR(prepare_from(*loaded_, nullptr));
    return commit();
  }

  // Takes memory again where it is released, then writes the weights of all decoders.
  Status restore_released() {
    const SteadyClock clock;
    const TimePoint start = clock.now();
    const bool from_host = copies_.are_current();
    const Status taken = each([&](size_t i) -> Status {
      if (!memory(i).is_released()) return Status();
      ESP_RETURN_IF_ERROR(memory(i).restore());
      return from_host ? Status() : fill(memory(i));
    });
    ESP_RETURN_IF_ERROR(taken);
    const TimePoint mapped = clock.now();
    ESP_RETURN_IF_ERROR(from_host ? copies_.write() : read_again());
    log_info("weights restored from={} memory_seconds={:.3f} copy_seconds={:.3f}",
             from_host ? "host" : "files", to_seconds(mapped - start),
             to_seconds(clock.now() - mapped));
    if (backup_bytes_ == 0) copies_.drop();
    return Status();
  }

  // With each decoder's device the current one.
  Status each(const std::function<Status(size_t)>& fn) {
    for (size_t i = 0; i < decoders_.size(); ++i) {
      ESP_RETURN_IF_ERROR(cuda::use_device(decoders_[i]->device()));
      ESP_RETURN_IF_ERROR(fn(i));
    }
    return Status();
  }

  const std::vector<const CudaDecoder*> decoders_;
  const ModelLoadOptions options_;
  const JsonObject config_;
  std::vector<CudaWeightUpdate> updates_;  // of each decoder; empty: none is prepared
  // The files that all weights are of; none: some came by name or from another process.
  std::optional<ModelLoadOptions> loaded_, prepared_;
  WeightCopies copies_;
  int64_t backup_bytes_ = 0;  // of copies that are kept while the weights are on the devices
  bool is_whole_ = true;
};

}  // namespace

Result<std::unique_ptr<ModelWeights>> make_cuda_model_weights(
    std::vector<const CudaDecoder*> decoders, const ModelLoadOptions& options, bool keep_copies) {
  ESP_ASSIGN_OR_RETURN(JsonObject config, read_changed_config(options));
  auto out = std::make_unique<CudaModelWeights>(std::move(decoders), options, std::move(config));
  if (keep_copies) ESP_RETURN_IF_ERROR(out->keep_copies());
  return out;
}

}  // namespace espalier
