// The few threads on which streams go on when a call of theirs has ended. Tasks are short and never
// wait; there may be as many as there are streams with something to do.
#pragma once

#include <functional>
#include <memory>

namespace espalier::lang {

// Thread-safe. Its threads start with the first task. The destructor drops what has not begun and
// waits for what has; a task may destroy the pool that runs it.
class Pool {
 public:
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  using Task = std::function<void()>;
  void post(Task task);

 private:
  struct Core;
  std::shared_ptr<Core> core_;  // shared with its threads, which may end after the pool
};

}  // namespace espalier::lang
