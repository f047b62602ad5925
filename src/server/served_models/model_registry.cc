#include "server/served_models/model_registry.h"

#include <algorithm>
#include <exception>
#include <new>

#include "base/check.h"
#include "base/log.h"
#include "base/thread.h"

namespace espalier::server {
namespace {

// Between two looks at whether models still have something to lose.
constexpr Duration kStatefulInterval = std::chrono::seconds(1);

TimePoint now() { return std::chrono::steady_clock::now(); }

std::vector<ModelTraits> traits_of(const std::vector<RegisteredModel>& models) {
  std::vector<ModelTraits> out;
  for (const RegisteredModel& model : models) out.push_back(model.traits);
  return out;
}

std::string_view verb_of(ModelStep::Kind kind) {
  switch (kind) {
    case ModelStep::Kind::kLoad:
      return "loaded";
    case ModelStep::Kind::kWake:
      return "woken";
    case ModelStep::Kind::kSleep:
      return "asleep";
    case ModelStep::Kind::kUnload:
      break;
  }
  return "unloaded";
}

bool brings(ModelStep::Kind kind) {
  return kind == ModelStep::Kind::kLoad || kind == ModelStep::Kind::kWake;
}

void give(std::vector<std::pair<ModelRegistry::Done, Result<ContextPtr>>>& answers) {
  for (auto& [done, result] : answers) done(std::move(result));
  answers.clear();
}

}  // namespace

std::string_view name_of(ModelState state) {
  switch (state) {
    case ModelState::kUnloaded:
      return "unloaded";
    case ModelState::kLoading:
      return "loading";
    case ModelState::kReady:
      return "ready";
    case ModelState::kFallingAsleep:
      return "falling_asleep";
    case ModelState::kAsleep:
      return "asleep";
    case ModelState::kWaking:
      return "waking";
    case ModelState::kUnloading:
      break;
  }
  return "unloading";
}

struct ModelRegistry::Core {
  Core(std::vector<ModelTraits> models, int64_t bytes_max)
      : schedule(std::move(models), bytes_max) {}
  std::mutex mutex;
  std::condition_variable changed;
  ModelSchedule schedule;
};

struct ModelRegistry::Lease {
  Lease(std::shared_ptr<Core> c, size_t m, bool uses, ContextPtr used)
      : core(std::move(c)), model(m), counts(uses), context(std::move(used)) {}
  ~Lease() {
    context = nullptr;  // before the model may be unloaded, which takes the last reference away
    {
      const std::lock_guard lock(core->mutex);
      core->schedule.end_use(model, now(), counts);
    }
    core->changed.notify_all();
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  const std::shared_ptr<Core> core;
  const size_t model;
  const bool counts;
  ContextPtr context;
};

ModelRegistry::ModelRegistry(std::vector<RegisteredModel> models, std::unique_ptr<ModelHost> host,
                             Settings settings)
    : models_(std::move(models)),
      settings_(settings),
      host_(std::move(host)),
      core_(std::make_shared<Core>(traits_of(models_), settings.bytes_max)),
      counts_(models_.size()) {
  ESP_CHECK(!models_.empty(), "a registry has a default model");
}

void ModelRegistry::start() {
  const std::lock_guard lock(core_->mutex);
  for (size_t i = 0; i < models_.size(); ++i)
    if (models_[i].preload) core_->schedule.want(i);
  thread_ = std::thread([this] { run(); });
}

void ModelRegistry::stop() {
  {
    const std::lock_guard lock(core_->mutex);
    if (stopped_) return;
    stopped_ = true;
  }
  core_->changed.notify_all();
  if (thread_.joinable()) thread_.join();
  timers_.stop();
  Answers answers;
  {
    const std::lock_guard lock(core_->mutex);
    for (auto& [number, waiter] : waiters_)
      answers.emplace_back(std::move(waiter.done),
                           fail(error(StatusCode::kUnavailable, "the server is stopping")));
    waiters_.clear();
  }
  give(answers);
  for (size_t i = 0; i < models_.size(); ++i) host_->unload(i);
}

std::optional<size_t> ModelRegistry::find(std::string_view name) const {
  if (name.empty()) return 0;
  for (size_t i = 0; i < models_.size(); ++i)
    if (models_[i].name == name || std::ranges::count(models_[i].aliases, name) > 0) return i;
  const size_t colon = name.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  return find(name.substr(0, colon));
}

ContextPtr ModelRegistry::lease(size_t model, bool counts) const {
  if (!core_->schedule.begin_use(model)) return nullptr;
  auto use = std::make_shared<Lease>(core_, model, counts, host_->context(model));
  Context* const context = use->context.get();
  return {std::move(use), context};
}

Status ModelRegistry::named(size_t model, const Status& why) const {
  return Status(why.code(), fmt::format("the model '{}' cannot be loaded now: {}",
                                        models_[model].name, why.message()));
}

void ModelRegistry::acquire(size_t model, Done done) {
  ContextPtr ready;
  Status refusal;
  {
    const std::lock_guard lock(core_->mutex);
    if (stopped_) {
      refusal = error(StatusCode::kUnavailable, "the server is stopping");
    } else if (ready = lease(model, true); ready == nullptr) {
      if (waiters_.size() >= settings_.waiting_max)
        refusal = error(StatusCode::kResourceExhausted,
                        "{} requests wait for models already: try again later", waiters_.size());
      else {
        const uint64_t number = num_calls_++;
        waiters_.emplace(number, Waiter{model, std::move(done)});
        core_->schedule.want(model);
        timers_.post_after(settings_.load_timeout, [this, number] { expire(number); });
      }
    }
  }
  if (ready != nullptr) return done(std::move(ready));
  if (!refusal.ok()) return done(fail(refusal));
  core_->changed.notify_all();
}

ContextPtr ModelRegistry::acquire_ready(size_t model) const {
  const std::lock_guard lock(core_->mutex);
  return stopped_ ? nullptr : lease(model, true);
}

ContextPtr ModelRegistry::look_at(size_t model) const {
  const std::lock_guard lock(core_->mutex);
  return lease(model, false);
}

void ModelRegistry::expire(uint64_t waiter) {
  Answers answers;
  {
    const std::lock_guard lock(core_->mutex);
    const auto found = waiters_.find(waiter);
    if (found == waiters_.end()) return;
    const size_t model = found->second.model;
    const Status why = core_->schedule.reason(model, free_bytes_);
    answers.emplace_back(
        std::move(found->second.done),
        fail(named(model, error(StatusCode::kUnavailable, "after {:.1f} s {}",
                                to_seconds(settings_.load_timeout), why.message()))));
    waiters_.erase(found);
    const bool is_last = std::ranges::none_of(
        waiters_, [&](const auto& each) { return each.second.model == model; });
    if (is_last) core_->schedule.unwant(model);
  }
  give(answers);
}

void ModelRegistry::answer(size_t model, const Status& failure, Answers& answers) {
  for (auto at = waiters_.begin(); at != waiters_.end();) {
    if (at->second.model != model) {
      ++at;
      continue;
    }
    answers.emplace_back(std::move(at->second.done),
                         failure.ok() ? Result<ContextPtr>(lease(model, true))
                                      : Result<ContextPtr>(fail(named(model, failure))));
    at = waiters_.erase(at);
  }
}

void ModelRegistry::answer_hopeless(Answers& answers) {
  for (size_t i = 0; i < models_.size(); ++i) {
    const Status failure = core_->schedule.failure(i, free_bytes_);
    if (failure.ok()) continue;
    log_warning("the model '{}' cannot be loaded: {}", models_[i].name, failure.message());
    answer(i, failure, answers);
    core_->schedule.unwant(i);
  }
}

Result<int64_t> ModelRegistry::call_host(const ModelStep& step) {
  try {
    switch (step.kind) {
      case ModelStep::Kind::kLoad:
        return host_->load(step.model);
      case ModelStep::Kind::kWake:
        return host_->wake(step.model);
      case ModelStep::Kind::kSleep:
        return host_->sleep(step.model);
      case ModelStep::Kind::kUnload:
        host_->unload(step.model);
        return 0;
    }
  } catch (const std::bad_alloc&) {
    return fail(error(StatusCode::kResourceExhausted, "there is no memory for it"));
  } catch (const std::exception& problem) {  // a third party's
    return fail(error(StatusCode::kInternal, "{}", problem.what()));
  }
  return 0;
}

void ModelRegistry::run_step(const ModelStep& step, std::unique_lock<std::mutex>& lock) {
  const int64_t before = core_->schedule.bytes(step.model);
  lock.unlock();
  const TimePoint begin = now();
  Result<int64_t> done = call_host(step);
  const double seconds = to_seconds(now() - begin);
  // What a wake has left half done is no use to anybody.
  if (!done && step.kind == ModelStep::Kind::kWake) host_->unload(step.model);
  const Status status = done ? Status() : done.error();
  if (done)
    log_info("model name={} state={} mib={:.1f} ms={:.0f}", models_[step.model].name,
             verb_of(step.kind), static_cast<double>(*done) / (1 << 20), seconds * 1e3);
  else
    log_error("model name={} not {}: {}", models_[step.model].name, verb_of(step.kind),
              status.message());
  Answers answers;
  lock.lock();
  core_->schedule.end_step(status, done ? *done : before, now());
  ModelReport& counts = counts_[step.model];
  if (brings(step.kind)) {
    counts.load_seconds = seconds;
    done ? ++counts.num_loads : ++counts.num_failures;
  }
  // Behind a load or a wake, and behind a sleep that failed.
  if (core_->schedule.state(step.model) == ModelState::kReady)
    answer(step.model, Status(), answers);
  answer_hopeless(answers);
  lock.unlock();
  give(answers);
  core_->changed.notify_all();
  lock.lock();
}

bool ModelRegistry::read_stateful() {
  bool any = false;
  for (size_t i = 0; i < models_.size(); ++i) {
    const ModelState state = core_->schedule.state(i);
    const bool in_memory = state == ModelState::kReady || state == ModelState::kAsleep;
    const bool stateful = in_memory && host_->is_stateful(i);
    core_->schedule.set_stateful(i, stateful);
    any = any || stateful;
  }
  return any;
}

void ModelRegistry::run() {
  set_thread_name("esp-models");
  std::unique_lock lock(core_->mutex);
  while (!stopped_) {
    lock.unlock();  // it may be a slow system call, and requests take the mutex
    const int64_t free_bytes = host_->free_bytes();
    lock.lock();
    if (stopped_) return;
    free_bytes_ = free_bytes;
    const bool any_stateful = read_stateful();
    if (const auto step = core_->schedule.begin_step(now(), free_bytes_)) {
      run_step(*step, lock);
      continue;
    }
    Answers answers;
    answer_hopeless(answers);
    if (!answers.empty()) {
      lock.unlock();
      give(answers);
      lock.lock();
      continue;
    }
    core_->changed.notify_all();  // wait_until_settled()
    std::optional<TimePoint> next = core_->schedule.next_stop();
    if (any_stateful) next = std::min(next.value_or(TimePoint::max()), now() + kStatefulInterval);
    if (next)
      core_->changed.wait_until(lock, *next);
    else
      core_->changed.wait(lock);
  }
}

void ModelRegistry::wait_until_settled() {
  std::unique_lock lock(core_->mutex);
  core_->changed.wait(lock, [&] {
    if (stopped_) return true;
    for (size_t i = 0; i < models_.size(); ++i)
      if (core_->schedule.wanted(i)) return false;
    return !core_->schedule.is_stepping();
  });
}

std::vector<ModelReport> ModelRegistry::reports() const {
  const std::lock_guard lock(core_->mutex);
  std::vector<ModelReport> out = counts_;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].state = core_->schedule.state(i);
    out[i].bytes = core_->schedule.bytes(i);
    out[i].num_users = core_->schedule.num_users(i);
    out[i].last_failure = core_->schedule.last_failure(i);
  }
  for (const auto& [number, waiter] : waiters_) ++out[waiter.model].num_waiting;
  return out;
}

}  // namespace espalier::server
