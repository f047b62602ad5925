// One I/O thread: an io_context, a mailbox by which other threads hand it work, and the connections
// that live on it. Internal to the room; includes Asio.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace espalier::net {

class Connection;
class UpstreamCall;

// post() and in_thread() are thread-safe; the rest belongs to the thread itself. Shared by the
// server, its connections and the handles of answers, which may outlive both.
class IoThread : public std::enable_shared_from_this<IoThread> {
 public:
  using Task = std::function<void()>;

  IoThread() : context_(1), work_(context_.get_executor()) {}

  void start(std::string name);
  void join();  // after finish(): runs out of work, then drops what is still posted

  boost::asio::io_context& context() { return context_; }
  bool in_thread() const { return std::this_thread::get_id() == thread_id_.load(); }

  // Tasks run in the order of their posts. A mailbox that has any is drained by one wake-up; where
  // that takes long, sockets that are ready have a turn in between.
  void post(Task task);
  void run(Task task) { in_thread() ? task() : post(std::move(task)); }
  void post_after(Duration delay, Task task);

  // `connection` wants its output written once the tasks at hand are done.
  void flush_later(std::shared_ptr<Connection> connection);
  // What is done during its life is a task at hand: its end writes the output of connections, which
  // saves a turn of the event loop. On the thread alone; steps may stand in each other.
  class Step {
   public:
    explicit Step(IoThread& io) : io_(io), outer_(std::exchange(io.in_step_, true)) {}
    ~Step() {
      io_.in_step_ = outer_;
      if (!outer_) io_.flush();
    }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    IoThread& io_;
    const bool outer_;
  };

  void add(std::shared_ptr<Connection> connection) { connections_.insert(std::move(connection)); }
  void remove(const std::shared_ptr<Connection>& connection) { connections_.erase(connection); }
  std::vector<std::shared_ptr<Connection>> connections() const {
    return {connections_.begin(), connections_.end()};
  }

  // Calls to other servers that are under way; finish() cancels them.
  void add(UpstreamCall* call) { calls_.insert(call); }
  void remove(UpstreamCall* call) { calls_.erase(call); }

  // Closes everything and lets the thread run out of work; what is delayed is dropped.
  void finish();
  bool is_finished() const { return finished_; }  // on the thread
  std::string_view http_date();                   // "Sun, 06 Nov 1994 08:49:37 GMT", of this second

 private:
  void wake();  // REQUIRES drain_posted_
  void drain();
  void run_slice();
  void flush();

  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_;

  std::mutex mutex_;  // guards the next three
  std::vector<Task> mailbox_;
  bool drain_posted_ = false;
  bool closed_ = false;

  std::vector<Task> running_;  // taken from the mailbox; those before next_ have run
  size_t next_ = 0;
  std::vector<std::shared_ptr<Connection>> to_flush_;
  bool in_step_ = false;
  bool finished_ = false;
  std::unordered_set<std::shared_ptr<Connection>> connections_;
  std::unordered_set<UpstreamCall*> calls_;
  std::unordered_set<std::shared_ptr<boost::asio::steady_timer>> timers_;
  int64_t date_second_ = 0;
  char date_[40] = {};
};

}  // namespace espalier::net
