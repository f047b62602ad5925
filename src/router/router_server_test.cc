// A router's own routes, its keys, and where its workers come from.
#include "router/router_server.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "net/client.h"
#include "router/admin_routes.h"
#include "router/test_worker.h"

namespace espalier::router {
namespace {

using namespace std::chrono_literals;

constexpr const char* kAnswer =
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

class RouterServerTest : public testing::Test {
 protected:
  void start(RouterConfig config) {
    config.port = 0;
    config.health.interval = 20ms;
    config.sources.poll = config.sources.dns_poll = 20ms;
    config.workers.slow_start = 0s;
    auto server = RouterServer::start(std::move(config));
    ASSERT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
    client_ = std::make_unique<net::HttpClient>(
        *net::HttpClient::create("http://127.0.0.1:" + std::to_string(server_->port())));
  }
  std::string get(std::string_view path) {
    const auto answer = client_->get(path);
    return answer ? fmt::format("{} {}", answer->status, answer->body) : answer.error().message();
  }
  std::string post(std::string_view path, std::string_view body) {
    const auto answer = client_->post(path, body);
    return answer ? fmt::format("{} {}", answer->status, answer->body) : answer.error().message();
  }
  bool has_healthy(size_t count) {
    for (int i = 0; i < 2000; ++i) {
      size_t healthy = 0;
      const auto workers = server_->dispatcher().workers();
      for (const WorkerInfo& worker : workers)
        healthy += worker.state == WorkerState::kHealthy && !worker.models.empty() ? 1 : 0;
      if (healthy == count && workers.size() == count) return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }

  TestWorker one_{kAnswer, [] { return Fate{}; }}, two_{kAnswer, [] { return Fate{}; }};
  std::unique_ptr<RouterServer> server_;
  std::unique_ptr<net::HttpClient> client_;
};

TEST_F(RouterServerTest, WorkersAreListedAddedAndRemoved) {
  start({});
  EXPECT_TRUE(get("/health").starts_with("503"));
  EXPECT_TRUE(get("/liveness").starts_with("200"));
  const std::string body = fmt::format(R"({{"url":"{}"}})", one_.url());
  EXPECT_TRUE(post("/workers", body).starts_with("202"));
  EXPECT_TRUE(post("/workers", body).starts_with("409"));
  EXPECT_TRUE(post("/add_worker?url=" + two_.url(), "").starts_with("202"));
  ASSERT_TRUE(has_healthy(2));
  EXPECT_TRUE(get("/health").starts_with("200"));
  EXPECT_NE(get("/list_workers").find(two_.url()), std::string::npos);
  EXPECT_NE(get("/workers").find(R"("state":"healthy")"), std::string::npos);
  const std::string id = worker_id(server_->dispatcher().workers()[0]);
  EXPECT_NE(get("/workers/" + id).find(one_.url()), std::string::npos);
  EXPECT_TRUE(get("/workers/0123").starts_with("404"));
  EXPECT_TRUE(post("/workers/" + id + "/drain", "").starts_with("200"));
  EXPECT_NE(get("/workers/" + id).find(R"("state":"draining")"), std::string::npos);
  EXPECT_TRUE(post("/resume", body).starts_with("200"));
  ASSERT_TRUE(has_healthy(2));
  EXPECT_EQ(client_->request("DELETE", "/workers/" + id)->status, 200);
  EXPECT_TRUE(post("/remove_worker?url=" + two_.url(), "").starts_with("200"));
  EXPECT_EQ(get("/list_workers"), R"(200 {"urls":[]})");
  EXPECT_TRUE(post("/remove_worker?url=" + two_.url(), "").starts_with("404"));
  for (const char* bad : {"", "{}", R"({"url":7})", R"({"url":"ftp://a"})", "x"})
    EXPECT_TRUE(post("/workers", bad).starts_with("400")) << bad;
  EXPECT_TRUE(post("/workers", R"({"url":"http://no-such-host.invalid:1"})").starts_with("503"));
}

TEST_F(RouterServerTest, ADrainedWorkerHandsItsCacheOver) {
  const auto answer_of = [](std::string_view body) {
    return fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
                       body.size(), body);
  };
  TestWorker from(answer_of(R"({"num_pages":7,"num_bytes":700})"), [] { return Fate{}; });
  std::atomic<bool> refuses = false;
  TestWorker to(answer_of(R"({"num_pages":5})"),
                [&] { return Fate{refuses ? Fate::Kind::kRefuse : Fate::Kind::kAnswer}; });
  RouterConfig config;
  config.sources.urls = {from.url(), to.url()};
  config.proxy.worker_api_key = "worker";
  start(config);
  ASSERT_TRUE(has_healthy(2));
  EXPECT_TRUE(post("/drain", fmt::format(R"({{"url":"{}","hand_over":"true"}})", from.url()))
                  .starts_with("400"));
  EXPECT_EQ(server_->dispatcher().workers()[0].state, WorkerState::kHealthy) << "nothing drains";
  const std::string body = fmt::format(R"({{"url":"{}","hand_over":true}})", from.url());
  const std::string answer = post("/drain", body);
  EXPECT_TRUE(answer.starts_with("200")) << answer;
  EXPECT_NE(answer.find(R"("num_pages":7,"num_bytes":700)"), std::string::npos) << answer;
  EXPECT_NE(answer.find(fmt::format(R"({{"url":"{}","num_pages":5}})", to.url())),
            std::string::npos)
      << answer;
  EXPECT_TRUE(from.last_request().starts_with("POST /cache/export"));
  EXPECT_TRUE(to.last_request().starts_with("POST /cache/import"));
  EXPECT_NE(to.last_request().find("Authorization: Bearer worker"), std::string::npos);
  const auto file = [](const std::string& request) {
    return request.substr(request.find(R"({"file")"));
  };
  EXPECT_EQ(file(from.last_request()), file(to.last_request()));
  refuses = true;  // the other worker's failure is stated, and the worker drains all the same
  EXPECT_NE(post("/drain", body).find("answers 503"), std::string::npos);
  EXPECT_NE(get("/workers").find(R"("state":"draining")"), std::string::npos);
  EXPECT_TRUE(post("/drain", fmt::format(R"({{"url":"{}","hand_over":true}})", to.url()))
                  .starts_with("404"))
      << "nobody is left to take it";
}

TEST_F(RouterServerTest, ModelsAndMetrics) {
  RouterConfig config;
  config.sources.urls = {one_.url(), two_.url()};
  start(config);
  ASSERT_TRUE(has_healthy(2));
  EXPECT_NE(get("/v1/models").find(R"("id":"test")"), std::string::npos);
  EXPECT_TRUE(get("/v1/models/test").starts_with("200"));
  EXPECT_TRUE(get("/v1/models/other").starts_with("404"));
  EXPECT_EQ(post("/generate", R"({"text":"x","model":"test"})"), "200 ok");
  const std::string metrics = get("/metrics");
  for (const char* line :
       {"espalier:router_requests_total 1\n", "espalier:router_policy{policy=\"cache_aware\"} 1\n",
        "espalier:router_tree_nodes ", "espalier:router_worker_healthy{worker=\"http://127.0.0.1:"})
    EXPECT_NE(metrics.find(line), std::string::npos) << line << metrics;
}

TEST_F(RouterServerTest, KeysOpenWhatTheyAreFor) {
  RouterConfig config;
  config.sources.urls = {one_.url()};
  config.api_key = "client";
  config.admin_api_key = "admin";
  start(config);
  ASSERT_TRUE(has_healthy(1));
  const auto status = [&](std::string_view method, std::string_view path, const char* key) {
    net::Headers headers;
    if (key != nullptr) headers.emplace_back("Authorization", fmt::format("Bearer {}", key));
    return client_->request(method, path, "{}", headers)->status;
  };
  EXPECT_EQ(status("POST", "/generate", nullptr), 401);
  EXPECT_EQ(status("POST", "/generate", "clien"), 401);
  EXPECT_EQ(status("POST", "/generate", "client"), 200);
  EXPECT_EQ(client_->request("POST", "/v1/messages", "{}", {{"x-api-key", "client"}})->status, 200);
  EXPECT_EQ(status("GET", "/workers", "client"), 401);
  EXPECT_EQ(status("GET", "/workers", "admin"), 200);
  EXPECT_EQ(status("GET", "/v1/models", "client"), 200);
  EXPECT_EQ(status("GET", "/health", nullptr), 200);
}

class RouterTenantsTest : public RouterServerTest {
 protected:
  void SetUp() override {
    write(R"([{"name":"small","key":"sk-small","requests_per_minute":3,"tokens_per_minute":500,)"
          R"("max_priority":1},{"name":"la\"rge","key":"sk-large"}])");
    config_.sources.urls = {worker_.url()};
    config_.api_keys_file = file_.string();
    config_.proxy.worker_api_key = "sk-worker";
  }
  void TearDown() override { std::filesystem::remove(file_); }
  void write(std::string_view text) const { std::ofstream(file_) << text; }
  net::HttpResponse ask(std::string_view key, std::string_view path,
                        std::string_view body = R"({"text":"x","max_tokens":10})",
                        std::string_view method = "POST") {
    net::Headers headers;
    if (!key.empty()) headers.emplace_back("Authorization", fmt::format("Bearer {}", key));
    const auto answer = client_->request(method, path, body, headers);
    return answer ? *answer : net::HttpResponse{.status = 0, .body = answer.error().message()};
  }
  static std::string header(const net::HttpResponse& answer, std::string_view name) {
    const std::string* const value = net::find_header(answer.headers, name);
    return value == nullptr ? "none" : *value;
  }

  const std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / fmt::format("espalier_route_keys_{}", ::getpid());
  TestWorker worker_{
      "HTTP/1.1 200 OK\r\nX-RateLimit-Limit-Requests: 9\r\nConnection: close\r\n\r\n"
      R"({"usage":{"prompt_tokens":3,"completion_tokens":7}})",
      [] { return Fate{}; }};
  RouterConfig config_;
};

TEST_F(RouterTenantsTest, AKeyOpensWhatClientsMayAndStaysHere) {
  start(config_);
  ASSERT_TRUE(has_healthy(1));
  EXPECT_EQ(ask("", "/generate").status, 401);
  EXPECT_EQ(ask("sk-none", "/generate").status, 401);
  EXPECT_EQ(ask("sk-large", "/generate").status, 200);
  EXPECT_NE(worker_.last_request().find("Bearer sk-worker\r\n"), std::string::npos);
  EXPECT_EQ(worker_.last_request().find("sk-large"), std::string::npos);
  EXPECT_EQ(client_->request("POST", "/v1/messages", "{}", {{"x-api-key", "sk-large"}})->status,
            200);
  EXPECT_EQ(worker_.last_request().find("sk-large"), std::string::npos);
  EXPECT_EQ(ask("sk-large", "/v1/models", "", "GET").status, 200);
  EXPECT_EQ(ask("sk-large", "/workers", "", "GET").status, 403);
  EXPECT_EQ(ask("", "/workers", "", "GET").status, 401);
}

// A worker takes the router's word, so a client's must not reach it: neither with tenants nor
// without.
TEST_F(RouterTenantsTest, WorkersGetTheTenantAndClientsCannotStateOne) {
  write(R"([{"name":"a","key":"sk-a","weight":2.5,"max_priority":7}])");
  start(config_);
  ASSERT_TRUE(has_healthy(1));
  const net::Headers forged = {{"x-espalier-tenant", "forged"},
                               {"X-ESPALIER-TENANT-WEIGHT", "999"},
                               {"X-Espalier-Tenant-Max-Priority", "999"},
                               {"Authorization", "Bearer sk-a"}};
  EXPECT_EQ(client_->request("POST", "/generate", "{}", forged)->status, 200);
  const std::string with = worker_.last_request();
  for (const char* line : {"X-Espalier-Tenant: a\r\n", "X-Espalier-Tenant-Weight: 2.5\r\n",
                           "X-Espalier-Tenant-Max-Priority: 7\r\n"})
    EXPECT_NE(with.find(line), std::string::npos) << with;
  EXPECT_EQ(with.find("forged"), std::string::npos) << with;
  EXPECT_EQ(with.find("999"), std::string::npos) << with;
  config_.api_keys_file.clear();
  start(config_);
  ASSERT_TRUE(has_healthy(1));
  EXPECT_EQ(client_->request("POST", "/generate", "{}", forged)->status, 200);
  const std::string without = worker_.last_request();
  for (const char* part : {"forged", "999", "enant", "ENANT"})
    EXPECT_EQ(without.find(part), std::string::npos) << without;
}

TEST_F(RouterTenantsTest, WithoutAWorkersKeyNoneIsPassedOn) {
  config_.proxy.worker_api_key.clear();
  config_.admin_api_key = "sk-admin";
  start(config_);
  ASSERT_TRUE(has_healthy(1));
  EXPECT_EQ(ask("sk-large", "/generate").status, 200);
  EXPECT_EQ(worker_.last_request().find("sk-"), std::string::npos) << worker_.last_request();
  EXPECT_EQ(ask("sk-admin", "/generate").status, 200);
  EXPECT_EQ(worker_.last_request().find("sk-"), std::string::npos);
  EXPECT_EQ(ask("sk-admin", "/workers", "", "GET").status, 200);
}

TEST_F(RouterTenantsTest, LimitsStandInTheHeadersAndGive429InTheDialect) {
  start(config_);
  ASSERT_TRUE(has_healthy(1));
  const net::HttpResponse first = ask("sk-small", "/v1/completions");
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(header(first, "x-ratelimit-limit-requests"), "3") << "the worker's own is not shown";
  EXPECT_EQ(header(first, "x-ratelimit-remaining-requests"), "2");
  EXPECT_EQ(header(ask("sk-large", "/generate"), "x-ratelimit-limit-requests"), "none");
  const auto refused = [&](std::string_view path, std::string_view type) {
    const net::HttpResponse over = ask("sk-small", path);
    EXPECT_EQ(over.status, 429) << path;
    EXPECT_NE(over.body.find(type), std::string::npos) << over.body;
    const int wait_s = std::atoi(header(over, "Retry-After").c_str());
    EXPECT_TRUE(wait_s >= 1 && wait_s <= 20) << wait_s;
    EXPECT_EQ(header(over, "x-ratelimit-remaining-requests"), "0");
    EXPECT_NE(header(over, "X-Request-Id"), "none");
  };
  EXPECT_EQ(ask("sk-small", "/generate").status, 200);
  EXPECT_EQ(ask("sk-small", "/generate").status, 200);
  refused("/v1/chat/completions", R"("type":"rate_limit_error")");
  refused("/v1/messages", R"({"type":"error","error":{"type":"rate_limit_error")");
  refused("/api/chat", R"({"error":"the limits of this key)");
  EXPECT_EQ(ask("sk-small", "/tokenize").status, 200) << "computes nothing";
  EXPECT_EQ(worker_.num_requests(), 5);
  const std::string metrics = get("/metrics");
  for (const char* line : {"espalier:router_tenant_requests_total{tenant=\"small\"} 3\n",
                           "espalier:router_tenant_tokens_total{tenant=\"small\"} 30\n",
                           "espalier:router_tenant_rate_limited_total{tenant=\"small\"} 3\n",
                           "espalier:router_tenant_requests_total{tenant=\"la\\\"rge\"} 1\n"})
    EXPECT_NE(metrics.find(line), std::string::npos) << line << metrics;
}

TEST_F(RouterTenantsTest, WhatIsNotUsedComesBackAndPrioritiesAreBounded) {
  start(config_);
  ASSERT_TRUE(has_healthy(1));
  // 400 tokens are reserved of 500, and ten used.
  const char* const large = R"({"prompt":"x","max_tokens":100,"n":4})";
  EXPECT_EQ(ask("sk-small", "/v1/completions", large).status, 200);
  EXPECT_EQ(ask("sk-small", "/v1/completions", large).status, 200);
  const net::HttpResponse high = ask("sk-small", "/generate", R"({"text":"x","priority":2.0})");
  EXPECT_EQ(high.status, 400);
  EXPECT_NE(high.body.find("the most that this key may state is 1"), std::string::npos);
}

TEST_F(RouterTenantsTest, TheFileIsReadAgain) {
  start(config_);
  ASSERT_TRUE(has_healthy(1));
  EXPECT_EQ(ask("sk-small", "/generate").status, 200);
  write(R"([{"name":"small","key":"sk-new","requests_per_minute":3}])");
  ASSERT_TRUE(server_->reload().ok());
  EXPECT_EQ(ask("sk-small", "/generate").status, 401);
  const net::HttpResponse second = ask("sk-new", "/generate");
  EXPECT_EQ(header(second, "x-ratelimit-remaining-requests"), "1") << "what was used stays so";
  EXPECT_EQ(header(second, "x-ratelimit-limit-tokens"), "none");
  write("[");
  EXPECT_FALSE(server_->reload().ok());
  EXPECT_EQ(ask("sk-new", "/generate").status, 200);
}

TEST_F(RouterServerTest, TheFileIsFollowed) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("espalier_workers_{}", ::getpid());
  const auto write = [&](const std::string& text) { std::ofstream(file) << text; };
  write("# workers\n" + one_.url() + "  # the first\n\n");
  RouterConfig config;
  config.sources.file = file;
  start(config);
  ASSERT_TRUE(has_healthy(1));
  write(one_.url() + "\n" + two_.url() + "\n");
  ASSERT_TRUE(has_healthy(2));
  write("not a url at all:x\n");
  std::this_thread::sleep_for(60ms);
  ASSERT_TRUE(has_healthy(2)) << "a file with a mistake changes nothing";
  write(two_.url() + "\n");
  ASSERT_TRUE(has_healthy(1));
  EXPECT_EQ(server_->dispatcher().workers()[0].url, two_.url());
  std::filesystem::remove(file);
}

TEST_F(RouterServerTest, NamesBecomeTheirAddresses) {
  RouterConfig config;
  config.sources.dns = {"localhost" + one_.url().substr(one_.url().rfind(':'))};
  start(config);
  bool found = false;
  for (int i = 0; i < 2000 && !found; ++i, std::this_thread::sleep_for(5ms))
    for (const WorkerInfo& worker : server_->dispatcher().workers())
      found = found || (worker.url == one_.url() && worker.state == WorkerState::kHealthy);
  EXPECT_TRUE(found);
}

TEST(WorkerFile, NamesTheLineThatIsWrong) {
  EXPECT_EQ(parse_worker_file("http://a:1\n# x\n\n  b:2 # y")->size(), 2u);
  EXPECT_NE(parse_worker_file("a:1\nb:x\n").error().message().find("line 2"), std::string::npos);
}

TEST(RouterServerStart, WrongSettingsAreRefused) {
  RouterConfig config;
  config.port = 0;
  config.worker_tls.ca = "/none.pem";
  EXPECT_EQ(RouterServer::start(config).error().code(), StatusCode::kInvalidArgument);
  config.worker_tls.ca.clear();
  config.api_keys_file = "/no/such/file";
  EXPECT_NE(RouterServer::start(config).error().message().find("--api-keys-file: /no/such/file"),
            std::string::npos);
  config.api_keys_file.clear();
  config.sources.urls = {"ftp://a"};
  EXPECT_EQ(RouterServer::start(config).error().code(), StatusCode::kInvalidArgument);
  config.sources.urls = {"127.0.0.1:1", "http://127.0.0.1:1"};
  EXPECT_EQ(RouterServer::start(config).error().code(), StatusCode::kAlreadyExists);
  config.sources.urls = {};
  config.sources.file = "/no/such/file";
  EXPECT_EQ(RouterServer::start(config).error().code(), StatusCode::kInvalidArgument);
  config.sources.file = "";
  config.policy.name = "best";
  EXPECT_EQ(RouterServer::start(config).error().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier::router
