#include "server/tracing/span_exporter.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <condition_variable>
#include <mutex>

#include "net/http_server.h"
#include "server/test_server.h"

namespace espalier::server {
namespace {

namespace json = boost::json;
using namespace std::chrono_literals;

// A collector that keeps what it gets, and answers as a test wants.
class Collector {
 public:
  explicit Collector(std::string path = "/v1/traces") {
    net::Router router;
    const auto take = [this](net::HttpRequest&& request, net::ResponsePtr response) {
      std::lock_guard lock(mutex_);
      ++num_calls_;
      const int status = num_refusals_ > 0 ? 503 : 200;
      if (num_refusals_ > 0) {
        --num_refusals_;
      } else {
        const json::value body = json::parse(request.body);
        for (const json::value& span :
             body.at("resourceSpans").at(0).at("scopeSpans").at(0).at("spans").as_array())
          spans_.push_back(span.as_object());
        resource_ = json::serialize(body.at("resourceSpans").at(0).at("resource"));
      }
      response->send(net::HttpResponse::text(status, "{}"));
      came_.notify_all();
    };
    EXPECT_TRUE(router.add("POST", path, take).ok());
    server_ = std::move(*net::HttpServer::start({}, std::move(router)));
  }

  std::string url() const { return fmt::format("http://127.0.0.1:{}", server_->port()); }
  void refuse(int times) {
    std::lock_guard lock(mutex_);
    num_refusals_ = times;
  }
  // Waits for so many spans.
  std::vector<json::object> spans(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(came_.wait_for(lock, 60s, [&] { return spans_.size() >= count; }))
        << spans_.size() << " of " << count;
    return spans_;
  }
  int num_calls() {
    std::lock_guard lock(mutex_);
    return num_calls_;
  }
  std::string resource() {
    std::lock_guard lock(mutex_);
    return resource_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<json::object> spans_;
  std::string resource_;
  int num_calls_ = 0, num_refusals_ = 0;
  std::unique_ptr<net::HttpServer> server_;
};

RequestSpan ended_request(std::string rid = "r") {
  const TimePoint now = std::chrono::steady_clock::now();
  return {.operation = "chat",
          .rid = std::move(rid),
          .model = "m",
          .end = "stop",
          .arrived = now,
          .ended = now + 1s};
}

TEST(SpanExporter, SendsManyAtOnceWithTheServicesName) {
  Collector collector;
  auto exporter = std::move(*SpanExporter::start(collector.url(), "my service"));
  for (int i = 0; i < 1000; ++i) exporter->add(ended_request(std::to_string(i)));
  const auto spans = collector.spans(2000);
  EXPECT_EQ(spans.size(), 2000u) << "of each request the whole and its phase in the queue";
  EXPECT_LT(collector.num_calls(), 10);
  EXPECT_NE(collector.resource().find("my service"), std::string::npos);
  const auto start = std::stoll(std::string(spans[0].at("startTimeUnixNano").as_string()));
  const auto now = std::chrono::system_clock::now().time_since_epoch() / 1ns;
  EXPECT_NEAR(static_cast<double>(start), static_cast<double>(now), 100e9) << "since 1970";
  exporter.reset();
}

TEST(SpanExporter, TriesAgainAndThenDrops) {
  Collector collector("/custom/path");
  auto exporter = std::move(*SpanExporter::start(collector.url() + "/custom/path", "s"));
  collector.refuse(2);
  exporter->add(ended_request());
  EXPECT_EQ(collector.spans(2).size(), 2u);
  EXPECT_EQ(collector.num_calls(), 3);
  collector.refuse(1000);
  exporter->add(ended_request());
  while (exporter->counts().dropped == 0) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(exporter->counts().exported, 1);
  std::string metrics;
  append_metrics(metrics, exporter->counts());
  EXPECT_NE(metrics.find("\nespalier:traces_dropped_total 1\n"), std::string::npos) << metrics;
}

TEST(SpanExporter, ACollectorThatIsAwayHoldsNothingUp) {
  int port = 0;
  {
    Collector gone;
    port = static_cast<int>(std::stol(gone.url().substr(gone.url().rfind(':') + 1)));
  }
  auto exporter = std::move(*SpanExporter::start(fmt::format("http://127.0.0.1:{}", port), "s"));
  const auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < 4 * SpanExporter::kWaiting; ++i) exporter->add(ended_request());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  EXPECT_GT(exporter->counts().dropped, 0);
  exporter.reset();  // ends, too
}

TEST(SpanExporter, WhatItsCallerDoesNotSampleIsNotSent) {
  Collector collector;
  auto exporter = std::move(*SpanExporter::start(collector.url(), "s"));
  RequestSpan unsampled = ended_request();
  unsampled.parent = TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
  ASSERT_TRUE(unsampled.parent);
  exporter->add(std::move(unsampled));
  exporter->add(ended_request());
  exporter.reset();
  EXPECT_EQ(collector.spans(2).size(), 2u);
}

TEST(SpanExporter, WrongEndpointsAreRefused) {
  for (const char* bad : {"grpc://collector:4317", "http://host:99999", "http://"}) {
    const auto started = SpanExporter::start(bad, "s");
    ASSERT_FALSE(started) << bad;
    EXPECT_EQ(started.error().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(started.error().message().find("4318"), std::string::npos);
  }
}

TEST_F(ServerTest, RequestsJoinTheirCallersTraces) {
  Collector collector;
  config_.telemetry.otlp_traces_endpoint = collector.url();
  start();
  const std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  ASSERT_EQ(call("POST", "/v1/chat/completions",
                 R"({"messages":[{"role":"user","content":"x"}],"max_tokens":3,"top_p":0.5})",
                 {{"traceparent", "00-" + trace + "-00f067aa0ba902b7-01"}})
                .status,
            200);
  const auto spans = collector.spans(2);
  EXPECT_EQ(spans[0].at("traceId").as_string(), trace);
  EXPECT_EQ(spans[0].at("parentSpanId").as_string(), "00f067aa0ba902b7");
  EXPECT_TRUE(spans[0].at("name").as_string().starts_with("chat "));
  EXPECT_NE(json::serialize(spans[0]).find("gen_ai.request.top_p"), std::string::npos);
  while (call("GET", "/metrics").body.find("traces_exported_total 1") == std::string::npos)
    std::this_thread::sleep_for(5ms);
}

}  // namespace
}  // namespace espalier::server
