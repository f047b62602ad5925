// The loop's own account of what it is doing: for the watchdog always, and for a profile while one
// is recorded. Without a profile a step pays a relaxed store and one comparison for each phase.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "engine/requests/request_table.h"
#include "engine/watch/step_profile.h"
#include "seams/forward_batch.h"
#include "seams/step_result.h"

namespace espalier {

// progress() may be read by any thread; all else is the loop's thread's. Borrows what it is made
// of.
class LoopWatch {
 public:
  LoopWatch(const Clock& clock, const RequestTable& requests)
      : clock_(clock), requests_(requests) {}

  const LoopProgress& progress() const { return progress_; }

  // The loop calls begin_turn(), enter() for each phase, and park() at the turn's end.
  void begin_turn(TimePoint now) {
    progress_.begin_turn(now);
    if (session_ != nullptr) [[unlikely]]
      begin_recorded_turn(now);
  }
  void enter(LoopPhase phase) {
    progress_.enter(phase);
    if (recording_) [[unlikely]]
      record_phase(phase);
  }
  void park() {
    enter(LoopPhase::kParked);
    if (session_ != nullptr && session_->is_complete) [[unlikely]]
      finish();
  }
  void launched(const ForwardBatch& batch) {
    progress_.set_step(batch.step, batch.entries.size(), batch.token_ids.size());
    if (recording_) [[unlikely]]
      record_launch(batch);
  }
  void waited(const ForwardBatch& batch, const StepResult& result) {
    if (recording_) [[unlikely]]
      record_step(batch, result);
  }
  void ended(const SampleState& sample, const RequestStats& stats) {
    if (recording_) [[unlikely]]
      record_sample(sample, stats, /*has_ended=*/true);
  }
  void set_load(int32_t running, int32_t waiting) { progress_.set_load(running, waiting); }

  // Recording begins with a turn. As ProfileCall has it.
  void handle(ProfileCall& call);

 private:
  static constexpr size_t kPhasesMax = 16 * ProfileOptions::kStepsMax;
  static constexpr size_t kSamplesMax = 65'536;
  struct Session {
    ProfileOptions options;
    std::function<void(StepProfile&&)> done;
    StepProfile profile;
    TimePoint turn_begin{}, phase_begin{};
    LoopPhase phase = LoopPhase::kParked;
    size_t num_committed = 0;  // of profile.steps
    bool is_complete = false;
  };

  Status start(ProfileCall& call);
  Status stop();
  void begin_recorded_turn(TimePoint now);
  void record_phase(LoopPhase next);
  void record_launch(const ForwardBatch& batch);
  void record_step(const ForwardBatch& batch, const StepResult& result);
  void record_sample(const SampleState& sample, const RequestStats& stats, bool has_ended);
  void finish();

  const Clock& clock_;
  const RequestTable& requests_;
  LoopProgress progress_;
  bool recording_ = false;
  std::unique_ptr<Session> session_;  // null: no profile is requested
};

}  // namespace espalier
