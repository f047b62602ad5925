// Which requests the engine holds: unique ids, the bound on their number, and when the last is
// gone.
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

namespace espalier {

using RequestId = uint64_t;  // the engine's own: never used twice

// Thread-safe. The one piece of state that callers and the loop share.
class RequestRegistry {
 public:
  // max_samples: unfinished samples of all requests together.
  explicit RequestRegistry(int64_t max_samples) : max_samples_(max_samples) {}

  // Takes a request of n samples in. kUnavailable when closed, kAlreadyExists for a rid that is
  // in use, kResourceExhausted when there is no room, kInvalidArgument when there never could be.
  Result<RequestId> admit(const std::string& rid, int32_t num_samples);

  // Those that an abort means and none has meant before.
  std::vector<RequestId> take_for_abort(std::string_view rid, Engine::AbortScope scope);

  void release_sample();                     // one has finished
  void release_rid(const std::string& rid);  // all of its samples have: the rid may be used again
  void settle();                             // and its caller has received the last event

  void close();  // admits no more
  // Until every request admitted is settled; false when `timeout` passes first.
  bool wait_settled(Duration timeout);

  int64_t num_samples() const;
  int64_t num_requests_total() const;

 private:
  struct Entry {
    RequestId id = 0;
    bool abort_requested = false;
  };

  const int64_t max_samples_;
  mutable std::mutex mutex_;
  std::condition_variable settled_changed_;
  std::map<std::string, Entry, std::less<>> by_rid_;  // ordered: prefixes are ranges
  int64_t num_samples_ = 0;
  int64_t num_admitted_ = 0, num_settled_ = 0;
  bool closed_ = false;
};

}  // namespace espalier
