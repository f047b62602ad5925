// Which replica of an engine gets a request: by turn, by queue, or by the prefixes that each was
// sent.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cache/shadow/prefix_key.h"
#include "cache/shadow/prefix_tree.h"

namespace espalier {

enum class LoadBalance : uint8_t {
  kRoundRobin,     // in turn
  kShortestQueue,  // the replica with the fewest unfinished samples
  // The replica that was sent the longest prefix of the prompt, unless it is overloaded: then, and
  // where no prefix is known, the shortest queue.
  kCacheAware,
};

// auto (cache_aware), round_robin, shortest_queue (total_requests in SGLang's newer releases) or
// cache_aware. kInvalidArgument for any other name.
Result<LoadBalance> parse_load_balance(std::string_view name);

// A replica whose last samples all failed inside the engine would have the shortest queue always,
// for failures are quick. It is left out until a sample succeeds there, but for one choice in
// kProbeEvery, as long as another replica is there.
//
// Not thread-safe. Invariant: a replica's load is the samples that began and have not ended there.
class ReplicaChoice {
 public:
  static constexpr int32_t kFailuresMax = 3;  // in a row
  static constexpr int64_t kProbeEvery = 32;  // choices

  ReplicaChoice(LoadBalance method, int32_t num_replicas);

  LoadBalance method() const { return method_; }
  int32_t num_replicas() const { return static_cast<int32_t>(replicas_.size()); }

  // The replica for a prompt with this key, which may be empty. Counts nothing.
  int32_t choose(std::span<const uint64_t> key);
  // The replica gets a request of so many samples.
  void begin(int32_t replica, std::span<const uint64_t> key, int32_t num_samples);

  enum class Outcome : uint8_t {
    kAnswered,
    kFailed,   // by a fault of the replica
    kNeither,  // aborted, refused or never begun
  };
  void end(int32_t replica, int32_t num_samples, Outcome outcome);

  // All caches were flushed.
  void forget_prefixes();

  int64_t load(int32_t replica) const { return replicas_[static_cast<size_t>(replica)].load; }
  bool is_failing(int32_t replica) const {
    return replicas_[static_cast<size_t>(replica)].failures_in_a_row >= kFailuresMax;
  }

 private:
  struct Replica {
    int64_t load = 0;  // samples
    int32_t failures_in_a_row = 0;
  };
  int32_t in_turn();
  int32_t least_loaded();
  int32_t by_prefix(std::span<const uint64_t> key);
  bool is_candidate(int32_t replica) const { return all_fail_ || !is_failing(replica); }

  const LoadBalance method_;
  std::vector<Replica> replicas_;
  PrefixTree tree_;
  PrefixTree::Match match_;  // of one call, kept for its memory
  int64_t num_choices_ = 0;  // while some replicas fail
  int32_t probe_ = 0;        // the failing replica that was chosen last
  int32_t turn_ = 0;         // where the search for the least loaded begins
  bool all_fail_ = false;    // so all are candidates
};

}  // namespace espalier
