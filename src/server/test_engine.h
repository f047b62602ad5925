// An engine for tests of the server: a byte vocabulary, answers from a script, and a thread of its
// own that delivers events as a scheduler does.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace espalier::server {

// Answers every prompt with `reply`, a byte a token and an event, and then end-of-sequence; length,
// stop strings, n and log-probabilities are honoured. Half of each prompt counts as cached. The
// log-probability of token t is -(t + 0.5) / 16; its best list is t, t + 1, ... each 1 less. With
// use_beam_search sample i's score is -i - 0.5.
class ScriptedEngine final : public Engine {
 public:
  ScriptedEngine();
  ~ScriptedEngine() override;

  struct Script {
    std::string reply = "Hi there.";
    Status submit_error;      // submit() fails
    Status error;             // the request fails ...
    int32_t error_after = 0;  // ... after so many tokens
    bool hold = false;        // says nothing after `hold_after` tokens until aborted
    int32_t hold_after = 0;
    int32_t context_length = 100;
  };
  void set_script(Script script);
  // REQUIRES: no server runs over the engine yet.
  void set_fair_share(std::string name) { config_.schedule.fair_share = std::move(name); }
  void set_schedule_policy(std::string name) { config_.schedule.schedule_policy = std::move(name); }
  // REQUIRES: no server runs over the engine yet. It drafts nothing.
  void set_speculative_algorithm(std::string name) {
    config_.speculation.speculative_algorithm = std::move(name);
  }
  // REQUIRES: no server runs over the engine yet.
  void set_adapters(std::vector<LoadedAdapter> adapters) {
    config_.lora.enable_lora = true;
    adapters_ = std::move(adapters);
  }
  std::vector<LoadedAdapter> adapters() const override { return adapters_; }
  void set_num_waiting(int32_t count);  // as stats() says
  // What compile_grammar() does, on the caller's thread. REQUIRES: no server runs over it yet.
  using Compile = std::function<Result<GrammarReport>()>;
  void set_compile(Compile compile) { compile_ = std::move(compile); }
  Result<GrammarReport> compile_grammar(const SamplingParams& params,
                                        size_t num_drawn_states) override {
    return compile_ ? compile_() : Engine::compile_grammar(params, num_drawn_states);
  }
  // REQUIRES: no server runs over the engine yet.
  void set_tokenizer(std::unique_ptr<Tokenizer> tokenizer) { tokenizer_ = std::move(tokenizer); }

  // What happened.
  std::vector<GenerateRequest> submitted() const;
  int num_running() const;  // requests that Script::hold keeps open
  bool wait_for(const std::function<bool()>& condition,
                Duration timeout = std::chrono::seconds(10)) const;

  Result<std::string> submit(GenerateRequest request, EventSink sink) override;
  void abort(std::string_view rid, AbortScope scope) override;
  Status flush_cache() override;
  void drain(Duration) override {}
  // A profile holds nothing, and ends when it is stopped.
  void profile(ProfileCall call) override {
    if (!call.start) std::exchange(profile_done_, nullptr)({});
    if (call.start && call.start->num_steps < 1)
      return call.answered(invalid_argument("num_steps is {}", call.start->num_steps));
    if (call.start) profile_done_ = std::move(call.done);
    call.answered(Status());
  }
  EngineStats stats() const override;
  const ModelInfo& model_info() const override { return info_; }
  const EngineConfig& config() const override { return config_; }
  const Tokenizer* tokenizer() const override { return tokenizer_.get(); }
  int32_t context_length() const override;

  static float logprob(TokenId id) { return -(static_cast<float>(id) + 0.5f) / 16.0f; }

 private:
  std::function<void(StepProfile&&)> profile_done_;
  struct OpenRequest {
    std::string rid;
    int32_t num_samples;
    EventSink sink;
    RequestStats stats;
  };
  void run(const GenerateRequest& request, const EventSink& sink, const Script& script);
  void end_open(const std::string& rid, AbortScope scope);
  // False when Script::hold keeps the request open.
  bool run_sample(const GenerateRequest& request, int32_t index, std::vector<TokenId> prompt,
                  const EventSink& sink, const Script& script);

  EngineConfig config_;
  std::vector<LoadedAdapter> adapters_;
  Compile compile_;
  ModelInfo info_;
  std::unique_ptr<Tokenizer> tokenizer_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  Script script_;
  std::vector<GenerateRequest> submitted_;
  std::deque<std::function<void()>> work_;
  std::vector<OpenRequest> open_;
  EngineStats stats_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace espalier::server
