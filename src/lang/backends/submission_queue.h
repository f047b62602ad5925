// The requests of one back end to its engine: those that the engine has, so that they can be
// cancelled and awaited, and those that wait because the engine takes no more. Internal to the
// room.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace espalier::lang {

// A request on its way to the engine.
struct Submission {
  GenerateRequest request;
  EventSink sink;
  std::function<void(Status)> refused;  // instead of any event

  int64_t num_samples() const { return std::max(1, request.sampling.n); }
};

// Thread-safe. Shared by the back end and by the sinks of its requests, which may outlive it.
// Request ids are CALL, CALL/0, CALL/1 ... for the requests of one call.
class SubmissionQueue {
 public:
  // At most `max_samples` samples are submitted at once, except that a larger request runs alone.
  explicit SubmissionQueue(int64_t max_samples) : max_samples_(max_samples) {}

  // True: the caller submits it. False: it waits, and was moved from.
  bool admit(Submission& s);
  // A submitted request has ended. Returns those to be submitted in its place. This is the last act
  // of a request: wait_empty() may return, and the back end end, unless something is returned.
  std::vector<Submission> remove(const std::string& rid, int64_t num_samples);
  // Removes the requests of a call that still wait ("": of all calls).
  std::vector<Submission> take_waiting(const std::string& call);
  // The ids of a call's requests, submitted and waiting ("": of all calls).
  std::vector<std::string> rids(const std::string& call) const;
  void wait_empty();

 private:
  bool fits(const Submission& s) const;

  const int64_t max_samples_;
  mutable std::mutex mutex_;
  std::condition_variable empty_;
  std::set<std::string> rids_;  // submitted and waiting
  std::deque<Submission> waiting_;
  int64_t num_samples_ = 0;  // submitted
};

}  // namespace espalier::lang
