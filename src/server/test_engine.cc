#include "server/test_engine.h"

#include <algorithm>

namespace espalier::server {
namespace {

TokenLogprobs logprobs_of(TokenId id, const GenerateRequest& request) {
  TokenLogprobs out;
  out.logprob = ScriptedEngine::logprob(id);
  for (int32_t i = 0; i < request.top_logprobs_num; ++i) {
    out.top.emplace_back(id + i, ScriptedEngine::logprob(id) - static_cast<float>(i));
  }
  for (const TokenId wanted : request.token_ids_logprob) {
    out.wanted.emplace_back(wanted, ScriptedEngine::logprob(wanted));
  }
  return out;
}

// Of the prompt's tokens from request.logprob_start_len on; the first token has none.
std::vector<TokenLogprobs> input_logprobs_of(const std::vector<TokenId>& prompt,
                                             const GenerateRequest& request) {
  std::vector<TokenLogprobs> out;
  if (!request.return_logprob || request.logprob_start_len < 0) return out;
  for (auto i = static_cast<size_t>(std::max(request.logprob_start_len, 1)); i < prompt.size(); ++i)
    out.push_back(logprobs_of(prompt[i], request));
  return out;
}

// The stop string that `text` ends with; null: none.
const std::string* stop_at_end(const std::string& text, const std::vector<std::string>& stops) {
  const auto found = std::ranges::find_if(stops, [&](const auto& s) { return text.ends_with(s); });
  return found != stops.end() ? &*found : nullptr;
}

}  // namespace

ScriptedEngine::ScriptedEngine() : tokenizer_(make_byte_tokenizer(true)) {
  config_.model.model_path = "/models/scripted-1b/";
  config_.schedule.max_running_requests = 8;
  info_.architecture = "LlamaForCausalLM";
  info_.model_type = "llama";
  info_.vocab_size = kByteVocabSize;
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stop_ || !work_.empty(); });
      if (work_.empty()) return;
      const auto task = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  });
}

ScriptedEngine::~ScriptedEngine() {
  abort("", AbortScope::kAll);
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ScriptedEngine::set_num_waiting(int32_t count) {
  std::lock_guard lock(mutex_);
  stats_.requests.num_waiting = count;
}

void ScriptedEngine::set_script(Script script) {
  std::lock_guard lock(mutex_);
  script_ = std::move(script);
}

std::vector<GenerateRequest> ScriptedEngine::submitted() const {
  std::lock_guard lock(mutex_);
  return submitted_;
}

int ScriptedEngine::num_running() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(open_.size());
}

bool ScriptedEngine::wait_for(const std::function<bool()>& condition, Duration timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    std::unique_lock lock(mutex_);
    if (std::chrono::steady_clock::now() >= deadline) return false;
    changed_.wait_for(lock, std::chrono::milliseconds(5));
  }
  return true;
}

int32_t ScriptedEngine::context_length() const {
  std::lock_guard lock(mutex_);
  return script_.context_length;
}

Result<std::string> ScriptedEngine::submit(GenerateRequest request, EventSink sink) {
  std::lock_guard lock(mutex_);
  submitted_.push_back(request);
  if (!script_.submit_error.ok()) return fail(script_.submit_error);
  if (request.sampling.n < 1) return fail(invalid_argument("n must be at least 1"));
  ++stats_.requests.num_total;
  std::string rid = request.rid;
  work_.push_back([this, request = std::move(request), sink = std::move(sink), script = script_] {
    run(request, sink, script);
  });
  changed_.notify_all();
  return rid;
}

void ScriptedEngine::run(const GenerateRequest& request, const EventSink& sink,
                         const Script& script) {
  std::vector<TokenId> prompt = request.input_ids;
  if (prompt.empty()) {
    EncodeOptions options;
    options.add_special_tokens = request.add_special_tokens;
    prompt = tokenizer_->encode(request.text, options);
  }
  bool ended = true;
  for (int32_t i = 0; i < request.sampling.n; ++i) {
    ended = run_sample(request, i, prompt, sink, script);  // the same for every sample
  }
  if (ended) return;
  std::lock_guard lock(mutex_);
  RequestStats stats;
  stats.prompt_tokens = static_cast<int32_t>(prompt.size());
  stats.completion_tokens = script.hold_after;
  open_.push_back({request.rid, request.sampling.n, sink, stats});
  changed_.notify_all();
}

bool ScriptedEngine::run_sample(const GenerateRequest& request, int32_t index,
                                std::vector<TokenId> prompt, const EventSink& sink,
                                const Script& script) {
  RequestStats stats;
  stats.arrived = stats.scheduled = std::chrono::steady_clock::now();
  stats.prompt_tokens = static_cast<int32_t>(prompt.size());
  stats.cached_tokens = stats.prompt_tokens / 2;
  const auto end = [&](TokenEvent event, FinishReason reason) {
    stats.finished = std::chrono::steady_clock::now();
    event.index = index;
    event.finish = std::move(reason);
    event.stats = stats;
    if (request.sampling.use_beam_search)
      event.beam = {.score = -0.5f - static_cast<float>(index), .cumulative_logprob = -4};
    sink(std::move(event));
    return true;
  };
  using Type = FinishReason::Type;
  if (stats.prompt_tokens >= script.context_length) {
    return end({}, {Type::kError,
                    {},
                    invalid_argument("the prompt has {} tokens, the context {}", prompt.size(),
                                     script.context_length)});
  }
  if (!script.error.ok() && script.error_after == 0)
    return end({}, {Type::kError, {}, script.error});
  if (script.hold && script.hold_after == 0) return false;

  std::vector<TokenLogprobs> input_logprobs = input_logprobs_of(prompt, request);
  const int32_t max_new = request.sampling.max_new_tokens.value_or(
      request.sampling.to_context ? script.context_length - stats.prompt_tokens : 128);
  if (max_new == 0) {
    TokenEvent event;
    event.input_logprobs = std::move(input_logprobs);
    const bool wants_next = request.top_logprobs_num > 0 || !request.token_ids_logprob.empty();
    if (request.return_logprob && wants_next) event.next_logprobs = logprobs_of('a', request);
    return end(std::move(event), {Type::kLength, {}, {}});
  }
  std::vector<TokenId> reply = tokenizer_->encode(script.reply, {.add_special_tokens = false});
  reply.push_back(kByteEosId);
  std::string text;
  for (const TokenId id : reply) {
    if (!script.error.ok() && stats.completion_tokens == script.error_after) {
      return end({}, {Type::kError, {}, script.error});
    }
    if (script.hold && stats.completion_tokens == script.hold_after) return false;
    if (stats.completion_tokens == 0) stats.first_token = std::chrono::steady_clock::now();
    ++stats.completion_tokens;
    TokenEvent event;
    event.index = index;
    event.ids = {id};
    if (request.return_logprob) event.logprobs = {logprobs_of(id, request)};
    if (request.return_token_origins)
      event.origins = {id == 'H' ? TokenOrigin::kDrafted : TokenOrigin::kSampled};
    event.input_logprobs = std::move(input_logprobs);
    input_logprobs.clear();
    if (id != kByteEosId) event.text = std::string(1, static_cast<char>(id));
    text += event.text;
    if (stats.completion_tokens == max_new) return end(std::move(event), {Type::kLength, {}, {}});
    if (const std::string* stop = stop_at_end(text, request.sampling.stop)) {
      event.text.clear();  // single-character stops are trimmed as the engine trims them
      return end(std::move(event), {Type::kStop, *stop, {}});
    }
    if (id == kByteEosId) return end(std::move(event), {Type::kStop, id, {}});
    event.stats = stats;
    sink(std::move(event));
  }
  return true;
}

// Behind what was submitted before it, which may not be open yet.
void ScriptedEngine::abort(std::string_view rid, AbortScope scope) {
  std::lock_guard lock(mutex_);
  work_.push_back([this, rid = std::string(rid), scope] { end_open(rid, scope); });
  changed_.notify_all();
}

void ScriptedEngine::end_open(const std::string& rid, AbortScope scope) {
  std::vector<OpenRequest> ended;
  {
    std::lock_guard lock(mutex_);
    std::erase_if(open_, [&](const OpenRequest& request) {
      const bool hit = scope == AbortScope::kAll || request.rid == rid ||
                       (scope == AbortScope::kPrefix && request.rid.starts_with(rid));
      if (hit) ended.push_back(request);
      return hit;
    });
    changed_.notify_all();
  }
  for (const OpenRequest& request : ended) {
    for (int32_t i = 0; i < request.num_samples; ++i) {
      TokenEvent event;
      event.index = i;
      event.finish = FinishReason{
          FinishReason::Type::kAbort, {}, Status(StatusCode::kAborted, "aborted by its client")};
      event.stats = request.stats;
      event.stats.finished = event.stats.arrived = std::chrono::steady_clock::now();
      request.sink(std::move(event));
    }
  }
}

Status ScriptedEngine::flush_cache() {
  std::lock_guard lock(mutex_);
  if (open_.empty()) return {};
  return error(StatusCode::kFailedPrecondition, "{} requests run", open_.size());
}

EngineStats ScriptedEngine::stats() const {
  std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.requests.num_running = static_cast<int32_t>(open_.size());
  stats.tokens.prompt = 40;
  stats.tokens.cached = 10;
  stats.tokens.generated = 70;
  stats.memory.kv_tokens = 1000;
  stats.memory.kv_tokens_running = 250;
  stats.tokens.generated_per_second = 12.5;
  stats.requests.num_failed = 4;
  stats.requests.num_not_finite = 3;
  stats.memory.graph_bytes = 250'000'000;
  stats.memory.scratch_bytes = 500'000'000;
  stats.speculation.by_drafter.resize(kNumDrafters);
  DraftCounts& radix = stats.speculation.by_drafter[static_cast<size_t>(Drafter::kRadix)];
  radix = {.drafted_tokens = 8, .accepted_tokens = 6, .verify_steps = 2};
  radix.accepted_lengths.entries[3] = 2;
  return stats;
}

}  // namespace espalier::server
