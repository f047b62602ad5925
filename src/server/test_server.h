// A running server over a scripted engine, and answers compared as JSON.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "net/client.h"
#include "server/server.h"
#include "server/test_engine.h"

namespace espalier::server {

inline constexpr std::string_view kTestTemplate =
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

// `text` as JSON with what varies from run to run set to 0 (created, e2e_latency, timestamp), whole
// numbers as integers, members sorted; on one line. Not JSON: the text itself.
std::string normalise(std::string_view text);

class ServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.port = 0;
    config_.answers.chat_template = kTestTemplate;
  }
  void start();
  net::HttpClient client(net::Headers headers = {}) const;

  struct Answer {
    int status = 0;
    std::string body;
    net::Headers headers;
    std::string header(std::string_view name) const {
      const std::string* value = net::find_header(headers, name);
      return value != nullptr ? *value : "";
    }
  };
  Answer call(std::string_view method, std::string_view path, std::string_view body = {},
              const net::Headers& headers = {}) const;
  Answer post(std::string_view path, std::string_view body) const {
    return call("POST", path, body);
  }
  // The data of each event; the answer's status and headers (and its body, if it is no stream).
  std::vector<std::string> stream(std::string_view path, std::string_view body,
                                  Answer* answer = nullptr) const;
  // Answers with `status` and a body equal to `expected` as JSON.
  void expect(std::string_view path, std::string_view body, int status, std::string_view expected);
  void expect_stream(std::string_view path, std::string_view body,
                     const std::vector<std::string>& expected);

  ServerConfig config_;
  ScriptedEngine engine_;
  std::unique_ptr<Server> server_;
};

}  // namespace espalier::server
