#include "net/answer_parser.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <utility>

namespace espalier::net {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr uint32_t kAnswerHeadBytesMax = 256 << 10;

}  // namespace

class AnswerParser::Parser final : public http::basic_parser<false> {
 public:
  explicit Parser(bool is_head) {
    header_limit(kAnswerHeadBytesMax);
    body_limit(boost::none);
    eager(true);
    skip(is_head);
  }

  int status = 0;
  Headers headers;
  std::string* body = nullptr;  // where the body goes, during put()

 private:
  using View = beast::string_view;
  void on_request_impl(http::verb, View, View, int, error_code&) override {}
  void on_response_impl(int code, View, int, error_code&) override { status = code; }
  void on_field_impl(http::field, View name, View value, error_code&) override {
    headers.emplace_back(std::string(name), std::string(value));
  }
  void on_header_impl(error_code&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, error_code&) override {}
  size_t on_body_impl(View bytes, error_code&) override { return take(bytes); }
  void on_chunk_header_impl(uint64_t, View, error_code&) override {}
  size_t on_chunk_body_impl(uint64_t, View bytes, error_code&) override { return take(bytes); }
  void on_finish_impl(error_code&) override {}

  size_t take(View bytes) {
    body->append(bytes.data(), bytes.size());
    return bytes.size();
  }
};

AnswerParser::AnswerParser(bool is_head) : is_head_(is_head) { restart(); }
AnswerParser::~AnswerParser() = default;

void AnswerParser::restart() { parser_ = std::make_unique<Parser>(is_head_); }

Status AnswerParser::feed(std::string_view bytes, std::string& body) {
  begun_ = begun_ || !bytes.empty();
  if (!rest_.empty()) {
    rest_ += bytes;
    bytes = rest_;
  }
  while (!bytes.empty()) {
    if (is_complete())
      return {StatusCode::kDataLoss, "the server sent more than one answer to one request"};
    parser_->body = &body;
    error_code ec;
    const size_t taken = parser_->put(boost::asio::buffer(bytes.data(), bytes.size()), ec);
    bytes.remove_prefix(taken);
    if (ec && ec != http::error::need_more)
      return error(StatusCode::kDataLoss, "the answer is not HTTP/1.1: {}", ec.message());
    if (parser_->is_done() && parser_->status / 100 == 1) {
      restart();
    } else if (taken == 0) {
      break;
    }
  }
  std::string rest(bytes);
  rest_.swap(rest);
  return {};
}

Status AnswerParser::end_of_stream() {
  error_code ec;
  std::string none;
  parser_->body = &none;
  if (parser_->is_header_done()) parser_->put_eof(ec);
  if (!ec && is_complete()) return {};
  return {StatusCode::kUnavailable, "the connection ended before the answer did"};
}

bool AnswerParser::has_head() const {
  return parser_->is_header_done() && parser_->status / 100 != 1;
}
bool AnswerParser::is_complete() const { return parser_->is_done(); }
bool AnswerParser::keeps_alive() const { return parser_->keep_alive(); }
int AnswerParser::status() const { return parser_->status; }
Headers AnswerParser::take_headers() { return std::exchange(parser_->headers, {}); }

std::optional<size_t> AnswerParser::content_length() const {
  const auto length = parser_->content_length();
  return length ? std::optional<size_t>(*length) : std::nullopt;
}

}  // namespace espalier::net
