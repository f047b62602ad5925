// Which replica has which request, from its submission to its last event.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/status.h"
#include "engine/replicas/replica_choice.h"
#include "engine/requests/join.h"
#include "engine/requests/request.h"
#include "seams/token_event.h"

namespace espalier {

// Thread-safe. Bounded by the requests in flight, the choice's tree, and kJoinsMax keys.
class ReplicaPlacement {
 public:
  ReplicaPlacement(LoadBalance method, int32_t num_replicas) : choice_(method, num_replicas) {}

  // The replica of a request, which has a rid. kAlreadyExists for a rid in flight.
  Result<int32_t> place(const GenerateRequest& request, int32_t num_samples);
  void withdraw(const std::string& rid);  // its replica has refused it
  // A sample has ended. After the last one the rid may be placed again.
  void on_end(const std::string& rid, const FinishReason& finish);
  // -1: no request in flight has this id.
  int32_t replica_of(std::string_view rid) const;

  // A session's replica follows from its id.
  int32_t replica_of_session(std::string_view id) const;

  // Where branches behind this prefix are joined, and that they are: what continues them goes
  // there.
  int32_t choose_for_join(const JoinRequest& request);
  void on_joined(int32_t replica, const JoinedPrompt& joined);

  void forget_prefixes();  // all caches were flushed

 private:
  struct InFlight {
    int32_t replica = 0;
    int32_t num_samples = 0;  // that have not ended
  };
  static constexpr size_t kJoinsMax = 4096;

  // Where a request must go; -1: anywhere. REQUIRES: mutex_ is locked.
  int32_t stated_replica(const GenerateRequest& request) const;

  mutable std::mutex mutex_;
  ReplicaChoice choice_;
  std::unordered_map<std::string, InFlight> in_flight_;  // by rid
  // Replicas of joined branches by the key under which they are cached; the oldest goes first.
  std::unordered_map<std::string, int32_t> joined_;
  std::deque<std::string> joined_order_;
};

}  // namespace espalier
