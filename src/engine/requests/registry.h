// Which requests the engine holds: unique ids, the bound on their number, which of them give way
// when it is reached, and when the last is gone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/engine.h"
#include "engine/requests/queue_eviction.h"

namespace espalier {

// kAlreadyExists for an id that a request has which has not ended.
Status rid_in_use_error(std::string_view rid);

// Thread-safe. The one piece of state that callers and the loop share.
class RequestRegistry {
 public:
  // max_samples: unfinished samples of all requests together; max_running: those that run at once.
  explicit RequestRegistry(int64_t max_samples, QueueEvictionRule rule = QueueEvictionRule::kNone,
                           int64_t max_running = 0)
      : max_samples_(max_samples), max_running_(max_running), eviction_(rule) {}

  struct Arrival {
    std::string rid;
    int32_t num_samples = 1;
    int32_t priority = 0;
    std::string share;  // whose the request is, under kLargestShare
  };
  struct Admission {
    RequestId id = 0;
    std::vector<RequestId> evicted;  // the caller must end them with queue_eviction_error()
  };
  // Takes a request in. kUnavailable when closed, kAlreadyExists for a rid that is in use,
  // kResourceExhausted when there is no room, kInvalidArgument when there never could be. Samples
  // of evicted requests count no longer. A request that can run as it arrives waits for nothing but
  // its tokens: those that come in meanwhile do not evict it.
  Result<Admission> admit(const Arrival& arrival);
  void on_scheduled(const std::string& rid);  // its first sample runs: it is not evicted any more
  Status queue_eviction_error() const;        // what an evicted request ends with

  // Those that an abort means, without those that an earlier one meant and the evicted.
  std::vector<RequestId> take_for_abort(std::string_view rid, Engine::AbortScope scope);

  void release_sample(const std::string& rid);  // one of its samples has finished
  void release_rid(const std::string& rid);     // all have: the rid may be used again
  void settle();                                // and its caller has received the last event

  void close();  // admits no more
  // Until every request admitted is settled; false when `timeout` passes first.
  bool wait_settled(Duration timeout);

  int64_t num_samples() const;
  int64_t num_requests_total() const;

 private:
  void evict(RequestId id);

  struct Entry {
    RequestId id = 0;
    bool abort_requested = false;  // or evicted
    bool evicted = false;
  };

  const int64_t max_samples_, max_running_;
  mutable std::mutex mutex_;
  std::condition_variable settled_changed_;
  std::map<std::string, Entry, std::less<>> by_rid_;  // ordered: prefixes are ranges
  QueueEviction eviction_;
  int64_t num_samples_ = 0;
  int64_t num_evicted_samples_ = 0;  // of num_samples_: they end soon
  int64_t num_admitted_ = 0, num_settled_ = 0;
  bool closed_ = false;
};

}  // namespace espalier
