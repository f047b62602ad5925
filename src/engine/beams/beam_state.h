// What a request with beam search keeps beside its samples, which get the answers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/beams/beam_search.h"
#include "engine/scheduler/scheduler.h"
#include "seams/token_event.h"

namespace espalier {

// Plain data of the loop's thread.
struct BeamState {
  BeamOptions options;
  bool has_stops = false;             // stop strings or expressions may end a beam
  std::optional<BeamSearch> search;   // once the prompt is known
  SequenceSpec first;                 // of the first sequence; those behind it have more tokens
  int32_t num_running = 0;            // sequences of this step that have not ended
  std::optional<FinishReason> ended;  // why the search cannot go on
  RequestStats stats;                 // of the whole search
};

}  // namespace espalier
