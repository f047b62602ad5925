#include "server/tracing/request_span.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace espalier::server {

namespace {

constexpr int kInternal = 1, kServer = 2;  // kinds of spans
constexpr int kFailed = 2;                 // a span's status

bool is_hex_id(std::string_view text, size_t length) {
  const bool digits = std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  return text.size() == length && digits && text.find_first_not_of('0') != std::string_view::npos;
}

class SpanWriter {
 public:
  SpanWriter(JsonWriter& w, Duration unix_minus_steady) : w_(w), offset_(unix_minus_steady) {}

  void begin(std::string_view name, int kind, std::string_view trace, std::string_view id,
             std::string_view parent, TimePoint from, TimePoint to) {
    w_.begin_object().member("traceId", trace).member("spanId", id);
    if (!parent.empty()) w_.member("parentSpanId", parent);
    w_.member("name", name).member("kind", kind);
    w_.member("startTimeUnixNano", unix_nanoseconds(from));
    w_.member("endTimeUnixNano", unix_nanoseconds(std::max(from, to)));
  }
  void begin_attributes() { w_.key("attributes").begin_array(); }
  void text(std::string_view key, std::string_view value) {
    if (!value.empty()) attribute(key, "stringValue", value);
  }
  void texts(std::string_view key, std::string_view value) {
    w_.begin_object().member("key", key).key("value").begin_object().key("arrayValue");
    w_.begin_object().key("values").begin_array().begin_object().member("stringValue", value);
    w_.end_object().end_array().end_object().end_object().end_object();
  }
  // 64-bit integers are strings in the JSON of Protocol Buffers.
  void count(std::string_view key, int64_t value) {
    attribute(key, "intValue", std::to_string(value));
  }
  void number(std::string_view key, std::optional<float> value) {
    if (value) attribute(key, "doubleValue", *value);
  }
  void end_attributes() { w_.end_array(); }
  void end() { w_.end_object(); }

 private:
  template <typename T>
  void attribute(std::string_view key, std::string_view type, const T& value) {
    w_.begin_object().member("key", key).key("value").begin_object().member(type, value);
    w_.end_object().end_object();
  }
  std::string unix_nanoseconds(TimePoint at) const {
    return std::to_string((at.time_since_epoch() + offset_).count());
  }

  JsonWriter& w_;
  const Duration offset_;
};

void write_attributes(SpanWriter& out, const RequestSpan& span) {
  out.begin_attributes();
  out.text("gen_ai.operation.name", span.operation);
  out.text("gen_ai.provider.name", "espalier");
  out.text("gen_ai.request.model", span.model);
  out.text("gen_ai.response.model", span.model);
  out.text("gen_ai.response.id", span.rid);
  if (span.max_tokens) out.count("gen_ai.request.max_tokens", *span.max_tokens);
  out.number("gen_ai.request.temperature", span.temperature);
  out.number("gen_ai.request.top_p", span.top_p);
  out.count("gen_ai.usage.input_tokens", span.stats.prompt_tokens);
  out.count("gen_ai.usage.cache_read.input_tokens", span.stats.cached_tokens);
  out.count("gen_ai.usage.output_tokens", span.stats.completion_tokens);
  if (!span.end.empty()) out.texts("gen_ai.response.finish_reasons", span.end);
  if (span.stats.num_retractions > 0) out.count("espalier.retractions", span.stats.num_retractions);
  if (span.stats.accepted_draft_tokens > 0)
    out.count("espalier.accepted_draft_tokens", span.stats.accepted_draft_tokens);
  out.text("espalier.tenant", span.tenant);
  if (span.end == "abort" || span.end == "error") out.text("error.type", span.end);
  out.end_attributes();
}

struct Phase {
  std::string_view name;
  TimePoint from, to;
};

// Those that the request reached, each up to the next one.
std::vector<Phase> phases_of(const RequestSpan& span) {
  const RequestStats& s = span.stats;
  std::vector<Phase> phases = {{"queue", span.arrived, span.ended}};
  const auto enter = [&](std::string_view name, TimePoint at) {
    if (at == TimePoint{}) return;
    phases.back().to = at;
    phases.push_back({name, at, span.ended});
  };
  enter("prefill", s.scheduled);
  enter("decode", s.first_token);
  return phases;
}

}  // namespace

std::optional<TraceParent> TraceParent::parse(std::string_view header) {
  constexpr size_t kLength = 55;  // VERSION-TRACE-SPAN-FLAGS
  if (header.size() < kLength || header.starts_with("ff")) return std::nullopt;
  if (header.size() > kLength && (header.starts_with("00") || header[kLength] != '-'))
    return std::nullopt;
  const std::string_view version = header.substr(0, 2), trace = header.substr(3, 32),
                         span = header.substr(36, 16), flags = header.substr(53, 2);
  if (header[2] != '-' || header[35] != '-' || header[52] != '-') return std::nullopt;
  if (!is_hex_id(trace, 32) || !is_hex_id(span, 16)) return std::nullopt;
  for (const std::string_view byte : {version, flags})
    if (byte != "00" && !is_hex_id(byte, 2)) return std::nullopt;
  const char last = flags[1];
  const int low = last <= '9' ? last - '0' : last - 'a' + 10;
  return TraceParent{std::string(trace), std::string(span), low % 2 == 1};
}

std::string_view traced_operation(std::string_view path) {
  for (const std::string_view part : {"/chat", "/messages", "/responses"})
    if (path.find(part) != std::string_view::npos) return "chat";
  return "text_completion";
}

std::string SpanIds::span() {
  uint64_t id = 0;
  while (id == 0) id = rng_();
  return fmt::format("{:016x}", id);
}

std::string SpanIds::trace() { return span() + span(); }

void write_spans(JsonWriter& w, const RequestSpan& span, SpanIds& ids, Duration unix_minus_steady) {
  SpanWriter out(w, unix_minus_steady);
  const std::string trace = span.parent ? span.parent->trace_id : ids.trace(), id = ids.span();
  out.begin(fmt::format("{} {}", span.operation, span.model), kServer, trace, id,
            span.parent ? span.parent->span_id : "", span.arrived, span.ended);
  write_attributes(out, span);
  if (span.end == "error") {
    w.key("status").begin_object().member("code", kFailed).member("message", span.failure);
    w.end_object();
  }
  out.end();
  for (const Phase& phase : phases_of(span)) {
    out.begin(phase.name, kInternal, trace, ids.span(), id, phase.from, phase.to);
    out.end();
  }
}

}  // namespace espalier::server
