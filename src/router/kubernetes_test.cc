// Workers that are pods: against a server that speaks the API as recorded answers of one do, with
// faults at drawn points.
#include "router/kubernetes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "base/rng.h"
#include "net/http_server.h"
#include "net/test_identity.h"

namespace espalier::router {
namespace {

using namespace std::chrono_literals;

struct Pod {
  std::string name, address;
  bool running = true, ready = true, deleted = false;
};

// As API servers write a pod, with what is left out here cut away.
std::string pod_json(const Pod& pod, int64_t version) {
  return fmt::format(
      R"({{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"{0}","namespace":"llm","uid":"uid-{0}",)"
      R"("resourceVersion":"{1}","labels":{{"app":"worker"}}{2}}},"spec":{{"nodeName":"n1"}},)"
      R"("status":{{"phase":"{3}","conditions":[{{"type":"Initialized","status":"True"}},)"
      R"({{"type":"Ready","status":"{4}"}}],"hostIP":"10.1.1.1"{5}}}}})",
      pod.name, version, pod.deleted ? R"(,"deletionTimestamp":"2026-01-01T00:00:00Z")" : "",
      pod.running ? "Running" : "Pending", pod.ready ? "True" : "False",
      pod.address.empty() ? "" : fmt::format(R"(,"podIP":"{}")", pod.address));
}

std::string status_json(int code, std::string_view message) {
  return fmt::format(
      R"({{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"{}",)"
      R"("code":{}}})",
      message, code);
}

// Pods and the events that changed them, served by HTTP. What each request meets is drawn.
class TestApi {
 public:
  TestApi(uint64_t seed, bool has_faults, net::HttpServerConfig config = {})
      : rng_(seed), has_faults_(has_faults) {
    net::Router router;
    EXPECT_TRUE(router
                    .add("GET", "/api/v1/namespaces/llm/pods",
                         [this](net::HttpRequest&& request, net::ResponsePtr response) {
                           answer(request, response);
                         })
                    .ok());
    auto server = net::HttpServer::start(std::move(config), std::move(router));
    EXPECT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
  }
  ~TestApi() { server_->stop(0s); }

  int port() const { return server_->port(); }
  void require_token(std::string token) {
    const std::lock_guard lock(mutex_);
    token_ = std::move(token);
  }
  void change(const Pod& pod, std::string_view type) {
    const std::lock_guard lock(mutex_);
    ++version_;
    if (type == "DELETED") {
      pods_.erase(pod.name);
    } else {
      pods_[pod.name] = pod;
    }
    events_.push_back(
        {version_, fmt::format(R"({{"type":"{}","object":{}}})", type, pod_json(pod, version_))});
    // A server keeps the events of some minutes.
    while (events_.size() > 20) events_.pop_front();
    serve_watches();
  }
  int num_lists() const { return num_lists_; }
  int num_watches() const { return num_watches_; }
  void stop_faults() {
    const std::lock_guard lock(mutex_);
    has_faults_ = false;
    watches_.clear();
  }

 private:
  struct Event {
    int64_t version;
    std::string line;
  };
  struct Watch {
    net::ResponsePtr response;
    int64_t version;
  };

  void answer(const net::HttpRequest& request, const net::ResponsePtr& response) {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(request.query_param("labelSelector"), "app=worker");
    const std::string* const key = request.header("Authorization");
    if (!token_.empty() && (key == nullptr || *key != "Bearer " + token_))
      return response->send(net::HttpResponse::json(401, status_json(401, "Unauthorized")));
    const bool is_watch = request.query_param("watch") == "true";
    ++(is_watch ? num_watches_ : num_lists_);
    if (has_faults_ && rng_.below(8) == 0)
      return response->send(net::HttpResponse::json(500, status_json(500, "etcd is away")));
    if (has_faults_ && rng_.below(8) == 0) return;  // the connection ends without an answer
    is_watch ? watch(request, response) : list(request, response);
  }

  void list(const net::HttpRequest& request, const net::ResponsePtr& response) {
    // Pages of two pods, whatever limit is asked for.
    const size_t begin = std::stoul("0" + request.query_param("continue").value_or(""));
    if (begin > 0 && has_faults_ && rng_.below(4) == 0)
      return response->send(net::HttpResponse::json(410, status_json(410, "the token is too old")));
    if (begin == 0) {  // all pages are of one time
      listed_ = pods_;
      listed_version_ = version_;
    }
    std::string items;
    size_t at = 0;
    for (const auto& [name, pod] : listed_)
      if (at++ >= begin && at <= begin + 2)
        items += (items.empty() ? "" : ",") + pod_json(pod, listed_version_);
    const std::string next =
        at > begin + 2 ? fmt::format(R"(,"continue":"{}")", begin + 2) : std::string();
    response->send(net::HttpResponse::json(
        200, fmt::format(R"({{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":)"
                         R"("{}"{}}},"items":[{}]}})",
                         listed_version_, next, items)));
  }

  void watch(const net::HttpRequest& request, const net::ResponsePtr& response) {
    const int64_t version = std::stoll(request.query_param("resourceVersion").value_or("0"));
    const bool is_old = !events_.empty() && version + 1 < events_.front().version;
    if (is_old && rng_.below(2) == 0)
      return response->send(net::HttpResponse::json(410, status_json(410, "too old")));
    response->start_stream(200, {{"Content-Type", "application/json"}});
    if (is_old || (has_faults_ && rng_.below(8) == 0)) {
      response->write(
          fmt::format(R"({{"type":"ERROR","object":{}}})", status_json(410, "Expired")) + "\n");
      return response->finish();
    }
    watches_.push_back({response, version});
    serve_watches();
  }

  void serve_watches() {
    std::erase_if(watches_, [&](Watch& watch) {
      for (const Event& event : events_) {
        if (event.version <= watch.version) continue;
        watch.version = event.version;
        if (has_faults_ && rng_.below(10) == 0) {  // cut in the middle of a line
          watch.response->write(event.line.substr(0, rng_.below(event.line.size())));
          if (rng_.below(2) == 0) watch.response->finish();
          return true;
        }
        watch.response->write(event.line + "\n");
        if (rng_.below(3) == 0)
          watch.response->write(fmt::format(
              R"({{"type":"BOOKMARK","object":{{"kind":"Pod","metadata":{{"resourceVersion":"{}"}}}}}})"
              "\n",
              event.version));
      }
      return false;
    });
  }

  std::mutex mutex_;  // guards the rest, but the counters and the server
  Rng rng_;
  bool has_faults_;
  std::string token_;
  int64_t version_ = 100;
  std::map<std::string, Pod> pods_, listed_;  // now, and as the last list found them
  int64_t listed_version_ = 0;
  std::deque<Event> events_;
  std::vector<Watch> watches_;
  std::atomic<int> num_lists_{0}, num_watches_{0};
  std::unique_ptr<net::HttpServer> server_;
};

class Followed {
 public:
  explicit Followed(KubernetesConfig config) {
    config.enabled = true;
    config.selector = {"app=worker"};
    config.name_space = "llm";
    config.port = 30000;
    config.backoff = 1ms;
    config.backoff_max = 20ms;
    auto watcher = PodWatcher::start(std::move(config), [this](std::set<std::string> urls) {
      const std::lock_guard lock(mutex_);
      urls_ = std::move(urls);
    });
    EXPECT_TRUE(watcher) << watcher.error().message();
    watcher_ = std::move(*watcher);
  }
  bool becomes(const std::set<std::string>& urls) {
    for (int i = 0; i < 10000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (urls_ == urls) return true;
      }
      std::this_thread::sleep_for(1ms);
    }
    return false;
  }

 private:
  std::mutex mutex_;
  std::optional<std::set<std::string>> urls_;
  std::unique_ptr<PodWatcher> watcher_;
};

std::string api_at(int port) { return fmt::format("http://127.0.0.1:{}", port); }
std::string url_of(int i) { return fmt::format("http://10.0.0.{}:30000", i); }

TEST(KubernetesTest, FollowsPodsThroughFaults) {
  const uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Rng rng(seed);
  TestApi api(seed + 1, true);
  Followed followed({.api = api_at(api.port())});
  std::map<int, Pod> pods;
  std::set<int> were_ready;
  for (int step = 0; step < 20000 && (step < 400 || api.num_watches() < 20); ++step) {
    const int i = 1 + static_cast<int>(rng.below(12));
    const bool is_there = pods.contains(i);
    Pod& pod = pods[i];
    if (is_there && rng.below(4) == 0) {
      pod.deleted = true;
      api.change(pod, "MODIFIED");
      api.change(pod, "DELETED");
      pods.erase(i);
      were_ready.erase(i);
    } else {
      // Ready once is ready, for health checks judge it then: so it is always ready but at first.
      if (!is_there) pod = {.name = fmt::format("worker-{}-{}", i, step)};
      pod.address = rng.below(4) == 0 && !were_ready.contains(i) ? "" : fmt::format("10.0.0.{}", i);
      pod.running = !pod.address.empty() && (were_ready.contains(i) || rng.below(4) > 0);
      pod.ready = pod.running && (were_ready.contains(i) || rng.below(4) > 0);
      if (pod.ready) were_ready.insert(i);
      api.change(pod, is_there ? "MODIFIED" : "ADDED");
    }
    if (rng.below(4) == 0) std::this_thread::sleep_for(1ms);  // else watches see nothing go by
  }
  api.stop_faults();
  std::set<std::string> expected;
  for (const int i : were_ready) expected.insert(url_of(i));
  EXPECT_TRUE(followed.becomes(expected));
  std::printf("%d lists, %d watches\n", api.num_lists(), api.num_watches());
  EXPECT_GT(api.num_watches(), 1);
}

TEST(KubernetesTest, WatchesWithoutListingAgain) {
  TestApi api(1, false);
  api.change({.name = "one", .address = "10.0.0.1"}, "ADDED");
  Followed followed({.api = api_at(api.port())});
  ASSERT_TRUE(followed.becomes({url_of(1)}));
  for (int i = 2; i < 10; ++i) {
    api.change({.name = fmt::format("pod-{}", i), .address = fmt::format("10.0.0.{}", i)}, "ADDED");
    api.change({.name = "one", .address = "10.0.0.1", .ready = false}, "MODIFIED");
  }
  api.change({.name = "pod-9", .address = "10.0.0.9"}, "DELETED");
  std::set<std::string> expected;
  for (int i = 1; i < 9; ++i) expected.insert(url_of(i));
  EXPECT_TRUE(followed.becomes(expected)) << "a pod that is not ready any more stays";
  EXPECT_EQ(api.num_lists(), 1);
}

TEST(KubernetesTest, ReadsItsTokenAnewUnderTls) {
  const net::Identity identity("IP:127.0.0.1");
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / fmt::format("pods_{}", ::getpid());
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(identity.file, folder / "ca.crt",
                             std::filesystem::copy_options::overwrite_existing);
  const auto write_token = [&](const char* token) { std::ofstream(folder / "token") << token; };
  net::HttpServerConfig config;
  config.tls = *net::read_tls({.certificate = identity.file, .key = identity.key_file});
  TestApi api(1, false, std::move(config));
  api.require_token("second");
  api.change({.name = "one", .address = "10.0.0.1"}, "ADDED");
  write_token("first\n");
  {
    Followed followed(
        {.api = fmt::format("https://127.0.0.1:{}", api.port()), .credentials = folder});
    write_token("second\n");
    EXPECT_TRUE(followed.becomes({url_of(1)}));
  }
  std::filesystem::remove_all(folder);
}

TEST(KubernetesTest, RefusesWhatItCannotAsk) {
  const auto said = [](KubernetesConfig config) {
    const auto started = PodWatcher::start(std::move(config), [](auto) {});
    return started ? std::string() : started.error().message();
  };
  ::unsetenv("KUBERNETES_SERVICE_HOST");
  EXPECT_NE(said({.selector = {"a=b"}}).find("--service-discovery-api"), std::string::npos);
  EXPECT_NE(said({.api = "http://127.0.0.1:1"}).find("--selector KEY=VALUE"), std::string::npos);
  EXPECT_NE(said({.selector = {"app"}, .api = "http://127.0.0.1:1"}).find("--selector app"),
            std::string::npos);
  EXPECT_EQ(*pods_path({.selector = {"a.b/c=d", "e=f"}, .name_space = "n"}),
            "/api/v1/namespaces/n/pods?labelSelector=a.b%2Fc%3Dd%2Ce%3Df");
}

TEST(KubernetesTest, ListsThatBreakForgetNoReadiness) {
  const auto page = [](const char* name, bool is_ready, const char* next) {
    return fmt::format(
        R"({{"metadata": {{"resourceVersion": "1", "continue": "{}"}}, "items": [{{"metadata": {{"uid": "{}"}}, )"
        R"("status": {{"phase": "Running", "podIP": "10.0.0.{}", "conditions": [{{"type": "Ready", "status": "{}"}}]}}}}]}})",
        next, name, name, is_ready ? "True" : "False");
  };
  PodTable pods(1);
  ASSERT_TRUE(pods.take_page(page("1", true, "more"), true));
  ASSERT_TRUE(pods.take_page(page("2", true, ""), false));
  ASSERT_EQ(pods.urls().size(), 2U);
  // Twice a list that ends after its first page, then one that is whole; neither pod is ready now.
  ASSERT_TRUE(pods.take_page(page("1", false, "more"), true));
  ASSERT_TRUE(pods.take_page(page("1", false, "more"), true));
  ASSERT_TRUE(pods.take_page(page("1", false, "more"), true));
  ASSERT_TRUE(pods.take_page(page("2", false, ""), false));
  EXPECT_EQ(pods.urls().size(), 2U);
  // One that a whole list lacked begins anew.
  ASSERT_TRUE(pods.take_page(page("1", false, ""), true));
  ASSERT_TRUE(pods.take_page(page("2", false, ""), true));
  EXPECT_TRUE(pods.urls().empty());
}

TEST(KubernetesTest, EventsThatAreNoneAreErrors) {
  PodTable pods(1);
  for (const char* const text : {"", "{", "[]", R"({"items": 7})", R"({"items": []})"})
    EXPECT_FALSE(pods.take_page(text, true)) << text;
  for (const char* const text : {"", "{", "7", R"({"type": "ADDED"})", R"({"object": {}})"})
    EXPECT_FALSE(pods.take_event(text)) << text;
  EXPECT_FALSE(pods.take_event(R"({"type": "ERROR", "object": {"code": 500}})"));
  EXPECT_EQ(*pods.take_event(R"({"type": "ERROR", "object": {"code": 410}})"),
            PodTable::Event::kExpired);
  EXPECT_TRUE(pods.urls().empty());
}

}  // namespace
}  // namespace espalier::router
