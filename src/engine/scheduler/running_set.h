// The sequences that hold a slot, and the slots. A sequence takes a slot when it is admitted and
// returns it when its last launched step is committed; in between it is loading, running, or
// leaving (paused or finished).
//
// Invariants: each slot has at most one owner; running() lists exactly the sequences in state
// kRunning, in order of admission, except between leave() and compact().
// Not thread-safe. Borrows the sequences. Allocates nothing after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler/sequence.h"

namespace espalier {

class RunningSet {
 public:
  explicit RunningSet(int32_t max_running);

  std::span<Sequence* const> running() const { return running_; }
  std::span<Sequence* const> slots() const { return slots_; }  // [max_running]; null: free
  Sequence& at(SlotId slot) const { return *slots_[static_cast<size_t>(slot)]; }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  bool has_free_slot() const { return !free_slots_.empty(); }
  int32_t num_leaving() const { return num_leaving_; }
  int32_t num_loading() const { return num_loading_; }                // loads in progress
  bool empty() const { return free_slots_.size() == slots_.size(); }  // nothing holds a slot

  void take_slot(Sequence& sequence);  // REQUIRES has_free_slot()
  void start(Sequence& sequence);      // it becomes running
  // A load for it has started: it becomes loading; or has ended, whatever its state is by then.
  void start_loading(Sequence& sequence);
  void end_loading(Sequence& sequence);
  // It stops running or loading and keeps its slot. Call compact() before the next use of
  // running().
  void leave(Sequence& sequence, SequenceState state);
  void compact();
  void return_slot(Sequence& sequence);  // of a sequence that leaves

  void check_invariants() const;

 private:
  std::vector<Sequence*> running_;
  std::vector<Sequence*> slots_;
  std::vector<SlotId> free_slots_;  // a stack
  int32_t num_leaving_ = 0;
  int32_t num_loading_ = 0;
  bool has_left_ = false;  // some of running_ run no more
};

}  // namespace espalier
