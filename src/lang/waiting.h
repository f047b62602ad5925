// Waits that their thread can break off: a host whose user presses Ctrl-C (Python) is asked while
// the thread waits, and what waits then ends with kAborted.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>

#include "base/status.h"

namespace espalier::lang {

// For the calling thread, until the object goes: its waits call `asked` every 50 ms, outside
// all locks of the language, and end once that returns true. They nest on a thread; the innermost counts.
class Interruptible {
 public:
  explicit Interruptible(std::function<bool()> asked);
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

 private:
  friend bool wait_until(std::unique_lock<std::mutex>&, std::condition_variable&,
                         const std::function<bool()>&);
  std::function<bool()> asked_;
  Interruptible* outer_;
};

// Until `is_so`, which is called under the lock. False: broken off.
bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                const std::function<bool()>& is_so);
Status interrupted();  // what such a wait ends with

}  // namespace espalier::lang
