// The requests that arrive while weights are replaced: they are kept until it is done, and those
// that have started end before, so that every request sees one version.
//
//   begin()     requests that are not in the scheduler are deferred from here on
//   apply()     those that are have ended, or the engine is paused: no step runs from here on
//   release()   deferred requests start, with the new weights
//
// Not thread-safe: the loop's thread alone uses it.
#pragma once

#include <future>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/requests/live_request.h"
#include "engine/weights/weight_epoch.h"

namespace espalier {

class WeightHold {
 public:
  // Ends another hold that has not been released: its caller has given up.
  void begin(std::promise<RequestsLeft> done) {
    done_ = std::move(done);
    state_ = State::kPending;
  }
  void apply(const RequestsLeft& left) {
    state_ = State::kApplied;
    done_.set_value(left);
  }
  // refusal: not ok: no request starts from here on. Returns the deferred requests, which may have
  // ended meanwhile.
  std::vector<RequestId> release(WeightEpoch weights, Status refusal) {
    state_ = State::kNone;
    weights_ = std::move(weights);
    refusal_ = std::move(refusal);
    return std::exchange(deferred_, {});
  }

  bool is_pending() const { return state_ == State::kPending; }
  bool is_applied() const { return state_ == State::kApplied; }
  bool defers() const { return state_ != State::kNone; }
  void defer(RequestId id) { deferred_.push_back(id); }

  const WeightEpoch& weights() const { return weights_; }
  const Status& refusal() const { return refusal_; }

 private:
  enum class State { kNone, kPending, kApplied };
  State state_ = State::kNone;
  std::promise<RequestsLeft> done_;
  std::vector<RequestId> deferred_;
  WeightEpoch weights_;
  Status refusal_;
};

}  // namespace espalier
