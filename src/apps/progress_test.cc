// A bar where somebody looks, lines where a file or a service's log is.
#include "apps/progress.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace espalier::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Progress, ElsewhereThanOnATerminalALineEveryTenth) {
  testing::internal::CaptureStderr();
  {
    ProgressBar bar("loading weights", 16'000'000'000, "B");
    for (int64_t done = 0; done <= 16; ++done) bar.set(done * 1'000'000'000);
  }
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, HasSubstr("loading weights: 8.00 GB/16.00 GB after "));
  EXPECT_THAT(lines, HasSubstr("loading weights: 16.00 GB/16.00 GB after "));
  EXPECT_THAT(lines, Not(HasSubstr("\r")));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 10);
}

TEST(Progress, OnATerminalABarThatIsRedrawnInPlace) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_TRUE(::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0);
  const int screen = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(screen, 0);
  const int before = ::dup(STDERR_FILENO);
  ::dup2(screen, STDERR_FILENO);
  {
    ProgressBar bar("loading weights", 4'000'000, "B");
    bar.set(1'000'000);
    bar.set(4'000'000);
  }
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  std::string shown;
  pollfd waiting{.fd = terminal, .events = POLLIN, .revents = 0};
  while (shown.find('\n') == std::string::npos && ::poll(&waiting, 1, 5000) > 0) {
    char piece[4096];  // a terminal gives what it has so far
    const ssize_t size = ::read(terminal, piece, sizeof(piece));
    ASSERT_GT(size, 0);
    shown.append(piece, static_cast<size_t>(size));
  }
  for (const int fd : {before, screen, terminal}) ::close(fd);
  EXPECT_THAT(shown, HasSubstr("\rloading weights [#######..."));
  EXPECT_THAT(shown, HasSubstr("] 1.0 MB/4.0 MB"));
  EXPECT_THAT(shown, HasSubstr("\rloading weights [##############################] 4.0 MB/4.0 MB"));
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 1);  // it ends with the line
}

}  // namespace
}  // namespace espalier::apps
