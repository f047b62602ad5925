#include "bench/commands/child_process.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "base/log.h"

namespace espalier::bench {

namespace {

// In the child. The control socket carries the port up; its end of file ends the child.
[[noreturn]] void run_child(int control,
                            const std::function<Status(const std::function<void(int)>&)>& body) {
  set_log_level(LogLevel::kError);
  const Status served = body([control](int port) {
    (void)!::write(control, &port, sizeof port);
    char byte = 0;
    while (::read(control, &byte, 1) < 0 && errno == EINTR) {
    }
    ::_exit(0);  // connections are open, and nothing is to be saved
  });
  log_error("{}", served.message());
  ::_exit(1);
}

}  // namespace

Result<ChildProcess> ChildProcess::fork_with(const Body& body) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return fail(error(StatusCode::kInternal, "socketpair: {}", std::strerror(errno)));
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[0]);
    run_child(ends[1], body);
  }
  const int why = errno;
  ::close(ends[1]);
  if (pid < 0) {
    ::close(ends[0]);
    return fail(error(StatusCode::kInternal, "fork: {}", std::strerror(why)));
  }
  int port = 0;
  ChildProcess child(pid, ends[0], 0);
  if (::read(ends[0], &port, sizeof port) != sizeof port)
    return fail(error(StatusCode::kInternal, "a child's server did not start"));
  child.port_ = port;
  return child;
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0) return;
  ::close(control_);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

double process_cpu_us(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

std::vector<int> own_cpus() {
  cpu_set_t set;
  std::vector<int> out;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return out;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) out.push_back(cpu);
  return out;
}

Status run_on(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  if (::sched_setaffinity(0, sizeof set, &set) == 0) return {};
  return invalid_argument("these processors cannot be used: {}", std::strerror(errno));
}

size_t raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

}  // namespace espalier::bench
