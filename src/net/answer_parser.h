// Bytes of an HTTP/1.1 answer to its parts, as they come. Internal to the room; Beast only in its
// source.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "net/http.h"

namespace espalier::net {

// Not thread-safe. One answer; interim ones (1xx) are passed over.
class AnswerParser {
 public:
  // is_head: the request's method was HEAD, so no body follows.
  explicit AnswerParser(bool is_head);
  ~AnswerParser();

  // Takes bytes in the order in which they came and appends what they hold of the body. kDataLoss:
  // this is not HTTP/1.1. Bytes behind the answer's end are an error too: nothing was asked for.
  Status feed(std::string_view bytes, std::string& body);
  // The server has ended its stream: kUnavailable where the answer is not complete by that.
  Status end_of_stream();

  bool has_begun() const { return begun_; }  // a byte has come
  bool has_head() const;
  bool is_complete() const;
  bool keeps_alive() const;  // REQUIRES is_complete()
  // Once, when has_head().
  int status() const;
  Headers take_headers();
  std::optional<size_t> content_length() const;

 private:
  class Parser;
  void restart();

  const bool is_head_;
  bool begun_ = false;
  std::string rest_;  // of a head that is not complete
  std::unique_ptr<Parser> parser_;
};

}  // namespace espalier::net
