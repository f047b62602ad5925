// The engine for C++17 and later: open a model, generate, stream, batch, embed, cancel. Thin owning
// classes over engine_c.h. They are defined here alone, so the library has no C++ types in its
// interface and any compiler's standard library may be used with it.
//
//   auto engine = espalier::Engine::open({});                 // the model that ships
//   if (!engine) return report(engine.error().message);
//   auto answer = engine->generate("Once upon a time", {.max_new_tokens = 32});   // C++20
//   if (answer) std::cout << answer->text;
//
// Thread safety: an Engine may be used from any threads at once. A Stream is read by one thread;
// cancel() may come from any thread while it exists.
// Errors: functions that can fail return an EngineResult.
// Ownership: a Stream keeps its engine alive. Both are movable and not copyable.
#pragma once

#include "espalier/engine_c.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier {
inline namespace v0 {  // the interface's version

// Why there is no value: what was wrong, where, and what to do.
struct EngineError {
  esp_status code = ESP_OK;
  std::string message;
};

// A value or an EngineError. REQUIRES: ok() before the value is read, !ok() before error().
template <typename T>
class [[nodiscard]] EngineResult {
 public:
  EngineResult(T value) : value_(std::move(value)) {}
  EngineResult(EngineError error) : error_(std::move(error)) {}
  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  const EngineError& error() const { return error_; }

 private:
  std::optional<T> value_;
  EngineError error_;
};

struct EngineOptions {
  std::string model_path;            // as --model-path; empty: the model that ships
  std::string device = "auto";       // auto, cpu or cuda
  int32_t context_length = 0;        // tokens that prompt and output share; 0: the model's
  int32_t max_running_requests = 0;  // samples that run at once; 0: chosen
  int32_t num_threads = 0;           // compute threads of the CPU; 0: one for each processor
  // Further settings by the names of docs/flags.md: {"kv-cache-dtype", "bfloat16"}.
  std::vector<std::pair<std::string, std::string>> settings;
};

// An absent number is left to the model's generation defaults.
struct GenerateOptions {
  int32_t max_new_tokens = 128;
  std::optional<float> temperature;      // 0: greedy
  std::optional<float> top_p;            // (0, 1]
  std::optional<float> min_p;            // [0, 1)
  std::optional<int32_t> top_k;          // -1: no limit
  std::optional<int64_t> seed;           // of the draws, 0 or more; absent: drawn
  std::vector<std::string> stop;         // strings that end an answer and are not part of it
  std::string json_schema, regex, ebnf;  // what an answer must match; at most one of them
  bool ignore_eos = false;
  // Beam search of so many beams instead of draws: the likeliest answer (docs/beam_search.md).
  std::optional<int32_t> beam_width;
  float length_penalty = 1;
  esp_early_stopping early_stopping = ESP_EARLY_STOPPING_NO;
};

// What is new of an answer.
struct Piece {
  std::string text;  // whole UTF-8 characters
  std::vector<int32_t> ids;
  esp_finish finish = ESP_FINISH_NONE;
};

struct Answer {
  std::string text;
  std::vector<int32_t> ids;  // output tokens
  esp_finish finish = ESP_FINISH_NONE;
  int32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
};

// One request that runs. Its end cancels it.
class Stream {
 public:
  // Waits for more text; nothing behind the end. A failure ends the stream.
  EngineResult<std::optional<Piece>> next() {
    esp_event event;
    if (esp_call_next(call_.get(), &event) == 0) return std::optional<Piece>();
    if (event.finish == ESP_FINISH_ERROR) return EngineError{event.status, event.message};
    take(event);
    return std::optional<Piece>(Piece{std::string(event.text, event.text_size),
                                      std::vector<int32_t>(event.ids, event.ids + event.num_ids),
                                      event.finish});
  }
  // Waits for the end. The whole answer, with what next() gave before; of a cancelled request as
  // far as it came, with ESP_FINISH_ABORT.
  EngineResult<Answer> finish() {
    while (true) {
      EngineResult<std::optional<Piece>> piece = next();
      if (!piece) return piece.error();
      if (!piece->has_value()) return answer_;
    }
  }
  void cancel() { esp_call_cancel(call_.get()); }

 private:
  friend class Engine;
  struct Free {
    void operator()(esp_call* call) const { esp_call_free(call); }
  };
  explicit Stream(esp_call* call) : call_(call) {}
  void take(const esp_event& event) {
    answer_.text.append(event.text, event.text_size);
    answer_.ids.insert(answer_.ids.end(), event.ids, event.ids + event.num_ids);
    answer_.finish = event.finish;
    answer_.prompt_tokens = event.prompt_tokens;
    answer_.cached_tokens = event.cached_tokens;
    answer_.completion_tokens = event.completion_tokens;
    if (event.embedding != nullptr)
      embedding_.assign(event.embedding, event.embedding + event.embedding_size);
  }

  std::unique_ptr<esp_call, Free> call_;
  Answer answer_;
  std::vector<float> embedding_;
};

class Engine {
 public:
  // Loads the model and starts the engine's threads.
  static EngineResult<Engine> open(const EngineOptions& options) {
    std::vector<const char*> settings;
    for (const auto& [name, value] : options.settings) {
      settings.push_back(name.c_str());
      settings.push_back(value.c_str());
    }
    esp_engine_options c;
    esp_engine_options_init(&c);
    if (!options.model_path.empty()) c.model_path = options.model_path.c_str();
    c.device = options.device.c_str();
    c.context_length = options.context_length;
    c.max_running_requests = options.max_running_requests;
    c.num_threads = options.num_threads;
    c.settings = settings.data();
    c.num_settings = options.settings.size();
    char message[2048] = "";
    esp_engine* made = nullptr;
    const esp_status code = esp_engine_open(&c, &made, message, sizeof message);
    if (code != ESP_OK) return EngineError{code, message};
    return Engine(made);
  }

  // Starts a request and gives its text as it is written.
  EngineResult<Stream> stream(std::string_view prompt, const GenerateOptions& options = {}) {
    esp_request request;
    std::vector<const char*> stop;
    fill(request, prompt, options, stop);
    return submit(request);
  }
  // Waits for the whole answer.
  EngineResult<Answer> generate(std::string_view prompt, const GenerateOptions& options = {}) {
    EngineResult<Stream> started = stream(prompt, options);
    if (!started) return started.error();
    return started->finish();
  }
  // All prompts run at once; answers are in the order of prompts. The first failure wins and
  // cancels the others.
  EngineResult<std::vector<Answer>> generate_batch(const std::vector<std::string>& prompts,
                                                   const GenerateOptions& options = {}) {
    std::vector<Stream> streams;
    for (const std::string& prompt : prompts) {
      EngineResult<Stream> started = stream(prompt, options);
      if (!started) return started.error();
      streams.push_back(std::move(*started));
    }
    std::vector<Answer> answers;
    for (Stream& one : streams) {
      EngineResult<Answer> answer = one.finish();
      if (!answer) return answer.error();
      answers.push_back(std::move(*answer));
    }
    return answers;
  }
  // The text's vector, as the model's pooling makes it. ESP_FAILED_PRECONDITION for a model that
  // generates (open it with the setting {"is-embedding", "true"}).
  EngineResult<std::vector<float>> embed(std::string_view text) {
    esp_request request;
    esp_request_init(&request);
    request.text = text.data();
    request.text_size = text.size();
    request.embed = 1;
    EngineResult<Stream> started = submit(request);
    if (!started) return started.error();
    EngineResult<Answer> ended = started->finish();
    if (!ended) return ended.error();
    return std::move(started->embedding_);
  }

  int32_t context_length() const { return esp_engine_context_length(handle_.get()); }  // tokens

 private:
  struct Free {
    void operator()(esp_engine* handle) const { esp_engine_free(handle); }
  };
  explicit Engine(esp_engine* handle) : handle_(handle) {}

  EngineResult<Stream> submit(const esp_request& request) {
    char message[2048] = "";
    esp_call* made = nullptr;
    const esp_status code =
        esp_engine_submit(handle_.get(), &request, &made, message, sizeof message);
    if (code != ESP_OK) return EngineError{code, message};
    return Stream(made);
  }
  // `stop` holds the array that `request` points to; both point into `options` and `prompt`.
  static void fill(esp_request& request, std::string_view prompt, const GenerateOptions& options,
                   std::vector<const char*>& stop) {
    const auto given = [](const std::string& text) {
      return text.empty() ? nullptr : text.c_str();
    };
    const float absent = std::numeric_limits<float>::quiet_NaN();
    esp_request_init(&request);
    request.text = prompt.data();
    request.text_size = prompt.size();
    request.max_new_tokens = options.max_new_tokens;
    request.temperature = options.temperature.value_or(absent);
    request.top_p = options.top_p.value_or(absent);
    request.min_p = options.min_p.value_or(absent);
    request.top_k = options.top_k.value_or(0);
    request.seed = options.seed.value_or(-1);
    for (const std::string& one : options.stop) stop.push_back(one.c_str());
    request.stop = stop.data();
    request.num_stop = stop.size();
    request.json_schema = given(options.json_schema);
    request.regex = given(options.regex);
    request.ebnf = given(options.ebnf);
    request.ignore_eos = options.ignore_eos ? 1 : 0;
    request.beam_width = options.beam_width.value_or(0);
    request.length_penalty = options.length_penalty;
    request.early_stopping = options.early_stopping;
  }

  std::unique_ptr<esp_engine, Free> handle_;
};

}  // namespace v0
}  // namespace espalier
