#include "server/tracing/request_span.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <map>
#include <set>

namespace espalier::server {
namespace {

namespace json = boost::json;
using namespace std::chrono_literals;

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736", kParent = "00f067aa0ba902b7";

TEST(TraceParent, ReadsTheHeaderAndNothingElse) {
  const auto read = TraceParent::parse("00-" + kTrace + "-" + kParent + "-01");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->trace_id, kTrace);
  EXPECT_EQ(read->span_id, kParent);
  EXPECT_TRUE(read->sampled);
  EXPECT_FALSE(TraceParent::parse("00-" + kTrace + "-" + kParent + "-00")->sampled);
  EXPECT_TRUE(TraceParent::parse("00-" + kTrace + "-" + kParent + "-0b")->sampled);
  EXPECT_TRUE(TraceParent::parse("cc-" + kTrace + "-" + kParent + "-01-what-comes-later"));
  const std::string no_trace(32, '0'), no_span(16, '0');
  for (const std::string& bad :
       {std::string(), "00-" + kTrace + "-" + kParent, "00-" + kTrace + "-" + kParent + "-01-more",
        "ff-" + kTrace + "-" + kParent + "-01", "00-" + no_trace + "-" + kParent + "-01",
        "00-" + kTrace + "-" + no_span + "-01", "00-" + kTrace + "-" + kParent + "-0g",
        "00_" + kTrace + "-" + kParent + "-01", "0x-" + kTrace + "-" + kParent + "-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kParent + "-01", std::string(55, '-'),
        "cc-" + kTrace + "-" + kParent + "-01.later"})
    EXPECT_FALSE(TraceParent::parse(bad)) << bad;
}

TEST(TraceParent, AnyBytesAreReadOrRefused) {
  Rng rng(1);
  const std::string whole = "00-" + kTrace + "-" + kParent + "-01";
  int num_read = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = whole.substr(0, rng.below(whole.size() + 1));
    for (uint64_t n = rng.below(3); n > 0 && !text.empty(); --n)
      text[rng.below(text.size())] = static_cast<char>(rng.below(256));
    if (const auto read = TraceParent::parse(text)) {
      ++num_read;
      EXPECT_EQ(read->trace_id.size(), 32u);
      EXPECT_EQ(read->span_id.size(), 16u);
    }
  }
  EXPECT_GT(num_read, 100);
}

TEST(TraceParent, OperationsAreNamedByRoutes) {
  EXPECT_EQ(traced_operation("/v1/chat/completions"), "chat");
  EXPECT_EQ(traced_operation("/v1/messages"), "chat");
  EXPECT_EQ(traced_operation("/v1/responses"), "chat");
  EXPECT_EQ(traced_operation("/api/chat"), "chat");
  EXPECT_EQ(traced_operation("/v1/completions"), "text_completion");
  EXPECT_EQ(traced_operation("/generate"), "text_completion");
}

json::array spans_of(const RequestSpan& span, Duration offset = {}) {
  std::string text;
  JsonWriter w(text);
  SpanIds ids(7);
  w.begin_array();
  write_spans(w, span, ids, offset);
  w.end_array();
  return json::parse(text).as_array();
}

std::map<std::string, std::string> attributes_of(const json::value& span) {
  std::map<std::string, std::string> out;
  for (const json::value& each : span.at("attributes").as_array())
    out[std::string(each.at("key").as_string())] = json::serialize(each.at("value"));
  return out;
}

RequestSpan a_request() {
  RequestSpan span{.parent = TraceParent{kTrace, kParent, true},
                   .operation = "chat",
                   .rid = "r1",
                   .model = "m",
                   .end = "stop"};
  span.arrived = TimePoint(10s);
  span.stats.scheduled = TimePoint(11s);
  span.stats.first_token = TimePoint(13s);
  span.ended = TimePoint(20s);
  span.stats.prompt_tokens = 100;
  span.stats.cached_tokens = 60;
  span.stats.completion_tokens = 7;
  return span;
}

TEST(RequestSpan, HasTheConventionsAttributesAndItsPhases) {
  RequestSpan request = a_request();
  request.temperature = 0.5f;
  request.max_tokens = 32;
  const json::array spans = spans_of(request, 1700000000s);
  ASSERT_EQ(spans.size(), 4u);
  const json::value& whole = spans[0];
  EXPECT_EQ(whole.at("name").as_string(), "chat m");
  EXPECT_EQ(whole.at("kind"), 2);
  EXPECT_EQ(whole.at("traceId").as_string(), kTrace);
  EXPECT_EQ(whole.at("parentSpanId").as_string(), kParent);
  EXPECT_EQ(whole.at("startTimeUnixNano").as_string(), "1700000010000000000");
  EXPECT_EQ(whole.at("endTimeUnixNano").as_string(), "1700000020000000000");
  EXPECT_FALSE(whole.as_object().contains("status"));
  const auto attributes = attributes_of(whole);
  EXPECT_EQ(attributes.at("gen_ai.operation.name"), R"({"stringValue":"chat"})");
  EXPECT_EQ(attributes.at("gen_ai.request.model"), R"({"stringValue":"m"})");
  EXPECT_EQ(attributes.at("gen_ai.usage.input_tokens"), R"({"intValue":"100"})");
  EXPECT_EQ(attributes.at("gen_ai.usage.output_tokens"), R"({"intValue":"7"})");
  EXPECT_EQ(attributes.at("gen_ai.request.max_tokens"), R"({"intValue":"32"})");
  EXPECT_EQ(attributes.at("gen_ai.request.temperature"), R"({"doubleValue":5E-1})");
  EXPECT_EQ(attributes.at("gen_ai.response.finish_reasons"),
            R"({"arrayValue":{"values":[{"stringValue":"stop"}]}})");
  EXPECT_FALSE(attributes.contains("gen_ai.request.top_p"));

  std::set<std::string> ids;
  std::string at = "1700000010000000000";
  for (size_t i = 0; i < spans.size(); ++i) {
    ids.insert(std::string(spans[i].at("spanId").as_string()));
    EXPECT_EQ(spans[i].at("traceId").as_string(), kTrace);
    if (i == 0) continue;
    EXPECT_EQ(spans[i].at("parentSpanId"), whole.at("spanId"));
    EXPECT_EQ(spans[i].at("name").as_string(),
              (std::vector<std::string>{"queue", "prefill", "decode"}[i - 1]));
    EXPECT_EQ(spans[i].at("startTimeUnixNano").as_string(), at) << "phases follow each other";
    at = spans[i].at("endTimeUnixNano").as_string();
  }
  EXPECT_EQ(ids.size(), 4u);
  EXPECT_EQ(at, "1700000020000000000");
}

TEST(RequestSpan, ARequestThatFailedHasTheReasonAndThePhasesThatItReached) {
  RequestSpan request = a_request();
  request.parent.reset();
  request.stats.scheduled = request.stats.first_token = {};
  request.end = "error";
  request.failure = "no room \"here\"";
  const json::array spans = spans_of(request);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_FALSE(spans[0].as_object().contains("parentSpanId"));
  EXPECT_EQ(spans[0].at("traceId").as_string().size(), 32u);
  EXPECT_EQ(spans[0].at("status").at("code"), 2);
  EXPECT_EQ(spans[0].at("status").at("message").as_string(), "no room \"here\"");
  EXPECT_EQ(attributes_of(spans[0]).at("error.type"), R"({"stringValue":"error"})");
  EXPECT_EQ(spans[1].at("name").as_string(), "queue");
  EXPECT_EQ(spans[1].at("endTimeUnixNano"), spans[0].at("endTimeUnixNano"));
}

}  // namespace
}  // namespace espalier::server
