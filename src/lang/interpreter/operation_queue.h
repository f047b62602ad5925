// The operations of one prompt state in order, and which of them is suspended. Internal to the
// room.
//
//   push() --> queue --> take(): one at a time, until none is left: idle
//                          |  a call, or a value that is not there yet
//                          v
//                       suspended --- end_call(), resume() with the turn that suspended it
//
// Invariant: the queue is busy from the first push until nothing is queued or suspended. Exactly
// one thread at a time has the turn: the one whose push() returned true, whose resume() or
// end_call() returned an operation, or that goes on with take().
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lang/interpreter/monitor.h"
#include "lang/interpreter/operation.h"

namespace espalier::lang {

// Thread-safe, under the stream's monitor, which outlives it. Owns the operations.
class OperationQueue {
 public:
  // `busy`: nothing is taken until the owner drains the queue for the first time (a branch before
  // its fork).
  OperationQueue(Monitor& monitor, bool busy, bool cancelled)
      : monitor_(monitor), busy_(busy), cancelled_(cancelled) {}

  // True: the queue was idle, so the caller must drain it.
  bool push(Operation op, const Monitor::Lock&);

  struct Next {
    Operation op;
    bool failed = false;  // the stream has failed: the operation must be skipped
  };
  // The first operation; nothing once the queue is empty. The queue is idle then, and the callbacks
  // of when_idle have been called.
  std::optional<Next> take();

  // Suspends until resume() is called with the returned turn.
  uint64_t suspend(Operation&& op);
  std::optional<Next> resume(uint64_t turn);  // nothing for a turn that is over

  // Suspends until end_call() is called with the returned turn. 0: the stream has failed; `op` is
  // unchanged.
  uint64_t begin_call(Operation& op, std::string id);
  std::optional<Next> end_call(uint64_t turn);
  // Whether the call of `turn` is in flight; sets the variable that its text streams into.
  bool find_target(uint64_t turn, VariablePtr& target) const;
  // The id of the call of `turn` where the stream was cancelled after begin_call, else "".
  std::string cancelled_call(uint64_t turn) const;
  std::string call_in_flight() const;  // "": none

  struct Failure {
    Status status;
    Location where;
  };
  void fail(Status why, Location where);  // the first failure counts
  Failure failure() const;
  struct Cancelled {
    std::string call_id;                 // the call to cancel; "": none
    std::optional<Operation> abandoned;  // it waited for a value: the caller skips it and drains
  };
  Cancelled cancel(const Status& why);
  bool is_cancelled(const Monitor::Lock&) const { return cancelled_; }

  bool is_idle(const Monitor::Lock&) const { return !busy_; }
  // Calls back, on some thread, once the queue is idle; at once when it is.
  void when_idle(std::function<void()> callback);

 private:
  Monitor& monitor_;
  std::deque<Operation> queue_;
  bool busy_;
  Operation suspended_;
  uint64_t turn_ = 0;          // what suspended_ awaits; answers of older turns are dropped
  bool awaits_value_ = false;  // not a call
  std::string call_id_;        // of the call in flight
  Failure failure_;
  bool cancelled_;
  std::vector<std::function<void()>> idle_callbacks_;
};

}  // namespace espalier::lang
