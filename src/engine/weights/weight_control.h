// Replaces the weights of an engine while it serves, and knows the versions' names.
//
// An update is atomic: each request runs with one version from its first token to its last, and an
// update that fails leaves the old weights whole (WeightControl::update says when it cannot). New
// requests wait while weights are replaced; those that have started end before. Only an engine that
// is paused (Engine::pause_generation) keeps requests across an update: that is how a partial
// rollout goes on with newer weights.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "engine/requests/inbox.h"
#include "engine/weights/released_memory.h"
#include "engine/weights/weight_epoch.h"
#include "models/checkable_weights.h"
#include "models/model_weights.h"

namespace espalier {

struct WeightUpdate {
  std::filesystem::path path;  // a folder with config.json and safetensors, or a .gguf file
  bool some = false;           // path is one safetensors file, and other tensors stay as they are
  bool random = false;         // instead of a path: random values in place of every tensor
  std::vector<SharedTensor> shared;  // not empty: these instead of a path, and others stay
  bool abort_requests = false;       // those that have started, instead of waiting for their end
  // Keys and values that the old weights computed are dropped, and no request finds them; off:
  // requests use them with the new weights. Refused where they would be stored beyond the engine.
  bool flush_cache = true;
  bool keep_pause = false;             // the engine is paused (in place) when the update is done
  std::optional<std::string> version;  // its name; nothing: the name stays
};

struct WeightUpdateReport {
  int32_t num_paused_requests = 0;  // that were in the engine, which was paused
  double seconds = 0;               // from the first byte that was written to the last
  bool cache_flushed = false;       // false too where paused requests hold their keys and values
};

// Thread-safe. An update blocks; another one meanwhile is refused with kUnavailable.
class WeightControl {
 public:
  struct Parts {
    std::function<void(Message)> push;     // to the loop
    Engine& engine;                        // pauses, flushes
    ModelWeights* weights = nullptr;       // null: they cannot be replaced
    Status unsupported;                    // why, where they are null
    ReleasableMemory* kv_cache = nullptr;  // null: it stays
    Status memory_stays;                   // why memory is not released, where it is not
  };
  explicit WeightControl(Parts parts);

  // kUnavailable where requests that have started do not end within ten minutes; else what is wrong
  // with the checkpoint: the engine then goes on with the old weights. kInternal where it could not
  // be read although it was whole when it was checked, and the weights have no room for a copy (on
  // a GPU): requests are then refused with kUnavailable until an update succeeds.
  Result<WeightUpdateReport> update(const WeightUpdate& update);

  // As ModelWeights::read; kUnavailable while an update runs, kFailedPrecondition while the
  // weights' memory is released.
  Result<std::vector<float>> read(const std::string& name, int64_t num_max);

  // For /weights_checker. kUnimplemented where tensors are not compared (on a GPU); kUnavailable
  // while an update runs. compare(): the names of tensors that are not as take_snapshot() found
  // them. kFailedPrecondition while the weights' memory is released, and of compare() where there
  // was no snapshot.
  Result<std::vector<TensorDigest>> digests();
  Status take_snapshot();
  Result<std::vector<std::string>> compare();

  // Gives parts of the engine's memory back to the system; requests are refused with kUnavailable
  // until all are taken again. With the keys and values the cache is flushed. Weights are read
  // again from the files that they came from, and cannot be updated while they are released.
  // kFailedPrecondition where requests are in the engine; kUnavailable while an update runs.
  Result<MemoryReport> release_memory(std::span<const MemoryPart> parts);
  Result<MemoryReport> resume_memory(std::span<const MemoryPart> parts);
  MemoryReport released_memory() const;  // seconds is 0
  // Of the host's memory, which copies of a GPU's weights take while these are on the GPU.
  int64_t backup_bytes() const {
    return parts_.weights == nullptr ? 0 : parts_.weights->backup_bytes();
  }

  // Names the version that the engine was started with. Before requests come.
  void name_first(std::string name);
  // Names the version without changing weights; requests that have started keep the old name.
  // kUnavailable while an update runs.
  Status set_version(std::string name, bool abort_requests = false);
  std::string version() const;
  // Of an epoch that a request had (RequestStats::weight_epoch); of one long ago the oldest known.
  std::string version_of(int32_t epoch) const;

 private:
  struct Named {
    int32_t epoch = 0;
    std::string name;
  };

  Status check_cache_use(const WeightUpdate& update, const RequestsLeft& left) const;
  Result<RequestsLeft> hold(bool abort_requests);
  void release(Status refusal = {});
  Status check_present() const;
  Status prepare(const WeightUpdate& update);
  Status replace(const WeightUpdate& update, const RequestsLeft& left, const std::string& name,
                 WeightUpdateReport& report);
  void name_version(std::string name);
  Result<CheckableWeights*> checkable_weights() const;
  Status check_idle() const;
  Status change_memory(std::span<const MemoryPart> parts, bool release);

  const Parts parts_;
  std::mutex changing_;  // of an update, from its begin to its end
  WeightEpoch current_;  // changed by updates alone
  Status refusal_;       // of requests, since an update failed half way
  SteadyClock clock_;
  ReleasedMemory memory_;               // of the thread that holds changing_
  std::vector<TensorDigest> snapshot_;  // the same; empty: none was taken
  mutable std::mutex mutex_;            // of what follows
  MemoryReport released_;
  std::deque<Named> versions_{{0, "default"}};
};

}  // namespace espalier
