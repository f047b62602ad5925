#include "server/tracing/span_exporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/thread.h"

namespace espalier::server {

namespace {

using namespace std::chrono_literals;

constexpr int kTries = 3;

uint64_t drawn_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

Duration unix_minus_steady() {
  return std::chrono::duration_cast<Duration>(std::chrono::system_clock::now().time_since_epoch() -
                                              std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace

void append_metrics(std::string& out, const ExportCounts& counts) {
  const auto counter = [&](std::string_view name, std::string_view help, int64_t value) {
    out += fmt::format("# HELP espalier:{0} {1}\n# TYPE espalier:{0} counter\nespalier:{0} {2}\n",
                       name, help, value);
  };
  counter("traces_exported_total", "Requests whose spans the collector took.", counts.exported);
  counter("traces_dropped_total", "Requests whose spans it did not take, or not in time.",
          counts.dropped);
}

Result<std::unique_ptr<SpanExporter>> SpanExporter::start(const std::string& endpoint,
                                                          std::string service_name) {
  const Result<net::Url> url = net::Url::parse(endpoint);
  if (!url)
    return fail(invalid_argument(
        "--otlp-traces-endpoint {}: {}; give the collector's http://HOST:4318 (OTLP over HTTP)",
        endpoint, url.error().message()));
  const bool has_path = !url->path.empty() && url->path != "/";
  net::HttpClientConfig config{.connect_timeout = 2s, .read_timeout = 5s};
  config.total_timeout = 5s;
  ESP_ASSIGN_OR_RETURN(auto client, net::HttpClient::create(endpoint, std::move(config)));
  return std::unique_ptr<SpanExporter>(
      new SpanExporter(std::move(client), has_path ? "" : "/v1/traces", std::move(service_name)));
}

SpanExporter::SpanExporter(net::HttpClient client, std::string path, std::string service_name)
    : client_(std::move(client)),
      path_(std::move(path)),
      service_name_(std::move(service_name)),
      ids_(drawn_seed()),
      thread_([this] {
        set_thread_name("traces");
        run();
      }) {}

SpanExporter::~SpanExporter() {
  stopping_ = true;
  waiting_.close();
  thread_.join();
}

void SpanExporter::add(RequestSpan&& span) {
  if (span.parent && !span.parent->sampled) return;
  if (!waiting_.try_push(std::move(span))) ++dropped_;
}

void SpanExporter::run() {
  std::vector<RequestSpan> spans;
  bool gave_up = false;
  while (auto first = waiting_.pop()) {
    if (!stopping_) std::this_thread::sleep_for(200ms);  // more come, and go out together
    spans.push_back(std::move(*first));
    waiting_.drain(spans);
    for (size_t at = 0; at < spans.size(); at += kBatch) {
      const size_t end = std::min(spans.size(), at + kBatch);
      const std::vector<RequestSpan> batch(std::make_move_iterator(spans.begin() + at),
                                           std::make_move_iterator(spans.begin() + end));
      // A stopping server does not wait for a collector that is away.
      gave_up = gave_up || !send(body_of(batch));
      (gave_up ? dropped_ : exported_) += std::ssize(batch);
      gave_up = gave_up && stopping_;
    }
    spans.clear();
  }
}

bool SpanExporter::send(const std::string& body) {
  for (int i = 0; i < (stopping_ ? 1 : kTries); ++i) {
    if (i > 0) std::this_thread::sleep_for(100ms * (1 << i));
    const auto answer = client_.post(path_, body);
    if (answer && answer->status / 100 == 2) {
      if (!std::exchange(last_failure_, "").empty()) log_info("traces are taken again");
      return true;
    }
    const std::string why =
        answer ? fmt::format("HTTP {}", answer->status) : answer.error().message();
    if (why != last_failure_) log_warning("traces are not taken: {}", why);
    last_failure_ = why;
    if (answer && answer->status / 100 == 4 && answer->status != 429) return false;
  }
  return false;
}

std::string SpanExporter::body_of(const std::vector<RequestSpan>& spans) {
  std::string body;
  JsonWriter w(body);
  const auto text_attribute = [&](std::string_view key, std::string_view value) {
    w.begin_object().member("key", key).key("value").begin_object().member("stringValue", value);
    w.end_object().end_object();
  };
  w.begin_object().key("resourceSpans").begin_array().begin_object();
  w.key("resource").begin_object().key("attributes").begin_array();
  text_attribute("service.name", service_name_);
  w.end_array().end_object();
  w.key("scopeSpans").begin_array().begin_object();
  w.key("scope").begin_object().member("name", "espalier").end_object();
  w.key("spans").begin_array();
  const Duration offset = unix_minus_steady();
  for (const RequestSpan& span : spans) write_spans(w, span, ids_, offset);
  w.end_array().end_object().end_array().end_object().end_array().end_object();
  return body;
}

}  // namespace espalier::server
