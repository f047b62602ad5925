// Several models behind one server: what `--served-models FILE` states.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "server/server_config.h"

namespace espalier {

class Engine;

struct ServedModel {
  std::string name;
  std::vector<std::string> aliases;  // other names that requests may give it
  AnswerConfig answers;              // its chat template, its parsers; the name is `name`
  KvEventsConfig kv_events;          // where its cache's events are published
  // Idle time after which it stops; nothing: it stays. It sleeps then (keys and values, and on a
  // GPU the weights, leave the device) or is unloaded.
  std::optional<Duration> keep_alive = std::chrono::minutes(5);
  bool sleeps = false;
  bool preload = false;  // loaded before the first request names it
  // About what it takes in memory, before it was loaded for the first time; 0: not known.
  int64_t estimated_bytes = 0;
  // Loads it. Called on one thread, each time that the model is loaded.
  std::function<Result<std::unique_ptr<Engine>>()> start;
};

struct ServedModels {
  std::vector<ServedModel> models;  // the first one is that of requests that name none
  int64_t memory_limit = 0;         // bytes of all in memory together; 0: what the device has
  Duration load_timeout = std::chrono::minutes(5);  // that a request waits for its model
  std::function<int64_t()> free_bytes;              // of the device, now
};

}  // namespace espalier
