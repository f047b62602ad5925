// Every failure that a client can see, in every dialect. One table maps a StatusCode to its HTTP
// status and its names; errors.cc is the only place that knows the shapes.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "net/http.h"

namespace espalier::server {

enum class Dialect { kNative, kOpenAi, kResponses, kAnthropic, kOllama, kLlamaCpp };

int http_status(StatusCode code);
// "BadRequestError", as OpenAI's clients and meta_info's err_type name it.
std::string_view error_type(StatusCode code);

// `text` with a field's name, where it stands as a word, replaced by another.
std::string renamed(std::string text, std::string_view name, std::string_view other);

// native: {"error":{"message"}}, where a retry helps beside OpenAI's members, as SGLang's clients
// expect; OpenAI: {"object":"error","message","type","param","code"}, as SGLang answers it, and of
// Responses {"error":{these members}};
// Anthropic: {"type":"error","error":{"type","message"}}, with 529 for an overloaded server;
// Ollama: {"error":message}; llama.cpp: {"error":{"code","message","type"}}, with 501 for what is
// not supported. A full queue and a server that starts or stops carry Retry-After.
net::HttpResponse error_response(Dialect dialect, const Status& status);
// 429: a key has reached its limits; retry_after: seconds.
net::HttpResponse rate_limited_response(Dialect dialect, const Status& status, int64_t retry_after);
// A body that could not be read at all, in either dialect: 400 with type "Bad Request".
net::HttpResponse malformed_response(const Status& status);
// The payload of a stream's error event: {"error":{...}}, or the dialect's own.
std::string stream_error(Dialect dialect, const Status& status);
// GET /v1/models/x.
net::HttpResponse model_not_found(std::string_view model);
net::HttpResponse unauthorized();
net::HttpResponse forbidden();
// What the HTTP layer says by itself: no such path, too large, too slow ...
net::HttpResponse http_error(int status, std::string_view message);

}  // namespace espalier::server
