#include "engine/watch/loop_watch.h"

#include <algorithm>
#include <utility>

#include "engine/executor/slot_lengths.h"

namespace espalier {

void LoopWatch::handle(ProfileCall& call) { call.answered(call.start ? start(call) : stop()); }

Status LoopWatch::start(ProfileCall& call) {
  const ProfileOptions& options = *call.start;
  if (session_ != nullptr)
    return error(StatusCode::kFailedPrecondition,
                 "a profile is being recorded already: stop it first");
  if (options.num_steps < 1 || options.num_steps > ProfileOptions::kStepsMax)
    return invalid_argument("num_steps is {}, but a profile has 1 to {} steps", options.num_steps,
                            ProfileOptions::kStepsMax);
  session_ = std::make_unique<Session>();
  session_->options = options;
  session_->done = std::move(call.done);
  return {};
}

Status LoopWatch::stop() {
  if (session_ == nullptr)
    return error(StatusCode::kFailedPrecondition, "no profile is being recorded: start one first");
  finish();
  return {};
}

void LoopWatch::begin_recorded_turn(TimePoint now) {
  Session& s = *session_;
  if (!recording_) {
    if (progress_.read().step + 1 < s.options.start_step) return;
    recording_ = true;
    s.profile.begin = now;
  }
  s.turn_begin = s.phase_begin = now;
  s.phase = LoopPhase::kInbox;
}

void LoopWatch::record_phase(LoopPhase next) {
  Session& s = *session_;
  StepProfile& p = s.profile;
  const TimePoint now = clock_.now();
  if (s.phase != LoopPhase::kParked) {
    if (p.phases.size() < kPhasesMax)
      p.phases.push_back({s.phase, s.phase_begin, now});
    else
      ++p.num_dropped;
    if (next == LoopPhase::kParked && p.turns.size() < kPhasesMax)
      p.turns.push_back({s.turn_begin, now});
  }
  s.phase = next;
  s.phase_begin = now;
}

void LoopWatch::record_launch(const ForwardBatch& batch) {
  StepProfile& p = session_->profile;
  if (std::ssize(p.steps) == session_->options.num_steps) return;
  StepProfile::Step& step =
      p.steps.emplace_back(StepProfile::Step{.step = batch.step,
                                             .entries = static_cast<int32_t>(batch.entries.size()),
                                             .tokens = batch.num_tokens(),
                                             .launched = clock_.now()});
  for (const BatchEntry& entry : batch.entries) step.draft_tokens += entry.num_draft_tokens;
}

// The step that was in flight when the recording began is not the profile's.
void LoopWatch::record_step(const ForwardBatch& batch, const StepResult& result) {
  Session& s = *session_;
  if (s.num_committed == s.profile.steps.size()) return;
  StepProfile::Step& step = s.profile.steps[s.num_committed];
  if (step.step != result.step) return;
  const auto taken =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(result.forward_seconds));
  step.graph_use = result.graph_use;
  for (size_t i = 0; step.draft_tokens > 0 && i < batch.entries.size(); ++i)
    if (result.entries[i].status.ok())
      step.accepted_draft_tokens +=
          accept_draft(batch, batch.entries[i], result.entries[i]).num_tokens;
  step.is_estimated = result.started == TimePoint{};
  if (step.is_estimated) {
    step.end = clock_.now();
    const TimePoint free =
        s.num_committed == 0 ? step.launched : s.profile.steps[s.num_committed - 1].end;
    step.begin = std::max({step.end - taken, step.launched, free});
  } else {
    step.begin = result.started;
    step.end = result.started + taken;
  }
  ++s.num_committed;
  s.is_complete = static_cast<int64_t>(s.num_committed) == s.options.num_steps;
}

void LoopWatch::record_sample(const SampleState& sample, const RequestStats& stats,
                              bool has_ended) {
  StepProfile& p = session_->profile;
  if (p.samples.size() == kSamplesMax) {
    ++p.num_dropped;
    return;
  }
  p.samples.push_back(
      {.rid = sample.request->rid,
       .index = sample.beam >= 0 ? sample.beam
                                 : static_cast<int32_t>(&sample - sample.request->samples.data()),
       .stats = stats,
       .has_ended = has_ended});
}

// A turn that has not ended, and a step that has no result yet, are left out.
void LoopWatch::finish() {
  Session& s = *session_;
  StepProfile& p = s.profile;
  p.end = clock_.now();
  if (recording_) {
    for (const auto& [id, sample] : requests_.samples())
      if (!sample->finished) record_sample(*sample, sample->event.stats, /*has_ended=*/false);
    if (s.phase != LoopPhase::kParked)
      while (!p.phases.empty() && p.phases.back().begin >= s.turn_begin) p.phases.pop_back();
    p.steps.resize(s.num_committed);
  } else {
    p.begin = p.end;
  }
  recording_ = false;
  const std::unique_ptr<Session> ended = std::move(session_);
  ended->done(std::move(ended->profile));
}

}  // namespace espalier
