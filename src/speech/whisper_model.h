// A Whisper model as it is loaded from a folder: threads, what computes it, and tokenizer.
// Used from one thread, but for config() and tokenizer(), which never change.
#pragma once

#include <memory>

#include "speech/transcriber.h"
#include "speech/whisper_config.h"
#include "speech/whisper_runner.h"
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
  WhisperRunner& runner() { return *runner_; }
  WorkPool& pool() { return pool_; }

 private:
  explicit WhisperModel(int32_t num_threads) : pool_(num_threads) {}

  WorkPool pool_;
  std::unique_ptr<Tokenizer> tokenizer_;
  WhisperConfig config_;
  TranscriberInfo info_;
  std::unique_ptr<WhisperRunner> runner_;
};

}  // namespace espalier::speech
