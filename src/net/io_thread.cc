#include "net/io_thread.h"

#include <boost/asio/post.hpp>
#include <ctime>

#include "base/thread.h"
#include "net/connection.h"

namespace espalier::net {

namespace asio = boost::asio;

void IoThread::start(std::string name) {
  thread_ = std::thread([this, name = std::move(name)] {
    thread_id_ = std::this_thread::get_id();
    set_thread_name(name);
    context_.run();
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
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    mailbox_.push_back(std::move(task));
    if (drain_posted_) return;
    drain_posted_ = true;
  }
  asio::post(context_, [this] { drain(); });
}

void IoThread::drain() {
  {
    std::lock_guard lock(mutex_);
    running_.swap(mailbox_);
    drain_posted_ = false;
  }
  draining_ = true;
  for (Task& task : running_) {
    task();
    task = nullptr;  // what it holds goes now, not when the whole batch is done
  }
  running_.clear();
  draining_ = false;
  std::vector<std::shared_ptr<Connection>> connections;
  connections.swap(to_flush_);
  for (const auto& connection : connections) connection->flush();
}

void IoThread::flush_later(std::shared_ptr<Connection> connection) {
  to_flush_.push_back(std::move(connection));
  if (!draining_ && to_flush_.size() == 1) post([] {});
}

void IoThread::post_after(Duration delay, Task task) {
  run([this, delay, task = std::move(task)]() mutable {
    auto timer = std::make_shared<asio::steady_timer>(context_, delay);
    timers_.insert(timer);
    timer->async_wait([this, timer, task = std::move(task)](boost::system::error_code ec) {
      timers_.erase(timer);
      if (!ec) task();
    });
  });
}

void IoThread::finish() {
  for (const auto& connection : connections()) connection->close();
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
