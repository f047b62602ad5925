// A position in a template's source, shared by the lexers of text and of tags.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace espalier::jinja {

// Counts lines as it advances, so that errors can name them. Not thread-safe.
class SourceCursor {
 public:
  explicit SourceCursor(std::string source) : source_(std::move(source)) {}

  bool at_end() const { return position_ >= source_.size(); }
  std::string_view source() const { return source_; }
  std::string_view rest() const { return source().substr(position_); }
  // The byte `offset` bytes ahead; behind the end, 0.
  char peek(size_t offset = 0) const {
    return position_ + offset < source_.size() ? source_[position_ + offset] : '\0';
  }
  size_t position() const { return position_; }  // in bytes
  int line() const { return line_; }             // from 1

  void advance(size_t num_bytes);  // REQUIRES: num_bytes <= rest().size()
  void skip_spaces();              // all white space, by Unicode

  // kInvalidArgument: "line 3: " and `what`.
  Status wrong(std::string_view what) const { return wrong_at(line_, what); }
  static Status wrong_at(int line, std::string_view what);

 private:
  const std::string source_;
  size_t position_ = 0;
  int line_ = 1;
};

}  // namespace espalier::jinja
