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
