// The requests that the loop holds, by id, and the samples of those that the scheduler has, by
// sequence.
//
// Not thread-safe: the loop's thread alone uses it. Owns the requests; the samples lie inside them.
#pragma once

#include <memory>
#include <unordered_map>

#include "engine/requests/live_request.h"

namespace espalier {

class RequestTable {
 public:
  using Samples = std::unordered_map<SequenceId, SampleState*>;

  bool empty() const { return requests_.empty(); }
  size_t size() const { return requests_.size(); }

  LiveRequest& add(std::unique_ptr<LiveRequest> request) {
    LiveRequest& added = *request;
    requests_.emplace(added.id, std::move(request));
    return added;
  }
  LiveRequest* find(RequestId id) {  // null when it is gone
    const auto it = requests_.find(id);
    return it == requests_.end() ? nullptr : it->second.get();
  }
  std::unique_ptr<LiveRequest> extract(RequestId id) {
    return std::move(requests_.extract(id).mapped());
  }
  template <typename Visit>
  void for_each(Visit visit) {
    for (auto& [id, request] : requests_) visit(*request);
  }

  SequenceId add_sequence(SampleState& sample) {
    samples_.emplace(++last_sequence_, &sample);
    return sample.sequence = last_sequence_;
  }
  void remove_sequence(SequenceId id) { samples_.erase(id); }
  SampleState& sample(SequenceId id) const { return *samples_.at(id); }
  const Samples& samples() const { return samples_; }

 private:
  std::unordered_map<RequestId, std::unique_ptr<LiveRequest>> requests_;
  Samples samples_;
  SequenceId last_sequence_ = 0;
};

}  // namespace espalier
