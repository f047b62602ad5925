#include "server/served_models/model_schedule.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace espalier::server {
namespace {

bool is_stopped(ModelState state) {
  return state == ModelState::kUnloaded || state == ModelState::kAsleep;
}

ModelState state_during(ModelStep::Kind kind) {
  switch (kind) {
    case ModelStep::Kind::kLoad:
      return ModelState::kLoading;
    case ModelStep::Kind::kWake:
      return ModelState::kWaking;
    case ModelStep::Kind::kSleep:
      return ModelState::kFallingAsleep;
    case ModelStep::Kind::kUnload:
      break;
  }
  return ModelState::kUnloading;
}

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

ModelSchedule::ModelSchedule(std::vector<ModelTraits> models, int64_t bytes_max)
    : bytes_max_(bytes_max) {
  for (ModelTraits& traits : models) models_.push_back({.traits = traits});
}

void ModelSchedule::want(size_t model) {
  Model& m = at(model);
  if (m.wanted_since > 0 || m.state == ModelState::kReady) return;
  m.wanted_since = ++num_wants_;
  m.failed = m.lacks_memory = false;
}

void ModelSchedule::unwant(size_t model) { at(model).wanted_since = 0; }

bool ModelSchedule::begin_use(size_t model) {
  Model& m = at(model);
  if (m.state != ModelState::kReady) return false;
  ++m.num_users;
  return true;
}

void ModelSchedule::end_use(size_t model, TimePoint now, bool counts) {
  Model& m = at(model);
  ESP_CHECK(m.num_users > 0, "a use of a model ends once");
  --m.num_users;
  if (counts) m.last_used = now;
}

int64_t ModelSchedule::total_bytes() const {
  int64_t sum = 0;
  for (const Model& m : models_) sum += m.bytes_now;
  return sum;
}

int64_t ModelSchedule::more_bytes(const Model& model) const {
  return std::max<int64_t>(0, model.traits.bytes - model.bytes_now);
}

bool ModelSchedule::fits(size_t model, int64_t free_bytes) const {
  const int64_t more = more_bytes(at(model));
  return !at(model).lacks_memory && more <= free_bytes &&
         (bytes_max_ == 0 || total_bytes() + more <= bytes_max_);
}

std::optional<ModelStep> ModelSchedule::stop_of(size_t model) const {
  const Model& m = at(model);
  if (m.num_users > 0) return std::nullopt;
  if (m.state == ModelState::kReady && m.traits.sleeps && !m.sleep_failed)
    return ModelStep{ModelStep::Kind::kSleep, model};
  if (m.stateful || (m.state != ModelState::kReady && m.state != ModelState::kAsleep))
    return std::nullopt;
  return ModelStep{ModelStep::Kind::kUnload, model};
}

// A model that sleeps and is wanted gives way after all others: its wake would be a load then.
std::optional<ModelStep> ModelSchedule::step_that_frees(std::optional<size_t> model) const {
  std::optional<ModelStep> best;
  std::tuple<bool, TimePoint> best_rank;
  for (size_t i = 0; i < models_.size(); ++i) {
    const Model& m = models_[i];
    if (i == model || (m.bytes_now == 0 && m.state != ModelState::kReady)) continue;
    const std::optional<ModelStep> step = stop_of(i);
    const std::tuple rank(m.wanted_since > 0, m.last_used);
    if (!step || (best && best_rank <= rank)) continue;
    best = step;
    best_rank = rank;
  }
  return best;
}

bool ModelSchedule::others_in_use(size_t model) const {
  for (size_t i = 0; i < models_.size(); ++i)
    if (i != model && models_[i].num_users > 0) return true;
  return false;
}

// Even with all other models gone.
bool ModelSchedule::is_hopeless(size_t model, int64_t free_bytes) const {
  const Model& m = at(model);
  const int64_t more = more_bytes(m);
  if (bytes_max_ > 0 && m.bytes_now + more > bytes_max_) return true;
  return more > free_bytes + total_bytes() - m.bytes_now;
}

ModelStep ModelSchedule::begin(ModelStep step) {
  at(step.model).state = state_during(step.kind);
  step_ = step;
  return step;
}

// In the order in which they were first wanted; one that must wait for memory stops no other.
std::optional<ModelStep> ModelSchedule::next_wanted(int64_t free_bytes) {
  std::vector<size_t> wanted;
  for (size_t i = 0; i < models_.size(); ++i)
    if (models_[i].wanted_since > 0 && is_stopped(models_[i].state)) wanted.push_back(i);
  std::ranges::sort(wanted, {}, [&](size_t i) { return models_[i].wanted_since; });
  for (const size_t i : wanted) {
    Model& m = models_[i];
    if (fits(i, free_bytes)) {
      const bool asleep = m.state == ModelState::kAsleep;
      return ModelStep{asleep ? ModelStep::Kind::kWake : ModelStep::Kind::kLoad, i};
    }
    if (is_hopeless(i, free_bytes)) continue;
    const std::optional<ModelStep> frees = step_that_frees(i);
    if (!frees) continue;
    m.lacks_memory = false;
    return frees;
  }
  return std::nullopt;
}

std::optional<ModelStep> ModelSchedule::next_idle(TimePoint now) const {
  for (size_t i = 0; i < models_.size(); ++i) {
    const Model& m = models_[i];
    if (m.state != ModelState::kReady || !m.traits.keep_alive ||
        now < m.last_used + *m.traits.keep_alive)
      continue;
    if (const auto step = stop_of(i)) return step;
  }
  return std::nullopt;
}

std::optional<ModelStep> ModelSchedule::begin_step(TimePoint now, int64_t free_bytes) {
  if (step_) return std::nullopt;
  std::optional<ModelStep> next = next_wanted(free_bytes);
  if (!next) next = next_idle(now);
  if (!next && bytes_max_ > 0 && total_bytes() > bytes_max_) next = step_that_frees(std::nullopt);
  return next ? std::optional(begin(*next)) : std::nullopt;
}

void ModelSchedule::end_step(const Status& status, int64_t bytes, TimePoint now) {
  ESP_CHECK(step_.has_value(), "a step ends once");
  const ModelStep step = *std::exchange(step_, std::nullopt);
  Model& m = at(step.model);
  switch (step.kind) {
    case ModelStep::Kind::kLoad:
    case ModelStep::Kind::kWake:
      m.bytes_now = status.ok() ? bytes : 0;
      m.state = status.ok() ? ModelState::kReady : ModelState::kUnloaded;
      m.last_failure = status;
      m.last_used = now;
      if (status.ok()) {
        if (step.kind == ModelStep::Kind::kLoad) m.sleep_failed = false;
        m.traits.bytes = bytes;
        m.wanted_since = 0;
        return;
      }
      m.lacks_memory = status.code() == StatusCode::kResourceExhausted &&
                       (step_that_frees(step.model) || others_in_use(step.model));
      m.failed = !m.lacks_memory;
      return;
    case ModelStep::Kind::kSleep:
      m.state = status.ok() ? ModelState::kAsleep : ModelState::kReady;
      m.sleep_failed = !status.ok();
      if (!status.ok()) m.wanted_since = 0;  // it is there for who has come to want it meanwhile
      m.bytes_now = bytes;
      return;
    case ModelStep::Kind::kUnload:
      m.state = ModelState::kUnloaded;
      m.bytes_now = 0;
      return;
  }
}

Status ModelSchedule::no_memory(size_t model, int64_t free_bytes) const {
  const int64_t more = more_bytes(at(model));
  if (bytes_max_ > 0 && total_bytes() + more > bytes_max_)
    return error(StatusCode::kUnavailable,
                 "it needs {:.1f} MiB more, and the models in memory have {:.1f} of the {:.1f} MiB "
                 "that memory_limit allows",
                 mib(more), mib(total_bytes()), mib(bytes_max_));
  return error(StatusCode::kUnavailable,
               "it needs {:.1f} MiB more, {:.1f} MiB of the device's memory are free, and the "
               "models in memory have {:.1f} MiB",
               mib(more), mib(std::max<int64_t>(0, free_bytes)), mib(total_bytes()));
}

Status ModelSchedule::failure(size_t model, int64_t free_bytes) const {
  const Model& m = at(model);
  if (m.wanted_since == 0 || !is_stopped(m.state)) return {};
  if (m.failed) return m.last_failure;
  if (fits(model, free_bytes)) return {};
  if (is_hopeless(model, free_bytes)) return no_memory(model, free_bytes);
  if (step_ || step_that_frees(model) || others_in_use(model)) return {};
  return m.lacks_memory ? m.last_failure : no_memory(model, free_bytes);
}

Status ModelSchedule::reason(size_t model, int64_t free_bytes) const {
  const Model& m = at(model);
  if (m.lacks_memory) return m.last_failure;
  if (is_stopped(m.state) && !fits(model, free_bytes)) return no_memory(model, free_bytes);
  const bool waits = is_stopped(m.state);
  return error(StatusCode::kUnavailable, "{}",
               waits ? "other models are being loaded" : "it is still being loaded");
}

std::optional<TimePoint> ModelSchedule::next_stop() const {
  std::optional<TimePoint> next;
  for (size_t i = 0; i < models_.size(); ++i) {
    const Model& m = models_[i];
    if (m.state != ModelState::kReady || !m.traits.keep_alive || !stop_of(i)) continue;
    const TimePoint at = m.last_used + *m.traits.keep_alive;
    next = next ? std::min(*next, at) : at;
  }
  return next;
}

void ModelSchedule::check_invariants() const {
  for (size_t i = 0; i < models_.size(); ++i) {
    const Model& m = models_[i];
    ESP_CHECK(m.num_users >= 0, "users are counted");
    ESP_CHECK(m.num_users == 0 || m.state == ModelState::kReady, "a model in use is ready");
    ESP_CHECK(m.state != ModelState::kReady || m.wanted_since == 0,
              "nobody waits for what is there");
    const bool steps = step_ && step_->model == i;
    ESP_CHECK(steps == (!is_stopped(m.state) && m.state != ModelState::kReady),
              "a state between two others is that of the step");
    ESP_CHECK(m.state != ModelState::kUnloaded || m.bytes_now == 0,
              "what is unloaded has no bytes");
  }
}

}  // namespace espalier::server
