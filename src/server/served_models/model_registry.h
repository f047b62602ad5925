// The models of one server by name, and who uses them: a request gets its model at once where it is
// ready, else it waits until the model has been loaded or woken, or cannot be.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/served_models/model_schedule.h"
#include "server/task_thread.h"

namespace espalier::server {

struct Context;
using ContextPtr = std::shared_ptr<Context>;

// Loads and stops models; one thread calls all but context(). Failures of load() and wake() with
// kResourceExhausted mean that memory is short. Byte counts are what the model then has in memory.
class ModelHost {
 public:
  virtual ~ModelHost() = default;
  virtual Result<int64_t> load(size_t model) = 0;
  virtual Result<int64_t> wake(size_t model) = 0;
  virtual Result<int64_t> sleep(size_t model) = 0;
  virtual void unload(size_t model) = 0;               // nothing where it is not in memory
  virtual bool is_stateful(size_t model) const = 0;    // of one that is ready or asleep
  virtual int64_t free_bytes() const = 0;              // of the device
  virtual ContextPtr context(size_t model) const = 0;  // of one that is ready; any thread calls it
};

struct RegisteredModel {
  std::string name;
  std::vector<std::string> aliases;  // other names, those of its adapters among them
  ModelTraits traits;
  bool preload = false;
};

// What is known of a model at a moment.
struct ModelReport {
  ModelState state = ModelState::kUnloaded;
  int64_t bytes = 0;
  int32_t num_users = 0;
  size_t num_waiting = 0;
  int64_t num_loads = 0, num_failures = 0;  // loads and wakes so far
  double load_seconds = 0;                  // of the last load or wake
  Status last_failure;                      // of it; ok where it succeeded
};
std::string_view name_of(ModelState state);  // "unloaded", "ready", "asleep" ...

// Thread-safe. A model is used as long as somebody holds the pointer that it was given by; the
// pointers outlive the registry.
class ModelRegistry {
 public:
  struct Settings {
    int64_t bytes_max = 0;                              // ModelSchedule's
    Duration load_timeout = std::chrono::seconds(300);  // that a request waits at most
    size_t waiting_max = 4096;                          // requests; beyond: kResourceExhausted
  };
  // The first model is the default. REQUIRES: at least one, and no name twice.
  ModelRegistry(std::vector<RegisteredModel> models, std::unique_ptr<ModelHost> host,
                Settings settings);
  ~ModelRegistry() { stop(); }

  // Begins to load what is to be preloaded.
  void start();
  // Waits for a step under way, answers who waits with kUnavailable and unloads all.
  void stop();

  size_t size() const { return models_.size(); }
  const RegisteredModel& model(size_t i) const { return models_[i]; }
  // By name or alias, "NAME:ADAPTER" and "NAME:latest" too; "" is the default.
  std::optional<size_t> find(std::string_view name) const;

  // `done` gets the model, on this thread where it is ready, else on one of the registry's, where
  // it must not block. A failure states the model and the reason.
  using Done = std::function<void(Result<ContextPtr>)>;
  void acquire(size_t model, Done done);
  ContextPtr acquire_ready(size_t model) const;  // null where it is not ready
  // Null where it is not ready. What holds it does not put off the time at which the model stops.
  ContextPtr look_at(size_t model) const;

  // Waits until no step is under way and no model is wanted, for what is preloaded.
  void wait_until_settled();
  std::vector<ModelReport> reports() const;
  int64_t bytes_max() const { return settings_.bytes_max; }

 private:
  struct Core;   // shared with the users' pointers
  struct Lease;  // of one user
  struct Waiter {
    size_t model = 0;
    Done done;
  };
  using Answers = std::vector<std::pair<Done, Result<ContextPtr>>>;

  ContextPtr lease(size_t model, bool counts) const;  // REQUIRES: it is ready, core_'s mutex
  void run();
  bool read_stateful();  // whether any model is. REQUIRES: core_'s mutex
  void run_step(const ModelStep& step, std::unique_lock<std::mutex>& lock);
  Result<int64_t> call_host(const ModelStep& step);
  void expire(uint64_t waiter);
  // All that wait for the model get it, or the failure. REQUIRES: core_'s mutex.
  void answer(size_t model, const Status& failure, Answers& answers);
  void answer_hopeless(Answers& answers);
  Status named(size_t model, const Status& why) const;

  const std::vector<RegisteredModel> models_;
  const Settings settings_;
  const std::unique_ptr<ModelHost> host_;
  const std::shared_ptr<Core> core_;
  // Guarded by core_'s mutex:
  std::map<uint64_t, Waiter> waiters_;  // by the number of the call
  uint64_t num_calls_ = 0;
  std::vector<ModelReport> counts_;
  int64_t free_bytes_ = 0;  // as it was last read
  bool stopped_ = false;

  TaskThread timers_{"esp-model-time"};
  std::thread thread_;
};

}  // namespace espalier::server
