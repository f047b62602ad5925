// For the room's tests: the back end over a real engine with a scripted device, whose answers are
// known from the prompt alone.
// The test owns both; the engine ends with the last owner.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/testing/test_engine.h"
#include "lang/backends/engine_backend.h"
#include "lang/lang.h"

namespace espalier::lang {

struct TestBackend {
  std::shared_ptr<Backend> backend;
  std::shared_ptr<Engine> engine;
};

inline TestBackend make_test_backend(Script script = {}, Duration step_delay = {},
                                     EngineConfig config = {}) {
  config.schedule.max_running_requests = 64;
  config.schedule.max_queued_requests = 10000;
  TestEngine made =
      make_test_engine({.config = config, .script = std::move(script), .step_delay = step_delay});
  TestBackend result{.engine = std::move(made.engine)};
  auto backend = engine_backend(result.engine, ChatFrames());
  EXPECT_TRUE(backend) << backend.error().to_string();
  if (backend) result.backend = std::move(*backend);
  return result;
}

// What the device says after `prompt` when nothing is scripted.
inline std::string answer_of(std::string_view prompt, int num_tokens) {
  std::string text;
  for (TokenId id : Script().answer(bytes_of(prompt), num_tokens)) text += static_cast<char>(id);
  return text;
}

}  // namespace espalier::lang
