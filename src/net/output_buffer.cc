#include "net/output_buffer.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

namespace espalier::net {
namespace {

constexpr size_t kKeptBytes = 256 << 10;  // of memory, by a connection that has nothing to write

}  // namespace

void OutputBuffer::consume(size_t num_bytes) {
  begin_ += num_bytes;
  if (begin_ <= out_.size() / 2) return;
  out_.erase(0, begin_);
  begin_ = 0;
}

bool OutputBuffer::reserve(size_t num_bytes) {
  return num_bytes <= kUncharged || charge_.resize(static_cast<int64_t>(out_.size() + num_bytes));
}

bool OutputBuffer::append_to_stream(std::string_view bytes, bool chunked) {
  if (chunked) fmt::format_to(std::back_inserter(out_), "{:x}\r\n", bytes.size());
  out_ += bytes;
  if (chunked) out_ += "\r\n";
  last_write_bytes_ = bytes.size();
  return charge();
}

void OutputBuffer::shrink() {
  if (out_.capacity() > kKeptBytes) std::string().swap(out_);
  (void)charge();  // no more than before, so never refused
}

bool OutputBuffer::charge() {
  const size_t num_bytes = out_.capacity();
  return charge_.resize(num_bytes > kUncharged ? static_cast<int64_t>(num_bytes) : 0);
}

}  // namespace espalier::net
