// An engine that records its requests, from which the best possible hit rate follows.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"

namespace espalier::workloads {

struct Call {
  std::vector<TokenId> prompt, output;
  // So many of the prompt's tokens may come from a cache at most: not the last, nor those whose
  // log-probabilities are wanted.
  int32_t reusable = 0;
  int32_t cached = 0;
  int32_t max_new_tokens = 0;  // that it could have got
  double first_token_seconds = 0;
};

// What a set of calls costs at least, with a cache that never forgets: each prefix is computed
// once, but for what no cache can give. It is the sum of the paper's theorem 3.1 less what the
// outputs leave in the cache, and less one token for each prompt that another goes on from and
// comes after.
struct Optimum {
  int64_t prompt_tokens = 0, computed_tokens = 0;
  int64_t unique_tokens = 0;  // distinct prefixes, of prompts and outputs: a pool that holds all
  int64_t longest = 0;        // prompt and output of the longest call, as long as it may get
  double hit_rate() const {
    return prompt_tokens == 0
               ? 0
               : 1 - static_cast<double>(computed_tokens) / static_cast<double>(prompt_tokens);
  }
};
Optimum optimum_of(const std::vector<Call>& calls);

// Thread-safe, as the engine is that it passes all on to.
class RecordingEngine final : public Engine {
 public:
  explicit RecordingEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  Result<std::string> submit(GenerateRequest request, EventSink sink) override;
  void abort(std::string_view rid, AbortScope scope) override { engine_->abort(rid, scope); }
  Result<GrammarReport> compile_grammar(const SamplingParams& params,
                                        size_t drawn_states) override {
    return engine_->compile_grammar(params, drawn_states);
  }
  Status flush_cache() override { return engine_->flush_cache(); }
  void drain(Duration timeout) override { engine_->drain(timeout); }
  EngineStats stats() const override { return engine_->stats(); }
  const ModelInfo& model_info() const override { return engine_->model_info(); }
  const EngineConfig& config() const override { return engine_->config(); }
  const Tokenizer* tokenizer() const override { return engine_->tokenizer(); }
  int32_t context_length() const override { return engine_->context_length(); }

  std::vector<Call> calls() const;  // that have ended

 private:
  struct Log {
    mutable std::mutex mutex;
    std::vector<Call> calls;
  };
  std::shared_ptr<Log> log_ = std::make_shared<Log>();  // shared with the sinks
  std::unique_ptr<Engine> engine_;
};

}  // namespace espalier::workloads
