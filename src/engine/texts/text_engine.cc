#include "engine/texts/text_engine.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/requests/embedding.h"
#include "engine/requests/registry.h"
#include "engine/requests/rid_source.h"
#include "engine/texts/text_queue.h"
#include "engine/texts/typed_text.h"

namespace espalier {
namespace {

Status aborted_error() { return error(StatusCode::kAborted, "the request was aborted"); }

class TextEngine final : public Engine {
 public:
  TextEngine(EngineConfig config, TextEngineParts parts)
      : config_(std::move(config)),
        parts_(std::move(parts)),
        info_(parts_.encoder->info()),
        registry_(int64_t{config_.schedule.max_queued_requests} +
                  config_.schedule.max_running_requests) {
    for (int32_t i = 0; i < config_.model.tokenizer_threads; ++i)
      tokenizers_.emplace_back([this] { tokenise(); });
    steps_ = std::thread([this] { run_steps(); });
  }
  ~TextEngine() override {
    registry_.close();
    queue_.close();
    for (std::thread& thread : tokenizers_) thread.join();
    steps_.join();
  }

  Result<std::string> submit(GenerateRequest request, EventSink sink) override;
  void abort(std::string_view rid, AbortScope scope) override {
    queue_.abort(registry_.take_for_abort(rid, scope));
  }
  Status flush_cache() override { return {}; }  // nothing is kept between requests
  void drain(Duration timeout) override {
    registry_.close();
    if (registry_.wait_settled(timeout)) return;
    abort("", AbortScope::kAll);
    registry_.wait_settled(std::chrono::seconds(60));
  }
  EngineStats stats() const override;
  const ModelInfo& model_info() const override { return info_; }
  const EngineConfig& config() const override { return config_; }
  const Tokenizer* tokenizer() const override { return parts_.tokenizer.get(); }
  int32_t context_length() const override { return info_.context_length; }

 private:
  void tokenise();
  void run_steps();
  void run_step(std::vector<TextJobPtr>& jobs);
  void end(TextJob& job, TokenEvent event);
  void fail_job(TextJob& job, FinishReason::Type type, Status why);

  const EngineConfig config_;
  const TextEngineParts parts_;
  const ModelInfo info_;
  const SteadyClock clock_;
  RidSource rids_;
  RequestRegistry registry_;
  TextQueue queue_;
  mutable std::mutex stats_mutex_;
  EngineStats stats_;
  std::vector<std::thread> tokenizers_;
  std::thread steps_;
};

Result<std::string> TextEngine::submit(GenerateRequest request, EventSink sink) {
  ESP_RETURN_IF_ERROR(check_text_request(request, info_, parts_.tokenizer != nullptr));
  if (request.rid.empty()) request.rid = rids_.next();
  const std::string rid = request.rid;
  ESP_ASSIGN_OR_RETURN(const RequestRegistry::Admission admission,
                       registry_.admit({.rid = rid, .priority = request.priority}));
  auto job = std::make_unique<TextJob>();
  job->id = admission.id;
  job->stats.arrived = clock_.now();
  job->request = std::move(request);
  job->sink = std::move(sink);
  queue_.push(std::move(job));
  return rid;
}

void TextEngine::tokenise() {
  set_thread_name("tokenizer");
  while (TextJobPtr job = queue_.next_raw()) {
    if (!job->aborted) {
      try {
        job->text = typed_text(job->request, parts_.encoder->spec(), parts_.tokenizer.get());
      } catch (const std::exception&) {  // the standard library's: no memory
        job->text = fail(error(StatusCode::kResourceExhausted,
                               "there is no memory to tokenise a text of {} bytes: try again later",
                               job->request.text.size()));
      }
    }
    queue_.push_tokenised(std::move(job));
  }
}

void TextEngine::run_steps() {
  set_thread_name("text steps");
  for (;;) {
    std::vector<TextJobPtr> jobs = queue_.next_step(parts_.encoder->step_tokens_max());
    if (jobs.empty()) return;
    run_step(jobs);
  }
}

void TextEngine::run_step(std::vector<TextJobPtr>& jobs) {
  std::vector<TextJob*> running;
  std::vector<EncoderText> texts;
  for (const TextJobPtr& job : jobs) {
    if (job->aborted) {
      fail_job(*job, FinishReason::Type::kAbort, aborted_error());
    } else if (!job->text) {
      fail_job(*job, FinishReason::Type::kError, job->text.error());
    } else {
      job->stats.scheduled = clock_.now();
      job->stats.prompt_tokens = static_cast<int32_t>(job->text->ids.size());
      running.push_back(job.get());
      texts.push_back({job->text->ids, job->text->types});
    }
  }
  if (running.empty()) return;
  {
    std::lock_guard lock(stats_mutex_);
    stats_.requests.num_running = static_cast<int32_t>(running.size());
  }
  const TimePoint begin = clock_.now();
  auto vectors = parts_.encoder->encode(texts);
  {
    std::lock_guard lock(stats_mutex_);
    stats_.requests.num_running = 0;
    ++stats_.steps.num_steps;
    stats_.steps.num_entries += std::ssize(running);
    stats_.steps.forward_seconds += to_seconds(clock_.now() - begin);
  }
  for (size_t i = 0; i < running.size(); ++i) {
    TextJob& job = *running[i];
    if (!vectors) {
      fail_job(job, FinishReason::Type::kError, vectors.error());
      continue;
    }
    TokenEvent event;
    event.embedding = std::move((*vectors)[i]);
    if (!info_.pooled->each_token)
      shape_embedding(event.embedding, *info_.pooled, job.request.dimensions);
    event.finish = FinishReason{.type = FinishReason::Type::kLength};
    end(job, std::move(event));
  }
}

void TextEngine::fail_job(TextJob& job, FinishReason::Type type, Status why) {
  TokenEvent event;
  event.finish = FinishReason{.type = type, .status = std::move(why)};
  end(job, std::move(event));
}

void TextEngine::end(TextJob& job, TokenEvent event) {
  job.stats.finished = clock_.now();
  event.stats = job.stats;
  {
    std::lock_guard lock(stats_mutex_);
    stats_.tokens.prompt += job.stats.prompt_tokens;
    const bool aborted = event.finish->type == FinishReason::Type::kAbort;
    ++(aborted ? stats_.requests.num_aborted : stats_.requests.num_finished);
    stats_.requests.num_failed += event.finish->type == FinishReason::Type::kError;
  }
  queue_.forget(job.id);
  registry_.release_sample(job.request.rid);
  registry_.release_rid(job.request.rid);
  job.sink(std::move(event));
  registry_.settle();
}

EngineStats TextEngine::stats() const {
  EngineStats stats;
  {
    std::lock_guard lock(stats_mutex_);
    stats = stats_;
  }
  stats.requests.num_waiting = queue_.num_waiting();
  stats.requests.num_total = registry_.num_requests_total();
  stats.memory.weight_bytes = info_.weight_bytes;
  return stats;
}

}  // namespace

std::unique_ptr<Engine> make_text_engine(EngineConfig config, TextEngineParts parts) {
  return std::make_unique<TextEngine>(std::move(config), std::move(parts));
}

}  // namespace espalier
