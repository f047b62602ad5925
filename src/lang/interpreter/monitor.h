// The lock of a prompt state's parts and the condition that its readers wait for. Internal to the
// room.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>

#include "lang/waiting.h"

namespace espalier::lang {

// Thread-safe. The parts of one stream share a monitor, so that a reader can wait for a condition
// over several of them ("more text, or idle"). A part's method that takes a Lock needs the
// caller to have locked this monitor; the part's other methods lock it themselves.
class Monitor {
 public:
  using Lock = std::unique_lock<std::mutex>;

  Lock lock() { return Lock(mutex_); }
  // Waits until `is_so`, which is called under the lock. False: the wait was broken off
  // (waiting.h).
  bool wait(Lock& lock, const std::function<bool()>& is_so) {
    return wait_until(lock, changed_, is_so);
  }
  void notify_all() { changed_.notify_all(); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace espalier::lang
