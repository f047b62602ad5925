// What a trace says of one sample of a request, and its form in OTLP's JSON: a span of the kind
// server with the attributes of OpenTelemetry's conventions for generative AI, and in it a span
// each for waiting, for the prompt and for the answer. No prompt and no answer is in it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/rng.h"
#include "seams/token_event.h"
#include "server/json_writer.h"

namespace espalier::server {

// The header `traceparent` of W3C's Trace Context: the caller's trace and the span that called.
struct TraceParent {
  std::string trace_id;  // 32 hexadecimal digits
  std::string span_id;   // 16
  bool sampled = true;   // false: the caller records nothing of this trace

  // Nothing where the header has another form. Of later versions the part that all have is read.
  static std::optional<TraceParent> parse(std::string_view header);
};

// "chat" or "text_completion", by the path of a route that generates.
std::string_view traced_operation(std::string_view path);

struct RequestSpan {
  std::optional<TraceParent> parent;  // none: the request begins a trace
  std::string_view operation;         // "chat", "text_completion" or "embeddings"
  std::string rid, model, tenant;
  std::optional<float> temperature, top_p;
  std::optional<int32_t> max_tokens;
  std::string end;      // "stop", "length", "abort" or "error"
  std::string failure;  // of "abort" and "error": why
  RequestStats stats;
  TimePoint arrived{}, ended{};
};

// Ids of traces and spans; one thread's.
class SpanIds {
 public:
  explicit SpanIds(uint64_t seed) : rng_(seed) {}
  std::string span();   // 16 hexadecimal digits, not all 0
  std::string trace();  // 32

 private:
  Rng rng_;
};

// Writes the spans as elements of an array. unix_minus_steady: what makes a TimePoint a time since
// 1970.
void write_spans(JsonWriter& w, const RequestSpan& span, SpanIds& ids, Duration unix_minus_steady);

}  // namespace espalier::server
