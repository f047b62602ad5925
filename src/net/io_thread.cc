#include "net/io_thread.h"

#include <boost/asio/post.hpp>
#include <ctime>
#include <exception>
#include <new>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/thread.h"
#include "net/connection.h"
#include "net/upstream.h"

namespace espalier::net {

namespace asio = boost::asio;

namespace {

// A task ends with its exception: what it held is destroyed, which abandons its request.
void run_task(const IoThread::Task& task) {
  try {
    task();
  } catch (const std::exception& e) {
    const MemoryReserveScope reserve;
    log_error("a task of an I/O thread failed what={}", e.what());
  }
}

// Until the context is out of work. An exception that leaves a handler ends that handler alone.
void run_context(asio::io_context& context) {
  while (true) {
    try {
      context.run();
      return;
    } catch (const std::bad_alloc&) {
      const MemoryReserveScope reserve;
      log_error("an I/O thread found no memory");
    }
  }
}

}  // namespace

void IoThread::start(std::string name) {
  thread_ = std::thread([this, name = std::move(name)] {
    thread_id_ = std::this_thread::get_id();
    set_thread_name(name);
    run_context(context_);
  });
}

void IoThread::join() {
  if (thread_.joinable()) thread_.join();
  std::vector<Task> dropped;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(mailbox_);
  }
}

void IoThread::post(Task task) {
  const MemoryReserveScope reserve;  // an answer that is lost would leave its client waiting
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    mailbox_.push_back(std::move(task));
    if (drain_posted_) return;
    drain_posted_ = true;
  }
  wake();
}

void IoThread::wake() {
  try {
    asio::post(context_, [this] { drain(); });
  } catch (const std::bad_alloc&) {  // the tasks stay, and the next post wakes the thread
    std::lock_guard lock(mutex_);
    drain_posted_ = false;
  }
}

void IoThread::drain() {
  if (running_.empty()) {
    std::lock_guard lock(mutex_);
    running_.swap(mailbox_);
  }
  run_slice();
  {
    std::lock_guard lock(mutex_);
    drain_posted_ = !running_.empty() || !mailbox_.empty();
    if (!drain_posted_) return;
  }
  const MemoryReserveScope reserve;
  wake();
}

// The events of many answers may take long to write, and /health is not to wait for all of them.
void IoThread::run_slice() {
  constexpr Duration kSlice = std::chrono::milliseconds(5);
  constexpr size_t kTasksBetweenLooks = 4;  // at the clock
  const Step step(*this);
  const TimePoint ends = std::chrono::steady_clock::now() + kSlice;
  while (next_ < running_.size()) {
    run_task(running_[next_]);
    running_[next_] = nullptr;  // what it holds goes now, not when the whole batch is done
    if (++next_ % kTasksBetweenLooks == 0 && std::chrono::steady_clock::now() >= ends) break;
  }
  if (next_ < running_.size()) return;
  running_.clear();
  next_ = 0;
}

void IoThread::flush() {
  std::vector<std::shared_ptr<Connection>> connections;
  connections.swap(to_flush_);
  for (const auto& c : connections) run_step(*c, [&] { c->flush(); });
}

void IoThread::flush_later(std::shared_ptr<Connection> connection) {
  const MemoryReserveScope reserve;
  to_flush_.push_back(std::move(connection));
  if (in_step_ || to_flush_.size() != 1) return;
  try {
    post([] {});
  } catch (const std::bad_alloc&) {
    to_flush_.pop_back();  // else the next would count on this wake-up
    throw;
  }
}

void IoThread::post_after(Duration delay, Task task) {
  run([this, delay, task = std::move(task)]() mutable {
    if (finished_) return;
    auto timer = std::make_shared<asio::steady_timer>(context_, delay);
    timer->async_wait([this, timer, task = std::move(task)](boost::system::error_code ec) {
      timers_.erase(timer);
      if (!ec) run_task(task);
    });
    timers_.insert(timer);
  });
}

void IoThread::finish() {
  finished_ = true;  // a timer that has fired already may set another
  for (const auto& connection : connections()) connection->close();
  while (!calls_.empty()) (*calls_.begin())->cancel();  // which removes it
  for (const auto& timer : timers_) timer->cancel();
  work_.reset();
}

std::string_view IoThread::http_date() {
  const std::time_t now = std::time(nullptr);
  if (now != date_second_) {
    date_second_ = now;
    std::tm utc{};
    gmtime_r(&now, &utc);
    std::strftime(date_, sizeof date_, "%a, %d %b %Y %H:%M:%S GMT", &utc);
  }
  return date_;
}

}  // namespace espalier::net
