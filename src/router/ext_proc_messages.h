// Messages of Envoy's external processing (envoy.service.ext_proc.v3), as far as an endpoint picker
// reads and writes them. The numbers of their fields are those of Envoy's API, version 3. Pure
// functions. Internal to the room.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "net/http.h"

namespace espalier::router {

// The header, and the key of metadata, that names the endpoints of a request: "IP:PORT", or several
// in the order in which they are to be tried (Gateway API Inference Extension, endpoint picker
// protocol).
inline constexpr std::string_view kEndpointHeader = "x-gateway-destination-endpoint";

// How Envoy sends bodies (ProcessingMode.BodySendMode).
enum class BodyMode : uint8_t { kNone, kStreamed, kBuffered, kBufferedPartial, kFullDuplex };

enum class ExtProcPhase : uint8_t {
  kNone,  // no phase that is known
  kRequestHeaders,
  kResponseHeaders,
  kRequestBody,
  kResponseBody,
  kRequestTrailers,
  kResponseTrailers,
};

// ProcessingRequest. Views point into the message that was read.
struct ExtProcMessage {
  ExtProcPhase phase = ExtProcPhase::kNone;
  net::Headers headers;  // of the phases of headers: ":path" and its like among them
  std::string_view body;
  bool ends = false;  // the request or the answer ends here
  // Endpoints that alone may be chosen, by the metadata envoy.lb.subset_hint; nothing: any.
  std::optional<std::vector<std::string>> subset;
  // Of the first message of a call, where Envoy states them.
  std::optional<BodyMode> request_body, response_body;
  bool is_observed = false;  // answers are ignored (observability_mode)
};

// kInvalidArgument where the bytes are no message.
Result<ExtProcMessage> read_ext_proc_message(std::string_view bytes);

// What becomes of the headers of a request or an answer.
struct HeaderChanges {
  net::Headers set;  // in place of those that are there
  std::vector<std::string> removed;
};

// ProcessingResponse of a phase of headers, a body as a whole, or trailers. `endpoints`: of the
// request, for dynamic metadata too; "": not chosen here.
std::string ext_proc_answer(ExtProcPhase phase, const HeaderChanges& changes = {},
                            std::string_view endpoints = "");
// The next bytes of a body that is sent in kFullDuplex.
std::string ext_proc_body_part(ExtProcPhase phase, std::string_view bytes, bool ends);
// Envoy answers the client so itself.
std::string ext_proc_immediate_answer(const net::HttpResponse& response);

}  // namespace espalier::router
