// A server in a process of its own, which ends with this object or with the parent, whichever is
// first.
#pragma once

#include <sys/types.h>

#include <functional>
#include <utility>
#include <vector>

#include "base/status.h"

namespace espalier::bench {

// Move-only. REQUIRES that the calling process has no threads that hold locks: start children
// before anything else.
class ChildProcess {
 public:
  // `start` runs in the child and returns Result<std::unique_ptr<Server>> of a server with port(),
  // which serves until the child ends.
  template <typename Start>
  static Result<ChildProcess> start(const Start& start) {
    return fork_with([&start](const std::function<void(int)>& serve) -> Status {
      auto server = start();
      if (!server) return server.error();
      serve((*server)->port());
      return {};
    });
  }
  ChildProcess(ChildProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        control_(std::exchange(other.control_, -1)),
        port_(other.port_) {}
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  int port() const { return port_; }

 private:
  // serve: reports the port and returns when the child shall end.
  using Body = std::function<Status(const std::function<void(int port)>& serve)>;
  ChildProcess(pid_t pid, int control, int port) : pid_(pid), control_(control), port_(port) {}
  static Result<ChildProcess> fork_with(const Body& body);

  pid_t pid_;
  int control_;  // closed: the child ends
  int port_;
};

// Processor time of another process in microseconds; 0 where it is not known.
double process_cpu_us(pid_t pid);

// Processors that the calling thread may run on, by number.
std::vector<int> own_cpus();
// From now on the calling thread, and what it starts, run on these alone. kInvalidArgument: on none
// of them may they run.
Status run_on(const std::vector<int>& cpus);

// Open files of this process and its children to come: as many as it may have. The number.
size_t raise_descriptor_limit();

}  // namespace espalier::bench
