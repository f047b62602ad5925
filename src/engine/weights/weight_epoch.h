// Which of a model's weights a request runs with: they change while an engine serves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

// Between two changes of the weights, or of their version's name.
struct WeightEpoch {
  int32_t epoch = 0;  // counts the changes
  // In front of cache namespaces, so that keys and values that other weights computed are not
  // found, here or in tiers. Empty: of the weights that the engine was started with.
  std::string cache_prefix;
};

// The prefix of weights with this name, for WeightEpoch::cache_prefix. REQUIRES: the name has no
// byte below 2.
std::string cache_prefix_of_weights(std::string_view name);

// The cache namespace of `of_key` (namespace_of_adapter) under these weights: different for
// different prefixes and keys. An adapter's namespace stays one of its adapter.
std::string namespace_of_weights(const WeightEpoch& weights, std::string_view of_key);
// Its inverse: `of_key` of a cache namespace, whatever the weights.
std::string namespace_without_weights(std::string_view cache_namespace);

// What is left when no step runs: requests are in the scheduler only where the engine is paused.
struct RequestsLeft {
  bool any = false;
  int32_t num_running = 0;  // of them: with keys and values on the device
};

}  // namespace espalier
