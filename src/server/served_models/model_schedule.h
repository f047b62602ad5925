// Which of a server's models are in memory, and what is loaded, woken, put to sleep or unloaded
// next: the decisions alone, without an engine, a thread or a clock.
//
//   unloaded -- load --> ready <-- wake -- asleep        one step at a time; a failure of load or
//      ^                   |                  ^          wake ends in `unloaded`
//      +---- unload -------+----- sleep ------+
//
// Invariants:
// - A model with users is ready, and no step but its own end changes that.
// - What is loaded or woken fits, as far as is known: with it the models in memory take at most
//   `bytes_max`, and it takes at most what the device has free. Where it does not fit, models that
//   nobody uses give way, the one that was used longest ago first; and where a load took more than
//   was known, so that `bytes_max` is passed, they give way afterwards.
// - A model that is wanted gets its step, or fails(): none is left wanted for ever while nothing
//   is in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace espalier::server {

struct ModelTraits {
  std::optional<Duration> keep_alive;  // idle time before it stops; nothing: it stays
  bool sleeps = false;                 // it stops by sleeping instead of being unloaded
  int64_t bytes = 0;                   // in memory, as far as it is known before it was loaded
};

enum class ModelState : uint8_t {
  kUnloaded,
  kLoading,
  kReady,
  kFallingAsleep,
  kAsleep,
  kWaking,
  kUnloading
};

struct ModelStep {
  enum class Kind : uint8_t { kLoad, kWake, kSleep, kUnload } kind = Kind::kLoad;
  size_t model = 0;
};

// Not thread-safe.
class ModelSchedule {
 public:
  // bytes_max: of all models in memory together; 0: no limit but the device's.
  ModelSchedule(std::vector<ModelTraits> models, int64_t bytes_max);

  // Somebody waits for the model (or it is loaded before anybody does) until it is ready or fails.
  void want(size_t model);
  void unwant(size_t model);  // nobody waits any more; a step that has begun goes on

  // A user of a model that is ready; false where it is not.
  bool begin_use(size_t model);
  // counts: the use puts off the time at which the model stops.
  void end_use(size_t model, TimePoint now, bool counts = true);
  // A model with state that an unload would lose (open sessions) is not unloaded.
  void set_stateful(size_t model, bool stateful) { at(model).stateful = stateful; }

  // What to do now, which begins with this call; nothing where there is nothing to do or a step
  // is under way. free_bytes: what the device has.
  std::optional<ModelStep> begin_step(TimePoint now, int64_t free_bytes);
  // Ends the step. bytes: what the model takes now. A load or a wake that failed leaves nothing in
  // memory; one that failed for want of memory is tried again once another model has given way. A
  // model whose sleep failed is ready, and is unloaded instead; loaded anew, it sleeps again. An
  // unload succeeds.
  void end_step(const Status& status, int64_t bytes, TimePoint now);
  // Of a model that is wanted and cannot come: kUnavailable (memory, with figures), or the error of
  // its step. Ok while it may come. The caller answers who waits, and unwants it.
  // REQUIRES: begin_step() has just returned nothing, or a step has just ended.
  Status failure(size_t model, int64_t free_bytes) const;
  // Why a wanted model has not come yet, for who has waited too long.
  Status reason(size_t model, int64_t free_bytes) const;
  const Status& last_failure(size_t model) const { return at(model).last_failure; }

  // When the next idle model stops by its keep_alive; nothing: none does.
  std::optional<TimePoint> next_stop() const;

  ModelState state(size_t model) const { return at(model).state; }
  int64_t bytes(size_t model) const { return at(model).bytes_now; }
  int64_t total_bytes() const;
  int32_t num_users(size_t model) const { return at(model).num_users; }
  bool wanted(size_t model) const { return at(model).wanted_since > 0; }
  bool is_stepping() const { return step_.has_value(); }
  void check_invariants() const;

 private:
  struct Model {
    ModelTraits traits;  // bytes: as measured, once it was loaded
    ModelState state = ModelState::kUnloaded;
    int64_t bytes_now = 0;
    int32_t num_users = 0;
    TimePoint last_used{};
    uint64_t wanted_since = 0;  // a number that grows; 0: nobody wants it
    bool stateful = false;
    bool sleep_failed = false;  // since it was loaded
    bool lacks_memory = false;  // its last load failed for want of memory, and none was freed since
    bool failed = false;        // since it has been wanted
    Status last_failure;        // of its last load or wake; ok since one succeeded
  };

  Model& at(size_t model) { return models_.at(model); }
  const Model& at(size_t model) const { return models_.at(model); }
  int64_t more_bytes(const Model& model) const;  // that a load or wake takes
  bool fits(size_t model, int64_t free_bytes) const;
  // The step that frees memory for `model`; nothing where none can.
  std::optional<ModelStep> step_that_frees(std::optional<size_t> model) const;
  std::optional<ModelStep> stop_of(size_t model) const;
  std::optional<ModelStep> next_wanted(int64_t free_bytes);
  std::optional<ModelStep> next_idle(TimePoint now) const;
  bool is_hopeless(size_t model, int64_t free_bytes) const;
  bool others_in_use(size_t model) const;
  ModelStep begin(ModelStep step);
  Status no_memory(size_t model, int64_t free_bytes) const;

  std::vector<Model> models_;
  const int64_t bytes_max_;
  std::optional<ModelStep> step_;  // under way
  uint64_t num_wants_ = 0;
};

}  // namespace espalier::server
