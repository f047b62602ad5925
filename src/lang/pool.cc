#include "lang/pool.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/thread.h"

namespace espalier::lang {

struct Pool::Core {
  std::mutex mutex;
  std::condition_variable ready;
  std::deque<Task> tasks;
  std::vector<std::thread> threads;
  int num_threads = 0;
  bool closed = false;

  void work() {
    set_thread_name("esp-lang");
    std::unique_lock lock(mutex);
    while (true) {
      ready.wait(lock, [&] { return closed || !tasks.empty(); });
      if (closed) return;
      Task task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      task();
      task = nullptr;  // destroying what it captured may close the pool
      lock.lock();
    }
  }
};

Pool::Pool(int num_threads) : core_(std::make_shared<Core>()) { core_->num_threads = num_threads; }

Pool::~Pool() {
  std::deque<Task> dropped;
  {
    std::lock_guard lock(core_->mutex);
    core_->closed = true;
    dropped.swap(core_->tasks);
  }
  core_->ready.notify_all();
  for (std::thread& thread : core_->threads) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

void Pool::post(Task task) {
  {
    std::lock_guard lock(core_->mutex);
    if (core_->closed) return;
    core_->tasks.push_back(std::move(task));
    if (core_->threads.empty())
      for (int i = 0; i < core_->num_threads; ++i)
        core_->threads.emplace_back([core = core_] { core->work(); });
  }
  core_->ready.notify_one();
}

}  // namespace espalier::lang
