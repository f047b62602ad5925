// What a profile of the engine holds: times of the loop's turns and their phases, of the steps on
// the executor, and of the requests that ran meanwhile. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/watch/loop_progress.h"
#include "seams/step_result.h"
#include "seams/token_event.h"

namespace espalier {

struct StepProfile {
  struct Phase {
    LoopPhase phase = LoopPhase::kInbox;
    TimePoint begin{}, end{};
  };
  struct Turn {
    TimePoint begin{}, end{};
  };
  struct Step {
    uint64_t step = 0;
    int32_t entries = 0, tokens = 0;
    int32_t draft_tokens = 0, accepted_draft_tokens = 0;  // of all entries
    GraphUse graph_use = GraphUse::kNone;
    TimePoint launched{};      // by the loop
    TimePoint begin{}, end{};  // of the forward
    // Of an executor that measures how long a forward takes and not when it begins: the end is when
    // the loop had waited for it.
    bool is_estimated = false;
  };
  // A sample that ended meanwhile, or that was in the scheduler at the profile's end.
  struct Sample {
    std::string rid;
    int32_t index = 0;
    RequestStats stats;  // of a sample that had no token yet, `scheduled` is not known
    bool has_ended = false;
  };

  TimePoint begin{}, end{};
  std::vector<Turn> turns;
  std::vector<Phase> phases;  // each inside a turn
  std::vector<Step> steps;    // numbers rise by 1
  std::vector<Sample> samples;
  int64_t num_dropped = 0;  // phases and samples that found no room
};

struct ProfileOptions {
  // A profile ends by itself after so many steps; its memory is bounded by it.
  static constexpr int64_t kStepsMax = 65'536;

  uint64_t start_step = 0;        // the first step of the profile; 0, or one of the past: the next
  int64_t num_steps = kStepsMax;  // 1 to kStepsMax
};

// Starts a profile, or stops the one that is recorded. Both functions are called on the loop's
// thread and must not block.
struct ProfileCall {
  std::optional<ProfileOptions> start;  // none: stop
  // Of a profile that is started: gets it once, when its steps are over or it is stopped; not where
  // the engine is destroyed before.
  std::function<void(StepProfile&&)> done;
  // kFailedPrecondition where a profile is recorded already, or where there is none to stop;
  // kInvalidArgument for options out of their range.
  std::function<void(const Status&)> answered;
};

}  // namespace espalier
