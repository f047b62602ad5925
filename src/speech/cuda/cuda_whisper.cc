#include "speech/cuda/cuda_whisper.h"

#include "base/log.h"
#include "speech/cuda/cuda_decoder.h"
#include "speech/cuda/cuda_encoder.h"
#include "tensor/cuda/device.h"

namespace espalier::speech {
namespace {

class CudaWhisper final : public WhisperRunner {
 public:
  static Result<std::unique_ptr<CudaWhisper>> create(const WhisperSizes& sizes,
                                                     TensorSource& source, DType type,
                                                     int32_t num_slots, int32_t device) {
    ESP_ASSIGN_OR_RETURN(const cuda::DeviceInfo opened, cuda::open_device(device));
    std::unique_ptr<CudaWhisper> model(new CudaWhisper(device));
    ESP_ASSIGN_OR_RETURN(model->layers_, CudaLayers::create(type, sizes.width));
    CudaLayers& layers = *model->layers_;
    ESP_ASSIGN_OR_RETURN(model->weights_,
                         load_cuda_whisper_weights(source, sizes, type, layers.stream()));
    ESP_ASSIGN_OR_RETURN(model->encoder_,
                         CudaSpeechEncoder::create(sizes, model->weights_, layers));
    ESP_ASSIGN_OR_RETURN(model->decoder_,
                         CudaSpeechDecoder::create(sizes, model->weights_, layers, num_slots));
    std::vector<kernels::cuda::LinearArgs> gemms = model->encoder_->gemms();
    for (const kernels::cuda::LinearArgs& each : model->decoder_->gemms()) gemms.push_back(each);
    ESP_RETURN_IF_ERROR(layers.tune(gemms));
    model->info_ = {.type = type, .weight_bytes = model->weights_.size_bytes};
    log_info("speech model on GPU device='{}' weight_bytes={} scratch_bytes={} slots={}",
             opened.name, model->weights_.size_bytes,
             model->encoder_->device_bytes() + model->decoder_->device_bytes(), num_slots);
    return model;
  }
  // Nothing may be in flight that uses what is given back.
  ~CudaWhisper() override {
    if (cuda::use_device(device_).ok() && layers_ != nullptr)
      static_cast<void>(layers_->stream().synchronize());
  }

  const RunnerInfo& info() const override { return info_; }
  void set_num_parameters(int64_t count) { info_.num_parameters = count; }
  Status set_source(int32_t slot, const MelSpectrogram& mel, int64_t first) override {
    ESP_RETURN_IF_ERROR(cuda::use_device(device_));
    ESP_ASSIGN_OR_RETURN(const void* const rows, encoder_->encode(mel, first));
    return decoder_->set_source(slot, rows);
  }
  Result<std::span<const float>> step(std::span<const DecoderEntry> entries) override {
    ESP_RETURN_IF_ERROR(cuda::use_device(device_));
    return decoder_->step(entries);
  }

 private:
  explicit CudaWhisper(int32_t device) : device_(device) {}

  const int32_t device_;
  RunnerInfo info_;
  CudaWhisperWeights weights_;
  std::unique_ptr<CudaLayers> layers_;
  std::unique_ptr<CudaSpeechEncoder> encoder_;
  std::unique_ptr<CudaSpeechDecoder> decoder_;
};

}  // namespace

Result<std::unique_ptr<WhisperRunner>> make_cuda_runner(const RunnerParts& parts, int32_t device) {
  ESP_ASSIGN_OR_RETURN(const DType type, whisper_matrix_type(parts.checkpoint, parts.dtype));
  CheckpointTensors tensors(parts.checkpoint);
  ESP_ASSIGN_OR_RETURN(auto model,
                       CudaWhisper::create(parts.sizes, tensors, type, parts.num_slots, device));
  ESP_RETURN_IF_ERROR(tensors.finish());
  model->set_num_parameters(tensors.num_parameters());
  return std::unique_ptr<WhisperRunner>(std::move(model));
}

Result<std::unique_ptr<WhisperRunner>> make_cuda_runner(const WhisperSizes& sizes,
                                                        TensorSource& source, DType type,
                                                        int32_t num_slots, int32_t device) {
  ESP_ASSIGN_OR_RETURN(auto model, CudaWhisper::create(sizes, source, type, num_slots, device));
  return std::unique_ptr<WhisperRunner>(std::move(model));
}

}  // namespace espalier::speech
