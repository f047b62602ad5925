// Which of a model's weights a request runs with: they change while an engine serves.
#pragma once

#include <cstdint>
#include <string>

namespace espalier {

// Between two changes of the weights, or of their version's name.
struct WeightEpoch {
  int32_t epoch = 0;  // counts the changes
  // In front of cache namespaces, so that keys and values that other weights computed are not
  // found, here or in tiers. Empty: of the weights that the engine was started with.
  std::string cache_prefix;
};

// What is left when no step runs: requests are in the scheduler only where the engine is paused.
struct RequestsLeft {
  bool any = false;
  int32_t num_running = 0;  // of them: with keys and values on the device
};

}  // namespace espalier
