// The C interface of the engine library over the room engine. No exception and no C++ type crosses
// it.
#include "espalier/engine_c.h"

#include <cmath>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "api/c_errors.h"
#include "api/open_engine.h"

using espalier::Engine;
using espalier::FinishReason;
using espalier::GenerateRequest;
using espalier::Result;
using espalier::Status;
using espalier::StatusCode;
using espalier::TokenEvent;

struct esp_engine {
  std::shared_ptr<Engine> engine;  // shared: its calls outlive the handle
};

namespace {

constexpr const char* kShortMemory = "memory is short; pass a smaller model or fewer requests";

// The events of one call between the engine's thread and the reader. Thread-safe.
class EventQueue {
 public:
  explicit EventQueue(int32_t num_samples) : num_open_(num_samples) {}

  void push(TokenEvent&& event) {
    std::lock_guard lock(mutex_);
    if (event.finish) --num_open_;
    events_.push_back(std::move(event));
    changed_.notify_one();
  }
  // Waits for an event. False: all samples have ended and their events are taken.
  bool pop(TokenEvent& event) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !events_.empty() || num_open_ == 0; });
    if (events_.empty()) return false;
    event = std::move(events_.front());
    events_.pop_front();
    return true;
  }
  bool running() const {
    std::lock_guard lock(mutex_);
    return num_open_ > 0;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TokenEvent> events_;
  int32_t num_open_;  // samples without their last event
};

}  // namespace

struct esp_call {
  std::shared_ptr<Engine> engine;     // shared: the call keeps its engine alive
  std::shared_ptr<EventQueue> queue;  // shared with the sink on the engine's thread
  std::string rid;
  TokenEvent event;  // what the caller reads
};

namespace {

tl::unexpected<Status> invalid(std::string message) {
  return espalier::fail(Status(StatusCode::kInvalidArgument, std::move(message)));
}

// Reads a struct of the caller, who may have been compiled with a shorter one.
template <typename T>
Result<T> read_struct(const T* given, void (*init)(T*), const char* name) {
  T out;
  init(&out);
  if (given == nullptr) return out;
  if (given->struct_size == 0 || given->struct_size > sizeof(T)) {
    return invalid(fmt::format("struct_size is {}, but {} has {} bytes; call {}_init first",
                               given->struct_size, name, sizeof(T), name));
  }
  std::memcpy(&out, given, given->struct_size);
  return out;
}

Result<esp_engine> open(const esp_engine_options* given) {
  ESP_ASSIGN_OR_RETURN(const esp_engine_options options,
                       read_struct(given, esp_engine_options_init, "esp_engine_options"));
  espalier::api::NamedSettings settings;
  for (size_t i = 0; i < options.num_settings; ++i) {
    const char *name = options.settings[2 * i], *value = options.settings[2 * i + 1];
    if (name == nullptr || value == nullptr)
      return invalid(fmt::format("setting {} is NULL; pass a name and a value", i));
    settings.emplace_back(name, value);
  }
  const auto number = [&](const char* name, int32_t value) {
    if (value != 0) settings.emplace_back(name, std::to_string(value));
  };
  if (options.device != nullptr) settings.emplace_back("device", options.device);
  number("context-length", options.context_length);
  number("max-running-requests", options.max_running_requests);
  number("num-threads", options.num_threads);
  ESP_ASSIGN_OR_RETURN(auto engine,
                       espalier::api::open_engine(
                           options.model_path == nullptr ? "" : options.model_path, settings));
  return esp_engine{std::shared_ptr<Engine>(std::move(engine))};
}

void read_sampling(const esp_request& r, espalier::SamplingParams& p) {
  const auto number = [](float given, std::optional<float>& to) {
    if (!std::isnan(given)) to = given;
  };
  const auto text = [](const char* given, std::optional<std::string>& to) {
    if (given != nullptr) to = given;
  };
  p.max_new_tokens = r.max_new_tokens;
  number(r.temperature, p.temperature);
  number(r.top_p, p.top_p);
  number(r.min_p, p.min_p);
  if (r.top_k != 0) p.top_k = r.top_k;
  if (r.seed >= 0) p.sampling_seed = static_cast<uint64_t>(r.seed);
  p.n = r.num_samples;
  p.stop.assign(r.stop, r.stop + r.num_stop);
  text(r.json_schema, p.json_schema);
  text(r.regex, p.regex);
  text(r.ebnf, p.ebnf);
  p.ignore_eos = r.ignore_eos != 0;
  if (r.beam_width == 0) return;
  p.use_beam_search = true;
  p.beam_width = r.beam_width;
  p.length_penalty = r.length_penalty;
  p.early_stopping = static_cast<espalier::EarlyStopping>(r.early_stopping);
}

Result<GenerateRequest> read_request(const esp_request* given) {
  if (given == nullptr) return invalid("the request is NULL; pass one");
  ESP_ASSIGN_OR_RETURN(const esp_request r, read_struct(given, esp_request_init, "esp_request"));
  if ((r.text == nullptr && r.text_size > 0) || (r.input_ids == nullptr && r.num_input_ids > 0))
    return invalid("the prompt is NULL; pass text or input_ids with their size");
  if (r.num_samples < 1)
    return invalid(fmt::format("num_samples is {}; it must be 1 or more", r.num_samples));
  if (r.early_stopping < ESP_EARLY_STOPPING_NO || r.early_stopping > ESP_EARLY_STOPPING_NEVER)
    return invalid(
        fmt::format("early_stopping is {}; pass an esp_early_stopping", r.early_stopping));
  for (size_t i = 0; i < r.num_stop; ++i)
    if (r.stop == nullptr || r.stop[i] == nullptr)
      return invalid(fmt::format("stop[{}] is NULL; pass num_stop strings", i));
  GenerateRequest request;
  if (r.text_size > 0) request.text.assign(r.text, r.text_size);
  request.input_ids.assign(r.input_ids, r.input_ids + r.num_input_ids);
  read_sampling(r, request.sampling);
  request.embed = r.embed != 0;
  return request;
}

Result<esp_call> submit(const esp_engine* engine, const esp_request* given) {
  if (engine == nullptr) return invalid("the engine is NULL; open one");
  ESP_ASSIGN_OR_RETURN(GenerateRequest request, read_request(given));
  const int32_t num_samples = request.embed ? 1 : request.sampling.n;
  esp_call call{engine->engine, std::make_shared<EventQueue>(num_samples), {}, {}};
  ESP_ASSIGN_OR_RETURN(call.rid, engine->engine->submit(std::move(request),
                                                        [queue = call.queue](TokenEvent&& event) {
                                                          queue->push(std::move(event));
                                                        }));
  return call;
}

esp_finish finish_of(const TokenEvent& event) {
  if (!event.finish) return ESP_FINISH_NONE;
  switch (event.finish->type) {
    case FinishReason::Type::kStop:
      return ESP_FINISH_STOP;
    case FinishReason::Type::kLength:
      return ESP_FINISH_LENGTH;
    case FinishReason::Type::kAbort:
      return ESP_FINISH_ABORT;
    case FinishReason::Type::kError:
      break;
  }
  return ESP_FINISH_ERROR;
}

// `event` points into `from`.
void write_event(const TokenEvent& from, esp_event& event) {
  const Status status = from.finish ? from.finish->status : Status();
  event = {};
  event.sample = from.index;
  event.text = from.text.c_str();
  event.text_size = from.text.size();
  event.ids = from.ids.data();
  event.num_ids = from.ids.size();
  if (!from.embedding.empty()) {
    event.embedding = from.embedding.data();
    event.embedding_size = from.embedding.size();
  }
  event.finish = finish_of(from);
  event.status = espalier::api::code_of(status);
  event.message = from.finish ? from.finish->status.message().c_str() : "";
  event.prompt_tokens = from.stats.prompt_tokens;
  event.cached_tokens = from.stats.cached_tokens;
  event.completion_tokens = from.stats.completion_tokens;
  event.beam_score = from.beam ? from.beam->score : std::nanf("");
}

}  // namespace

void esp_engine_options_init(esp_engine_options* options) {
  *options = {};
  options->struct_size = sizeof *options;
}

void esp_request_init(esp_request* request) {
  *request = {};
  request->struct_size = sizeof *request;
  request->max_new_tokens = 128;
  request->temperature = request->top_p = request->min_p = std::nanf("");
  request->num_samples = 1;
  request->seed = -1;
  request->length_penalty = 1;
}

esp_status esp_engine_open(const esp_engine_options* options, esp_engine** engine, char* error,
                           size_t error_size) {
  return espalier::api::create(engine, error, error_size, kShortMemory,
                               [&] { return open(options); });
}

void esp_engine_free(esp_engine* engine) { delete engine; }

int32_t esp_engine_context_length(const esp_engine* engine) {
  return engine->engine->context_length();
}

esp_status esp_engine_submit(esp_engine* engine, const esp_request* request, esp_call** call,
                             char* error, size_t error_size) {
  return espalier::api::create(call, error, error_size, kShortMemory,
                               [&] { return submit(engine, request); });
}

int esp_call_next(esp_call* call, esp_event* event) {
  if (!call->queue->pop(call->event)) return 0;
  write_event(call->event, *event);
  return 1;
}

void esp_call_cancel(esp_call* call) { call->engine->abort(call->rid, Engine::AbortScope::kExact); }

void esp_call_free(esp_call* call) {
  if (call != nullptr && call->queue->running()) esp_call_cancel(call);
  delete call;
}
