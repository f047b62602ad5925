// Routes of SGLang that are not served, and the pages that list all of SGLang's routes and metrics.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "server/routes.h"
#include "server/test_server.h"

namespace espalier::server {
namespace {

using ::testing::HasSubstr;

using SglangRoutesTest = ServerTest;

bool has(std::string_view line, std::string_view text) {
  return line.find(text) != std::string_view::npos;
}

TEST_F(SglangRoutesTest, WhatIsNotServedAnswersWithAdvice) {
  config_.access.api_key = "secret";
  start();
  const net::Headers key = {{"Authorization", "Bearer secret"}};
  for (const Route& route : sglang_routes()) {
    for (const std::string& method : route.methods) {
      const Answer answer = call(method, route.pattern, "", key);
      EXPECT_EQ(answer.status, 501) << method << " " << route.pattern;
      EXPECT_THAT(answer.body, HasSubstr("is not served here: "));
    }
    EXPECT_EQ(call("POST", route.pattern).status, 401) << route.pattern;
  }
  EXPECT_THAT(call("POST", "/load_lora_adapter_from_tensors", "{}", key).body,
              HasSubstr("save the adapter as PEFT does"));
  EXPECT_THAT(call("GET", "/openapi.json", "", key).body, HasSubstr("Not served (501): "));
}

TEST_F(SglangRoutesTest, HostsOfModelsGetTheirShapes) {
  config_.answers.weight_version = "v7";
  start();
  for (const char* path : {"/weight_version", "/get_weight_version"})
    EXPECT_EQ(call("GET", path).body, R"({"weight_version":"v7"})");
  const char* const chat = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":2})";
  EXPECT_THAT(post("/invocations", chat).body, HasSubstr(R"("object":"chat.completion")"));

  const Answer two =
      post("/vertex_generate", R"({"instances":[{"text":"a"},{"text":"b"}],)"
                               R"("parameters":{"sampling_params":{"max_new_tokens":2}}})");
  EXPECT_EQ(two.status, 200);
  EXPECT_THAT(two.body, ::testing::StartsWith(R"({"predictions":[{"text":)"));
  EXPECT_EQ(post("/vertex_generate", R"({"instances":[]})").body, "[]");
  const Answer other = post("/vertex_generate", R"({"instances":[{"prompt":"a"}]})");
  EXPECT_EQ(other.status, 400);
  EXPECT_THAT(other.body, testing::HasSubstr("instances[0] has neither text nor input_ids"));
  const Answer wrong = post("/vertex_generate", R"({"instances":{}})");
  EXPECT_EQ(wrong.status, 400);
  EXPECT_THAT(wrong.body, HasSubstr("instances must be a list"));
}

// A row is "| `/path` | same |" for a route that is served and "| `/path` | 501 |" for one that is
// not, each with a remark behind it.
TEST(SglangRoutesPage, ListsWhatTheServerDoes) {
  std::stringstream page;
  page << std::ifstream("docs/sglang_routes.md").rdbuf();
  const std::string text = page.str();
  ASSERT_FALSE(text.empty());
  for (const Route& route : sglang_routes())
    EXPECT_THAT(text, HasSubstr("| `" + route.pattern + "` | 501 |"));
  int served = 0, lacking = 0;
  for (std::string line; std::getline(page, line);) {
    const int status = has(line, "` | same |") ? 200 : has(line, "` | 501 |") ? 501 : 0;
    if (status == 0) continue;
    const std::string path = line.substr(3, line.find('`', 3) - 3);
    const bool known = std::ranges::any_of(routes(), [&](const Route& route) {
      return route.pattern == path && route.status == status;
    });
    EXPECT_TRUE(known) << line;
    ++(status == 200 ? served : lacking);
  }
  EXPECT_GE(served, 40);
  EXPECT_EQ(lacking, static_cast<int>(sglang_routes().size()));
}

// A row is "| `sglang:name` | same |" for a metric that /metrics has and "| `sglang:name` | absent
// |" for one that it has not.
TEST_F(SglangRoutesTest, MetricsPageListsWhatIsScraped) {
  start();
  std::set<std::string> scraped, same;
  std::stringstream metrics(call("GET", "/metrics").body);
  for (std::string line; std::getline(metrics, line);)
    if (line.starts_with("# TYPE sglang:")) scraped.insert(line.substr(7, line.find(' ', 7) - 7));
  std::ifstream page("docs/sglang_metrics.md");
  int absent = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| `sglang:")) continue;
    if (has(line, "` | same |"))
      same.insert(line.substr(3, line.find('`', 3) - 3));
    else
      EXPECT_TRUE(has(line, "` | absent | ") && !line.ends_with("|  |")) << line;
    absent += has(line, "` | absent | ") ? 1 : 0;
  }
  EXPECT_EQ(scraped, same);
  EXPECT_GT(absent, 100);
}

TEST_F(SglangRoutesTest, PageOfVllmsMetricsListsWhatIsScraped) {
  start();
  ASSERT_EQ(call("POST", "/generate", R"({"text":"Hi"})").status, 200);
  std::stringstream metrics(call("GET", "/metrics").body);
  std::ifstream file("docs/vllm_metrics.md");
  std::string page(std::istreambuf_iterator<char>(file), {});
  std::set<std::string> scraped, listed;
  for (std::string line; std::getline(metrics, line);)
    if (line.starts_with("# TYPE vllm:")) scraped.insert(line.substr(7, line.find(' ', 7) - 7));
  page.resize(page.find("\n\n`vllm:lora"));  // what is not there comes last
  for (size_t at = 0; (at = page.find("`vllm:", at)) != std::string::npos;) {
    const size_t end = page.find('`', at + 1);
    listed.insert(page.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  EXPECT_EQ(scraped, listed);
  EXPECT_GT(listed.size(), 15u);
}

}  // namespace
}  // namespace espalier::server
