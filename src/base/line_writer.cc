#include "base/line_writer.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace espalier {
namespace {

bool is_ready(int fd) {
  pollfd p{fd, POLLOUT, 0};
  return ::poll(&p, 1, 0) == 1;
}

}  // namespace

void LineWriter::write(std::string_view line) {
  if (num_pending() > 0) flush();
  report_dropped();
  if (dropped_unreported_ > 0 || !has_room(line.size())) {
    ++dropped_total_;
    ++dropped_unreported_;
    return;
  }
  pending_ += line;
  flush();
}

void LineWriter::report_dropped() {
  if (dropped_unreported_ == 0) return;
  const std::string line =
      fmt::format("log lines dropped count={}: nothing read the log\n", dropped_unreported_);
  // Half of the buffer is free first, so that a slow reader gets few reports and many lines.
  if (!has_room(line.size() + pending_bytes_max_ / 2)) return;
  pending_ += line;
  dropped_unreported_ = 0;
}

// A pipe that is ready takes PIPE_BUF bytes without waiting; a larger write could wait. The
// descriptor stays in its blocking mode, which other processes may share.
void LineWriter::flush() {
  while (num_pending() > 0 && is_ready(fd_)) {
    const size_t size = std::min<size_t>(num_pending(), PIPE_BUF);
    const ssize_t written = ::write(fd_, pending_.data() + begin_, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) return;
    begin_ += written < 0 ? size : static_cast<size_t>(written);  // no reader: the bytes are lost
  }
  if (begin_ <= pending_.size() / 2) return;
  pending_.erase(0, begin_);
  begin_ = 0;
}

}  // namespace espalier
