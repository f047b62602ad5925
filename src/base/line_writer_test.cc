// Lines into real pipes, read and not read.
#include "base/line_writer.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>

namespace espalier {
namespace {

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe(fds), 0); }
  ~Pipe() {
    close_reader();
    ::close(fds[1]);
  }
  void close_reader() {
    if (fds[0] >= 0) ::close(fds[0]);
    fds[0] = -1;
  }
  std::string read_some() {
    std::string text(1 << 20, '\0');
    const ssize_t n = ::read(fds[0], text.data(), text.size());
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return text;
  }
  int fds[2] = {-1, -1};
};

// All that waits in the writer and in the pipe, which holds something.
std::string drain(Pipe& pipe, LineWriter& writer) {
  std::string text = pipe.read_some();
  while (writer.num_pending() > 0) {
    writer.flush();
    text += pipe.read_some();
  }
  // The last flush may have filled the pipe beyond what one read took.
  for (pollfd p{pipe.fds[0], POLLIN, 0}; ::poll(&p, 1, 0) == 1;) text += pipe.read_some();
  return text;
}

TEST(LineWriter, LinesAreWrittenAtOnce) {
  Pipe pipe;
  LineWriter writer(pipe.fds[1]);
  writer.write("one\n");
  writer.write("two\n");
  EXPECT_EQ(pipe.read_some(), "one\ntwo\n");
  EXPECT_EQ(writer.num_pending(), 0u);
}

TEST(LineWriter, AFullPipeDropsLinesAndCountsThem) {
  Pipe pipe;
  constexpr size_t kPendingMax = 64 << 10;
  LineWriter writer(pipe.fds[1], kPendingMax);
  const std::string line(99, 'x');
  constexpr int kLines = 10000;  // 1 MB; the pipe and the buffer take a part of it
  for (int i = 0; i < kLines; ++i) writer.write(line + "\n");
  EXPECT_LE(writer.num_pending(), kPendingMax);
  const int64_t dropped = writer.dropped_total();
  EXPECT_GT(dropped, 0);

  std::string text = drain(pipe, writer);
  writer.write("last\n");
  text += drain(pipe, writer);
  const std::string report = "log lines dropped count=" + std::to_string(dropped);
  EXPECT_NE(text.find(report), std::string::npos);
  EXPECT_TRUE(text.ends_with("\nlast\n"));
  int64_t whole = 0;
  for (size_t at = 0; (at = text.find(line + "\n", at)) != std::string::npos; at += 100) ++whole;
  EXPECT_EQ(whole + dropped, kLines);
}

TEST(LineWriter, LinesAfterTheReaderHasGoneAreNotKept) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  pipe.close_reader();
  LineWriter writer(pipe.fds[1]);
  for (int i = 0; i < 100; ++i) writer.write("line\n");
  EXPECT_EQ(writer.num_pending(), 0u);
}

}  // namespace
}  // namespace espalier
