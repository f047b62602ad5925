// A Whisper model as it is loaded from a folder: threads, weights, encoder, decoder and tokenizer.
// Used from one thread, but for config() and tokenizer(), which never change.
#pragma once

#include <memory>

#include "speech/transcriber.h"
#include "speech/whisper_config.h"
#include "speech/whisper_decoder.h"
#include "speech/whisper_encoder.h"
#include "tensor/work_pool.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier::speech {

class WhisperModel {
 public:
  static Result<std::unique_ptr<WhisperModel>> load(const TranscriberOptions& options);
  WhisperModel(const WhisperModel&) = delete;
  WhisperModel& operator=(const WhisperModel&) = delete;

  const WhisperConfig& config() const { return config_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const TranscriberInfo& info() const { return info_; }
  WhisperEncoder& encoder() { return *encoder_; }
  WhisperDecoder& decoder() { return *decoder_; }
  WorkPool& pool() { return pool_; }

 private:
  explicit WhisperModel(int32_t num_threads) : pool_(num_threads) {}

  WorkPool pool_;
  std::unique_ptr<kernels::CpuBackend> backend_;
  std::unique_ptr<Tokenizer> tokenizer_;
  WhisperConfig config_;
  WhisperWeights weights_;
  TranscriberInfo info_;
  std::unique_ptr<WhisperEncoder> encoder_;
  std::unique_ptr<WhisperDecoder> decoder_;
};

}  // namespace espalier::speech
