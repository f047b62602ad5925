#include "net/exchange.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

namespace espalier::net {
namespace {

// Header values come from handlers, which may pass on a user's text: it must not start a header.
void append_header_text(std::string& out, std::string_view text) {
  for (const char c : text) out.push_back(c == '\r' || c == '\n' || c == '\0' ? ' ' : c);
}

}  // namespace

void Exchange::begin(RequestTraits traits, bool keep_alive) {
  outcome_ = std::make_shared<std::atomic<Outcome>>(Outcome::kOpen);  // first, for it may throw
  ++id_;
  answer_ = Answer::kNone;
  keep_alive_ = keep_alive;
  chunked_ = false;
  traits_ = std::move(traits);
}

void Exchange::start_stream() {
  chunked_ = !traits_.http10;
  if (traits_.http10) keep_alive_ = false;
  answer_ = Answer::kStreaming;
}

void Exchange::append_head(std::string& out, int status, const Headers& headers,
                           std::optional<size_t> content_length, std::string_view date) const {
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\nDate: {}\r\n", status,
                 status_reason(status), date);
  for (const auto& [name, value] : headers) {
    append_header_text(out, name);
    out += ": ";
    append_header_text(out, value);
    out += "\r\n";
  }
  if (!traits_.origin.empty()) {
    out += "Access-Control-Allow-Origin: " + traits_.origin +
           "\r\nAccess-Control-Expose-Headers: *\r\n";
    if (traits_.origin != "*") out += "Vary: Origin\r\n";
  }
  if (chunked_) {
    out += "Transfer-Encoding: chunked\r\n";
  } else if (status != 204 && content_length) {
    fmt::format_to(std::back_inserter(out), "Content-Length: {}\r\n", *content_length);
  }
  if (!keep_alive_) {
    out += "Connection: close\r\n";
  } else if (traits_.http10) {
    out += "Connection: keep-alive\r\n";
  }
  out += "\r\n";
}

std::function<void()> Exchange::finish() {
  answer_ = Answer::kDone;
  outcome_->store(Outcome::kAnswered);
  return std::exchange(disconnect_, nullptr);
}

std::function<void()> Exchange::lose() {
  std::function<void()> callback = std::exchange(disconnect_, nullptr);
  if (answer_ == Answer::kDone) return nullptr;
  outcome_->store(Outcome::kGone);
  return callback;
}

}  // namespace espalier::net
