#include "server/task_thread.h"

#include <exception>
#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace espalier::server {

TaskThread::TaskThread(std::string name) : name_(std::move(name)), thread_([this] { run(); }) {}

void TaskThread::post_after(Duration delay, std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    if (stopped_) return;
    tasks_.emplace(Key{std::chrono::steady_clock::now() + delay, num_posted_++}, std::move(task));
  }
  changed_.notify_one();
}

void TaskThread::stop() {
  std::map<Key, std::function<void()>> dropped;  // destroyed without the lock
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(tasks_);
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void TaskThread::run() {
  set_thread_name(name_);
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (tasks_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const TimePoint due = tasks_.begin()->first.first;
    if (std::chrono::steady_clock::now() < due) {
      changed_.wait_until(lock, due);
      continue;
    }
    std::function<void()> task = std::move(tasks_.begin()->second);
    tasks_.erase(tasks_.begin());
    lock.unlock();
    try {
      task();
    } catch (const std::exception& problem) {
      log_error("{}: a task failed: {}", name_, problem.what());
    }
    task = nullptr;
    lock.lock();
  }
}

}  // namespace espalier::server
