// Expected failures as values: Status and Result<T>. A message states what was wrong, where, and
// what to do about it. Exceptions are for third-party edges only, which convert them to a Status at
// once. Values without thread safety of their own; a Status owns its message.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace espalier {

// What kind of failure it is. server/errors.cc maps each to an HTTP status and a dialect's body;
// apps map each to an exit code. Nothing else interprets it.
enum class StatusCode {
  kOk,
  kInvalidArgument,     // the caller's input is wrong: 400
  kNotFound,            // no such file, model, request: 404
  kUnauthenticated,     // no or a wrong key: 401
  kPermissionDenied,    // a key that may not do this: 403
  kAlreadyExists,       // a request id in use, a session that is open: 400
  kResourceExhausted,   // a queue is full, no memory: 503, try again later
  kFailedPrecondition,  // not in this state (busy, paused): 400
  kUnimplemented,       // known, and not supported by this model or build: 400
  kUnavailable,         // starting, draining, stopping: 503
  kAborted,             // the request was aborted by its client or an operator
  kDeadlineExceeded,    // it waited or ran longer than it was allowed to: 503
  kDataLoss,            // a file is corrupt or truncated
  kInternal,            // our fault: 500
};

std::string_view status_code_name(StatusCode code);  // "invalid_argument"

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  explicit operator bool() const { return ok(); }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same failure with the caller's context before it: "CONTEXT: MESSAGE". Ok stays ok.
  Status with_context(std::string_view context) const;
  std::string to_string() const;  // "invalid_argument: MESSAGE", or "ok"

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value, or the Status (never ok) with the reason why there is none.
template <typename T>
using Result = tl::expected<T, Status>;

inline tl::unexpected<Status> fail(Status status) {
  return tl::unexpected<Status>(std::move(status));
}

template <typename... Args>
Status error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return Status(StatusCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace espalier

// Leaves the function with the failure when `expr` (a Status) is not ok. Works in functions that
// return Status and in those that return Result<T>.
#define ESP_RETURN_IF_ERROR(expr)                                   \
  do {                                                              \
    if (::espalier::Status esp_status_ = (expr); !esp_status_.ok()) \
      return ::espalier::internal::Failure{std::move(esp_status_)}; \
  } while (false)

// Declares `decl` from the value of `expr` (a Result), or leaves with its failure:
//   ESP_ASSIGN_OR_RETURN(auto config, read_config(path));
#define ESP_ASSIGN_OR_RETURN(decl, expr) \
  ESP_ASSIGN_OR_RETURN_IMPL_(ESP_CONCAT_(esp_result_, __LINE__), decl, expr)
#define ESP_ASSIGN_OR_RETURN_IMPL_(tmp, decl, expr)                       \
  auto tmp = (expr);                                                      \
  if (!tmp) return ::espalier::internal::Failure{std::move(tmp).error()}; \
  decl = std::move(*tmp)
#define ESP_CONCAT_(a, b) ESP_CONCAT2_(a, b)
#define ESP_CONCAT2_(a, b) a##b

namespace espalier::internal {

// Converts to either return type of a function that fails.
struct Failure {
  Status status;
  operator Status() && { return std::move(status); }
  template <typename T>
  operator tl::expected<T, Status>() && {
    return tl::unexpected<Status>(std::move(status));
  }
};

}  // namespace espalier::internal
