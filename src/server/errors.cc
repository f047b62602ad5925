#include "server/errors.h"

#include <cctype>
#include <string>
#include <utility>

#include "seams/request_fields.h"
#include "server/json_writer.h"

namespace espalier::server {

using net::HttpResponse;

namespace {

struct Row {
  StatusCode code;
  int http;
  std::string_view type;  // OpenAI's name of it
  bool retry;             // worth trying again soon
};

constexpr int kTooManyRequests = 429;

// Each code has one row, and every dialect is derived from it. What is no fault of the request and
// may pass (a full queue, memory, a deadline) is 503 with Retry-After; what this build cannot do is
// 400, since trying again does not help.
constexpr Row kTable[] = {
    {StatusCode::kInvalidArgument, 400, "BadRequestError", false},
    {StatusCode::kNotFound, 404, "NotFoundError", false},
    {StatusCode::kUnauthenticated, 401, "AuthenticationError", false},
    {StatusCode::kPermissionDenied, 403, "PermissionDeniedError", false},
    {StatusCode::kAlreadyExists, 400, "BadRequestError", false},
    {StatusCode::kResourceExhausted, 503, "ServiceUnavailableError", true},
    {StatusCode::kFailedPrecondition, 400, "BadRequestError", false},
    {StatusCode::kUnimplemented, 400, "BadRequestError", false},
    {StatusCode::kUnavailable, 503, "ServiceUnavailableError", true},
    {StatusCode::kAborted, 400, "AbortError", false},
    {StatusCode::kDeadlineExceeded, 503, "ServiceUnavailableError", true},
    {StatusCode::kDataLoss, 500, "InternalServerError", false},
    {StatusCode::kInternal, 500, "InternalServerError", false},
};

constexpr Row kRateLimitedRow = {StatusCode::kResourceExhausted, kTooManyRequests, "RateLimitError",
                                 true};

const Row& row_of(StatusCode code) {
  for (const Row& row : kTable) {
    if (row.code == code) return row;
  }
  return kTable[std::size(kTable) - 1];
}

// The engine names a field by its native name; OpenAI's clients have sent it under another.
std::string in_openai_names(std::string text) {
  for_each_request_field(
      [&](const FieldRow& row) { text = renamed(std::move(text), row.name, row.openai_name()); });
  return renamed(std::move(text), "top_logprobs_num", "top_logprobs");
}

void write_openai_members(JsonWriter& w, std::string_view message, std::string_view type,
                          int code) {
  w.member("object", "error").member("message", message).member("type", type);
  w.key("param").null().member("code", code);
}

void write_openai(JsonWriter& w, std::string_view message, std::string_view type, int code) {
  w.begin_object();
  write_openai_members(w, message, type, code);
  w.end_object();
}

constexpr int kAnthropicOverloaded = 529;

// Anthropic's clients retry by the type, so each error that may pass is an overload to them.
std::string_view anthropic_type(const Row& row) {
  if (row.http == kTooManyRequests) return "rate_limit_error";
  if (row.retry) return "overloaded_error";
  switch (row.http) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 500:
      return "api_error";
    default:
      return "invalid_request_error";
  }
}

constexpr int kLlamaCppUnsupported = 501;

// The status that a client of `dialect` sees.
int status_in(Dialect dialect, const Row& row) {
  if (dialect == Dialect::kAnthropic && row.retry && row.http != kTooManyRequests)
    return kAnthropicOverloaded;
  if (dialect == Dialect::kLlamaCpp && row.code == StatusCode::kUnimplemented)
    return kLlamaCppUnsupported;
  return row.http;
}

std::string_view llama_cpp_type(int http) {
  switch (http) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case kTooManyRequests:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case kLlamaCppUnsupported:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return "invalid_request_error";
  }
}

void write_error(JsonWriter& w, Dialect dialect, const Status& status, const Row& row) {
  switch (dialect) {
    case Dialect::kNative:
      w.begin_object().member("message", status.message()).end_object();
      return;
    case Dialect::kOpenAi:
    case Dialect::kResponses:
      write_openai(w, in_openai_names(status.message()), row.type, row.http);
      return;
    case Dialect::kAnthropic:
      w.begin_object().member("type", "error").key("error").begin_object();
      w.member("type", anthropic_type(row)).member("message", status.message());
      w.end_object().end_object();
      return;
    case Dialect::kOllama:
      w.begin_object().member("error", status.message()).end_object();
      return;
    case Dialect::kLlamaCpp: {
      const int http = status_in(dialect, row);
      w.begin_object().key("error").begin_object().member("code", http);
      w.member("message", status.message()).member("type", llama_cpp_type(http));
      w.end_object().end_object();
      return;
    }
  }
}

HttpResponse plain(int status, std::string_view message, std::string_view type) {
  std::string body;
  JsonWriter w(body);
  write_openai(w, message, type, status);
  return HttpResponse::json(status, std::move(body));
}

}  // namespace

// Whole words alone: `n` in a message is a field, and not the n of another word.
std::string renamed(std::string text, std::string_view name, std::string_view other) {
  if (name == other) return text;
  const auto is_word = [&](size_t at) {
    return at < text.size() &&
           (text[at] == '_' || (std::isalnum(static_cast<unsigned char>(text[at])) != 0));
  };
  for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += other.size()) {
    if ((at > 0 && is_word(at - 1)) || is_word(at + name.size())) continue;
    text.replace(at, name.size(), other);
  }
  return text;
}

int http_status(StatusCode code) { return row_of(code).http; }
std::string_view error_type(StatusCode code) { return row_of(code).type; }

namespace {

HttpResponse response_of(Dialect dialect, const Status& status, const Row& row,
                         int64_t retry_after) {
  std::string body;
  JsonWriter w(body);
  const bool wrapped = dialect == Dialect::kNative || dialect == Dialect::kResponses;
  if (wrapped) {
    w.begin_object();
    if (dialect == Dialect::kNative && row.retry)
      write_openai_members(w, status.message(), row.type, row.http);
    w.key("error");
  }
  write_error(w, dialect, status, row);
  if (wrapped) w.end_object();
  HttpResponse response = HttpResponse::json(status_in(dialect, row), std::move(body));
  if (row.retry) response.headers.emplace_back("Retry-After", std::to_string(retry_after));
  return response;
}

}  // namespace

HttpResponse error_response(Dialect dialect, const Status& status) {
  return response_of(dialect, status, row_of(status.code()), 1);
}

HttpResponse rate_limited_response(Dialect dialect, const Status& status, int64_t retry_after) {
  return response_of(dialect, status, kRateLimitedRow, retry_after);
}

HttpResponse malformed_response(const Status& status) {
  if (status.code() == StatusCode::kResourceExhausted)  // no memory to read it
    return error_response(Dialect::kOpenAi, status);
  return plain(400, status.message(), "Bad Request");
}

std::string stream_error(Dialect dialect, const Status& status) {
  std::string out;
  JsonWriter w(out);
  const bool wrapped =
      dialect == Dialect::kNative || dialect == Dialect::kOpenAi || dialect == Dialect::kResponses;
  if (wrapped) w.begin_object().key("error");
  write_error(w, dialect, status, row_of(status.code()));
  if (wrapped) w.end_object();
  return out;
}

HttpResponse model_not_found(std::string_view model) {
  std::string body;
  JsonWriter w(body);
  w.begin_object().key("error").begin_object();
  w.member("message", fmt::format("The model '{}' does not exist", model));
  w.member("type", "invalid_request_error").member("param", "model");
  w.member("code", "model_not_found").end_object().end_object();
  return HttpResponse::json(404, std::move(body));
}

HttpResponse unauthorized() {
  HttpResponse response = HttpResponse::json(401, R"({"error":"Unauthorized"})");
  response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

HttpResponse forbidden() { return HttpResponse::json(403, R"({"error":"Forbidden"})"); }

HttpResponse http_error(int status, std::string_view message) {
  const std::string_view type = status == 404   ? "NotFoundError"
                                : status == 500 ? "InternalServerError"
                                                : net::status_reason(status);
  HttpResponse response = plain(status, message, type);
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace espalier::server
