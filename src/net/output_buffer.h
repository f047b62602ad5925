// The bytes that a connection has to write, charged to the account of unread answers. Internal to
// the room.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/memory_account.h"

namespace espalier::net {

// Not thread-safe: belongs to the connection's I/O thread. Memory up to kUncharged bytes is no part
// of the account, so that idle connections and short answers never wait for it.
class OutputBuffer {
 public:
  static constexpr size_t kUncharged = 64 << 10;

  // `account` may be null: no bound.
  explicit OutputBuffer(std::shared_ptr<MemoryAccount> account) : charge_(std::move(account)) {}

  size_t num_pending() const { return out_.size() - begin_; }
  // What is to be written next. Invalid after any change.
  std::string_view pending() const { return std::string_view(out_).substr(begin_); }
  void consume(size_t num_bytes);  // they are written

  std::string& tail() { return out_; }  // to append to, not to be charged yet
  // Charges a whole answer before it is appended. False: the account is full.
  bool reserve(size_t num_bytes);

  void start_stream() { last_write_bytes_ = 0; }
  // Whether more than `bound` bytes are pending beside the last write of a stream, which its client
  // may not have been able to read yet, whatever its size. `num_unsent`: what was consumed and the
  // socket has not taken.
  bool exceeds(size_t bound, size_t num_unsent = 0) const {
    return num_pending() + num_unsent > bound + last_write_bytes_;
  }
  // Appends to a stream, as an HTTP chunk or as it is. False: the account is full.
  bool append_to_stream(std::string_view bytes, bool chunked);

  // Returns memory once nothing is pending.
  void shrink();

 private:
  bool charge();

  std::string out_;
  size_t begin_ = 0;             // bytes of out_ that are written
  size_t last_write_bytes_ = 0;  // of the stream
  MemoryCharge charge_;
};

}  // namespace espalier::net
