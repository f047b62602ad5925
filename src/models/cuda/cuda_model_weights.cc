#include "models/cuda/cuda_model_weights.h"

#include <functional>
#include <utility>

#include "base/check.h"
#include "models/cuda/weights.h"
#include "models/model_plan.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {

class CudaModelWeights final : public ModelWeights {
 public:
  CudaModelWeights(std::vector<const CudaDecoder*> decoders, const ModelLoadOptions& options,
                   JsonObject config)
      : decoders_(std::move(decoders)), options_(options), config_(std::move(config)) {}

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
    std::vector<CudaWeightUpdate> updates = std::exchange(updates_, {});
    is_whole_ = false;
    ESP_RETURN_IF_ERROR(each([&](size_t i) { return updates[i].start(); }));
    ESP_RETURN_IF_ERROR(each([&](size_t i) { return updates[i].finish(); }));
    is_whole_ = true;
    return Status();
  }

  void drop() override { updates_.clear(); }

  bool is_whole() const override { return is_whole_; }

 private:
  Status prepare_from(const ModelLoadOptions& options, const MakeTensorLoader& some) {
    updates_.clear();
    std::vector<CudaWeightUpdate> updates(decoders_.size());
    ESP_RETURN_IF_ERROR(each([&](size_t i) -> Status {
      ESP_ASSIGN_OR_RETURN(
          updates[i], CudaWeightUpdate::prepare(decoders_[i]->placed_weights(), options, some));
      return Status();
    }));
    updates_ = std::move(updates);
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
  bool is_whole_ = true;
};

}  // namespace

Result<std::unique_ptr<ModelWeights>> make_cuda_model_weights(
    std::vector<const CudaDecoder*> decoders, const ModelLoadOptions& options) {
  ESP_ASSIGN_OR_RETURN(JsonObject config, read_changed_config(options));
  return std::make_unique<CudaModelWeights>(std::move(decoders), options, std::move(config));
}

}  // namespace espalier
