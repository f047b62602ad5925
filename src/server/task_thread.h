// A thread that runs tasks one after another: what an I/O thread is to a connection, for calls that
// have none. Internal to the room.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"

namespace espalier::server {

// Thread-safe. Tasks run in the order of their times, equal times in the order of the calls. A task
// that throws (a third party's bad_alloc) is dropped with a line in the log.
class TaskThread {
 public:
  explicit TaskThread(std::string name);  // name: at most 15 bytes are shown
  ~TaskThread() { stop(); }

  void post(std::function<void()> task) { post_after(Duration::zero(), std::move(task)); }
  void post_after(Duration delay, std::function<void()> task);
  // Drops what has not begun, and joins. Tasks posted later are dropped too. Not from a task.
  void stop();

 private:
  using Key = std::pair<TimePoint, uint64_t>;  // the number of the call

  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::function<void()>> tasks_;
  uint64_t num_posted_ = 0;
  bool stopped_ = false;
  const std::string name_;
  std::thread thread_;
};

}  // namespace espalier::server
