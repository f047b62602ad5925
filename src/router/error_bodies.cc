#include "router/error_bodies.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>

namespace espalier::router {

namespace json = boost::json;

namespace {

constexpr std::string_view kEvents = "text/event-stream", kLines = "application/x-ndjson";

std::string_view type_of(int status) {
  switch (status) {
    case 400:
      return "invalid_request_error";
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return "api_error";
  }
}

std::string body_of(ErrorStyle style, int status, std::string_view message) {
  if (style == ErrorStyle::kOllama) return json::serialize(json::object{{"error", message}});
  json::object error{{"type", type_of(status)}, {"message", message}};
  if (style == ErrorStyle::kAnthropic)
    return json::serialize(json::object{{"type", "error"}, {"error", std::move(error)}});
  error["code"] = status;
  error["param"] = nullptr;
  return json::serialize(json::object{{"error", std::move(error)}});
}

}  // namespace

net::HttpResponse error_answer(ErrorStyle style, int status, std::string_view message) {
  net::HttpResponse answer = net::HttpResponse::json(status, body_of(style, status, message));
  if (status == 503 || status == 429) answer.headers.emplace_back("Retry-After", "1");
  return answer;
}

size_t num_whole_bytes(std::string_view content_type, std::string_view bytes) {
  const auto behind = [&](std::string_view end) {
    const size_t at = bytes.rfind(end);
    return at == std::string_view::npos ? 0 : at + end.size();
  };
  if (content_type.starts_with(kEvents)) return std::max(behind("\n\n"), behind("\r\n\r\n"));
  return content_type.starts_with(kLines) ? behind("\n") : bytes.size();
}

std::string stream_error(ErrorStyle style, std::string_view content_type,
                         std::string_view message) {
  const std::string body = body_of(style, 502, message);
  if (content_type.starts_with(kLines)) return body + "\n";
  if (!content_type.starts_with(kEvents)) return "";
  if (style == ErrorStyle::kAnthropic) return "event: error\ndata: " + body + "\n\n";
  return "data: " + body + "\n\ndata: [DONE]\n\n";
}

}  // namespace espalier::router
