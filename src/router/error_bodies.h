// Errors of the router itself, in the shape of the dialect that the client speaks.
#pragma once

#include <string>
#include <string_view>

#include "net/http.h"
#include "router/request_facts.h"

namespace espalier::router {

// 503 and 429 carry Retry-After.
net::HttpResponse error_answer(ErrorStyle style, int status, std::string_view message);

// How many of the bytes are whole messages of a stream, by its content type: events, or lines. All
// of them where it is of another type.
size_t num_whole_bytes(std::string_view content_type, std::string_view bytes);

// What ends a stream that has begun, by its content type: an event of server-sent events, or a line
// of JSON lines. Empty where neither is streamed: the answer is cut off then.
std::string stream_error(ErrorStyle style, std::string_view content_type, std::string_view message);

}  // namespace espalier::router
