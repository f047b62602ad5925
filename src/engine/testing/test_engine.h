// For the engine's tests: an engine over a null executor with the byte tokenizer, and a sink that
// checks what every sink may rely on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/executor/null_executor.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace espalier {

inline std::vector<TokenId> bytes_of(std::string_view text) {
  std::vector<TokenId> ids;
  for (unsigned char c : text) ids.push_back(c);
  return ids;
}

// What the null device says after a history: a script's next token, else a letter from its hash.
class Script {
 public:
  // After `prompt` comes `answer`, token by token.
  void add(std::vector<TokenId> prompt, const std::vector<TokenId>& answer) {
    for (TokenId token : answer) {
      next_[NullExecutor::hash_history(prompt)] = token;
      prompt.push_back(token);
    }
  }
  void add(std::string_view prompt, std::string_view answer) {
    add(bytes_of(prompt), bytes_of(answer));
  }

  TokenId next(uint64_t history) const {
    const auto it = next_.find(history);
    return it != next_.end() ? it->second : 'a' + NullExecutor::uniform_token(history, 26);
  }

  // The answer that a prompt must get, from the definition alone.
  std::vector<TokenId> answer(std::vector<TokenId> prompt, int count) const {
    const size_t begin = prompt.size();
    for (int i = 0; i < count; ++i) prompt.push_back(next(NullExecutor::hash_history(prompt)));
    return {prompt.begin() + static_cast<std::ptrdiff_t>(begin), prompt.end()};
  }

 private:
  std::unordered_map<uint64_t, TokenId> next_;
};

struct TestEngineOptions {
  EngineConfig config;
  Script script;
  Duration step_delay{};
  int32_t context_length = 4096;
  bool tokenizer = true;
};

struct TestEngine {
  std::unique_ptr<Engine> engine;
  NullExecutor* device = nullptr;  // owned by the engine
};

inline TestEngine make_test_engine(TestEngineOptions options = {}) {
  EngineConfig& config = options.config;
  if (config.cache.max_total_tokens == 0) config.cache.max_total_tokens = 20000;
  if (config.sampling.random_seed == 0) config.sampling.random_seed = 1;
  config.model.skip_tokenizer_init = !options.tokenizer;
  config.check_invariants = true;
  auto executor = std::make_unique<NullExecutor>(NullExecutorConfig{
      .vocab_size = kByteVocabSize,
      .page_size = config.cache.page_size,
      .chain_max = 16,
      .step_delay = options.step_delay,
      .next_token = [script = std::move(options.script)](uint64_t history) -> Result<TokenId> {
        return script.next(history);
      }});
  TestEngine result{.device = executor.get()};
  Engine::Parts parts{.executor = std::move(executor),
                      .info = {.vocab_size = kByteVocabSize,
                               .context_length = options.context_length,
                               .eos_ids = {kByteEosId}}};
  if (options.tokenizer) parts.tokenizer = make_byte_tokenizer();
  auto engine = Engine::create(config, std::move(parts));
  EXPECT_TRUE(engine) << engine.error().to_string();
  if (engine) result.engine = std::move(*engine);
  return result;
}

// Gathers the events of one request. Fails the test when events come after a sample's last one,
// when a sample has two, or when its parts do not agree.
class Collector {
 public:
  explicit Collector(int32_t n = 1) : samples_(static_cast<size_t>(n)) {}

  EventSink sink() {
    return [this](TokenEvent&& event) { add(std::move(event)); };
  }

  void add(TokenEvent&& event) {
    std::lock_guard lock(mutex_);
    ASSERT_LT(static_cast<size_t>(event.index), samples_.size());
    GenerateResult& r = samples_[static_cast<size_t>(event.index)];
    ASSERT_FALSE(ended_[event.index]) << "an event after the last one";
    ++num_events_;
    r.text += event.text;
    r.output_ids.insert(r.output_ids.end(), event.ids.begin(), event.ids.end());
    ASSERT_EQ(event.stats.completion_tokens, static_cast<int32_t>(r.output_ids.size()));
    ASSERT_TRUE(event.logprobs.empty() || event.logprobs.size() == event.ids.size());
    r.output_logprobs.insert(r.output_logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    ASSERT_TRUE(event.input_logprobs.empty() || r.input_logprobs.empty());
    if (!event.input_logprobs.empty()) r.input_logprobs = event.input_logprobs;
    r.hidden_states.insert(r.hidden_states.end(), event.hidden_states.begin(),
                           event.hidden_states.end());
    r.stats = event.stats;
    r.embedding = event.embedding;
    if (event.beam) r.beam = event.beam;
    if (event.finish) {
      r.finish = *event.finish;
      ended_[event.index] = true;
      ++num_ended_;
    }
    changed_.notify_all();
  }

  // False after 30 seconds: something was never answered.
  bool wait_events(int count) {
    return wait([&] { return num_events_ >= count; });
  }
  bool wait_end() {
    return wait([&] { return num_ended_ == samples_.size(); });
  }
  const GenerateResult& result(size_t index = 0) const { return samples_[index]; }
  FinishReason::Type finish_type(size_t index = 0) const { return samples_[index].finish.type; }

 private:
  template <typename Ready>
  bool wait(Ready ready) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), ready);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<GenerateResult> samples_;
  std::map<int32_t, bool> ended_;
  size_t num_ended_ = 0;
  int num_events_ = 0;
};

}  // namespace espalier
