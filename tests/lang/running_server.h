// A running server of ours over an engine with a scripted device, for back ends to call.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "lang/test_backend.h"
#include "server/server.h"

namespace espalier::lang {

struct RunningServer {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Server> server;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(server->port()); }
};

inline RunningServer run_server(Script script = {}, Duration step_delay = {}) {
  RunningServer running;
  EngineConfig config;
  config.schedule.max_running_requests = 64;
  config.schedule.max_queued_requests = 10000;
  running.engine =
      make_test_engine({.config = config, .script = std::move(script), .step_delay = step_delay})
          .engine;
  ServerConfig server_config;
  server_config.port = 0;
  server_config.answers.chat_template =
      "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  auto server = Server::create(std::move(server_config), *running.engine);
  EXPECT_TRUE(server) << server.error().to_string();
  running.server = std::move(*server);
  const Status started = running.server->start();
  EXPECT_TRUE(started.ok()) << started.to_string();
  return running;
}

}  // namespace espalier::lang
