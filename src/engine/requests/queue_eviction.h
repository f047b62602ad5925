// Which waiting requests give way to a newcomer when the queue is full.
//
// Under kLowestPriority a request with a lower priority gives way: the lowest first, and the newest
// of equals. Under kLargestShare one of the share (tenant) with the most samples gives way, the
// newest first, as long as that share keeps at least as many samples as the newcomer's share then
// has. A request that has been scheduled never gives way: it holds computed tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace espalier {

using RequestId = uint64_t;  // the engine's own: never used twice, and larger for later requests

enum class QueueEvictionRule : uint8_t { kNone, kLowestPriority, kLargestShare };

// Not thread-safe. Holds nothing, and does nothing, under kNone.
class QueueEviction {
 public:
  struct Request {
    RequestId id = 0;
    int64_t num_samples = 0;
    int32_t priority = 0;
    std::string share;
    std::string rid;
  };

  explicit QueueEviction(QueueEvictionRule rule) : rule_(rule) {}

  QueueEvictionRule rule() const { return rule_; }
  const Request& request(RequestId id) const { return requests_.at(id); }  // one that was added
  void add(Request request);                                               // it waits
  void on_scheduled(RequestId id);  // it waits no longer; unknown ids are no error
  void remove(RequestId id);        // it has ended, or was evicted; unknown ids are no error

  // The requests whose end frees `num_samples` at least for `newcomer`; empty where too few may
  // give way. REQUIRES: num_samples > 0. O(log n) for each, and O(shares) under kLargestShare.
  std::vector<RequestId> choose(const Request& newcomer, int64_t num_samples) const;

 private:
  struct Share {
    int64_t num_samples = 0;  // of its requests, waiting and scheduled
    std::set<RequestId, std::greater<>> waiting;
  };
  using ByPriority =
      std::set<std::pair<int32_t, RequestId>, decltype([](const auto& a, const auto& b) {
                 return a.first != b.first ? a.first < b.first : a.second > b.second;
               })>;

  std::vector<RequestId> choose_by_priority(const Request& newcomer, int64_t num_samples) const;
  std::vector<RequestId> choose_by_share(const Request& newcomer, int64_t num_samples) const;
  int64_t samples_of(RequestId id) const { return requests_.at(id).num_samples; }

  const QueueEvictionRule rule_;
  std::unordered_map<RequestId, Request> requests_;
  ByPriority by_priority_;  // those that wait
  std::map<std::string, Share> shares_;
};

}  // namespace espalier
