#include "server/tracing/profiler.h"

#include <utility>

#include "base/log.h"

namespace espalier::server {

void Profiler::start(const ContextPtr& context, const ProfileOptions& options,
                     std::filesystem::path path, Answer answer) {
  {
    std::lock_guard lock(mutex_);
    if (active_)
      return answer(fail(error(StatusCode::kFailedPrecondition,
                               "Profiling is already in progress. Call /stop_profile first.")));
    active_ = true;
    path_ = std::move(path);
  }
  // A context that is there holds this object too. `context` may be a pointer of this request
  // alone.
  const std::weak_ptr<Context> weak = context->weak_from_this();
  context->engine.profile({.start = options,
                           .done =
                               [this, weak](StepProfile&& profile) {
                                 if (const ContextPtr alive = weak.lock())
                                   on_recorded(alive, std::move(profile));
                               },
                           .answered =
                               [this, weak, answer = std::move(answer)](const Status& status) {
                                 if (const ContextPtr alive = weak.lock())
                                   on_started(status, answer);
                               }});
}

bool Profiler::is_active() const {
  std::lock_guard lock(mutex_);
  return active_;
}

void Profiler::on_started(const Status& status, const Answer& answer) {
  if (!status.ok()) {
    answer(fail(status));
    return end(status);  // a call of stop() may wait
  }
  std::filesystem::path path;
  {
    std::lock_guard lock(mutex_);
    path = path_;
  }
  answer(path);
}

// A profile that has ended by itself meanwhile is being written: its end answers this call too.
void Profiler::stop(const ContextPtr& context, Answer answer) {
  {
    std::lock_guard lock(mutex_);
    if (!active_)
      return answer(fail(error(StatusCode::kFailedPrecondition,
                               "Profiling is not in progress. Call /start_profile first.")));
    stopping_.push_back(std::move(answer));
  }
  context->engine.profile({.answered = [](const Status&) {}});
}

void Profiler::on_recorded(const ContextPtr& context, StepProfile&& recorded) {
  const auto profile = std::make_shared<StepProfile>(std::move(recorded));  // the task is copyable
  const bool taken = context->threads->workers.run([this, context, profile] {
    std::filesystem::path path;
    {
      std::lock_guard lock(mutex_);
      path = path_;
    }
    const Status status = write_trace_file(path, *profile, context->model_name);
    if (status.ok())
      log_info("profile written path=\"{}\" steps={}", path.string(), profile->steps.size());
    else
      log_error("profile not written: {}", status.message());
    end(status);
  });
  if (!taken)
    end(error(StatusCode::kUnavailable,
              "the profile is lost, for the server's workers are busy: record it again later"));
}

void Profiler::end(const Status& status) {
  std::vector<Answer> answers;
  std::filesystem::path path;
  {
    std::lock_guard lock(mutex_);
    active_ = false;
    answers.swap(stopping_);
    path = path_;
  }
  for (const Answer& answer : answers) status.ok() ? answer(path) : answer(fail(status));
}

}  // namespace espalier::server
