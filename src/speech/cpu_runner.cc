#include "speech/whisper_decoder.h"
#include "speech/whisper_encoder.h"
#include "speech/whisper_runner.h"
#include "speech/whisper_weights.h"

namespace espalier::speech {
namespace {

class CpuRunner final : public WhisperRunner {
 public:
  static Result<std::unique_ptr<WhisperRunner>> create(const RunnerParts& parts) {
    std::unique_ptr<CpuRunner> runner(new CpuRunner);
    ESP_ASSIGN_OR_RETURN(runner->backend_, kernels::CpuBackend::create(parts.pool));
    kernels::CpuBackend& backend = *runner->backend_;
    WhisperWeights& weights = runner->weights_;
    ESP_ASSIGN_OR_RETURN(weights,
                         load_whisper_weights(backend, parts.checkpoint, parts.sizes, parts.dtype));
    runner->info_ = {.type = weights.type,
                     .num_parameters = weights.num_parameters,
                     .weight_bytes = weights.size_bytes};
    runner->encoder_ = std::make_unique<WhisperEncoder>(parts.sizes, weights, backend);
    ESP_ASSIGN_OR_RETURN(runner->decoder_,
                         WhisperDecoder::create(parts.sizes, weights, backend, parts.num_slots));
    return std::unique_ptr<WhisperRunner>(std::move(runner));
  }

  const RunnerInfo& info() const override { return info_; }
  Status set_source(int32_t slot, const MelSpectrogram& mel, int64_t first) override {
    decoder_->set_source(slot, encoder_->encode(mel, first));
    return Status();
  }
  Result<std::span<const float>> step(std::span<const DecoderEntry> entries) override {
    return decoder_->step(entries);
  }

 private:
  CpuRunner() = default;

  std::unique_ptr<kernels::CpuBackend> backend_;
  WhisperWeights weights_;
  RunnerInfo info_;
  std::unique_ptr<WhisperEncoder> encoder_;
  std::unique_ptr<WhisperDecoder> decoder_;
};

}  // namespace

Result<std::unique_ptr<WhisperRunner>> make_cpu_runner(const RunnerParts& parts) {
  return CpuRunner::create(parts);
}

}  // namespace espalier::speech
