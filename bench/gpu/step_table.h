// What the steps of a profile took by their numbers of entries and rows, beside steps without draft
// tokens: where draft tokens gain and lose time.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <vector>

#include "engine/watch/step_profile.h"

namespace espalier::bench {

// Decode steps whose entries and rows lie in one range of StepCost's each; or all steps with
// prompts, of which num_entries is 0.
struct StepGroup {
  int32_t num_entries = 0, num_rows = 0;  // of the largest step
  int64_t num_steps = 0, num_recorded = 0;
  double draft_tokens = 0, accepted = 0;  // of a step, means
  double seconds = 0;                     // from the commit of the step before, median
  double of_plain = 0;      // `seconds` over those of steps of as many entries without draft tokens
  double host_seconds = 0;  // of the loop in that time, its waits excluded; median
  // What all of them have saved: the time that plain steps take for as many tokens, less their own.
  double saved_seconds = 0;
};

// By entries, then rows. The first step of a profile has no step before it and is left out.
std::vector<StepGroup> group_steps(const StepProfile& profile);

// Tokens a second behind the first step with so many entries, to the last one: neither do the
// first prompts count, nor requests that end late while no others follow.
double busy_tokens_per_second(const StepProfile& profile, int32_t num_entries);

void print_steps(const std::vector<StepGroup>& groups);

// [entries, rows, draft tokens, accepted, 1 if a graph was recorded, microseconds, those of the
// host] of each step in turn.
boost::json::array steps_json(const StepProfile& profile);

}  // namespace espalier::bench
