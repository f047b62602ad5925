// The stacks of this process's threads, for a report of what each of them is doing.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"

namespace espalier {

struct ThreadStack {
  int tid = 0;
  std::string name;  // as set_thread_name() set it
  char state = '?';  // as /proc has it: R runs, S sleeps, D waits for a device
  // Innermost first: "function+0x1f" where the function's name is known, else "module+0x1f43",
  // which addr2line resolves. Empty where the thread did not answer in time.
  std::vector<std::string> frames;
};

// Reads the stacks of all threads but the calling one, in order of their ids. Each thread is
// interrupted by SIGURG, whose handler stands while this call lasts, and answers within `patience`;
// a thread that blocks the signal, or that waits inside the kernel, is listed without frames.
// Thread-safe; calls follow one another. A system call that the signal ends returns EINTR as with
// any handler.
std::vector<ThreadStack> read_thread_stacks(Duration patience = std::chrono::milliseconds(200));

}  // namespace espalier
