// Writes lines to a file descriptor without ever waiting for its reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

// Lines that the descriptor does not take at once wait in a buffer and go out with a later line; a
// line that finds the buffer full is dropped and counted. The next line that finds room is preceded
// by one that says how many are missing. Not thread-safe. The caller owns the descriptor.
class LineWriter {
 public:
  static constexpr size_t kPendingBytesMax = 1 << 20;

  explicit LineWriter(int fd, size_t pending_bytes_max = kPendingBytesMax)
      : fd_(fd), pending_bytes_max_(pending_bytes_max) {}

  void write(std::string_view line);  // with its newline
  void flush();                       // what the descriptor takes now

  size_t num_pending() const { return pending_.size() - begin_; }  // bytes
  int64_t dropped_total() const { return dropped_total_; }         // lines

 private:
  bool has_room(size_t num_bytes) const { return num_pending() + num_bytes <= pending_bytes_max_; }
  void report_dropped();

  const int fd_;
  const size_t pending_bytes_max_;
  std::string pending_;
  size_t begin_ = 0;  // bytes of pending_ that are written
  int64_t dropped_total_ = 0;
  int64_t dropped_unreported_ = 0;  // since the last report
};

}  // namespace espalier
