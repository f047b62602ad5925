// A call of a route that no connection carries: the lines of a batch, and responses that run in the
// background. The route's handler answers it as it answers a client. Internal to the room.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "net/http.h"
#include "server/task_thread.h"

namespace espalier::server {

// What takes the answer, on the task thread. Not thread-safe.
class DetachedReader {
 public:
  virtual ~DetachedReader() = default;
  virtual void on_bytes(std::string) {}  // of a stream
  // Called once, at the end, unless the call was cancelled before: the whole answer, or a stream's
  // status without a body. An answer that never comes is a 500.
  virtual void on_end(net::HttpResponse answer) = 0;
};

// Thread-safe, as ResponseWriter says; `thread` stands for the connection's I/O thread. Output is
// handed on as it comes, so nothing is ever pending. Once the thread has stopped the call gets no
// end.
class DetachedCall final : public net::ResponseWriter,
                           public std::enable_shared_from_this<DetachedCall> {
 public:
  DetachedCall(std::shared_ptr<TaskThread> thread, std::shared_ptr<DetachedReader> reader)
      : thread_(std::move(thread)), reader_(std::move(reader)) {}
  ~DetachedCall() override;

  // Ends the call as a client that leaves does. Without effect after the end.
  void cancel();

  void send(net::HttpResponse response) override;
  void start_stream(int status, net::Headers headers) override;
  void write(std::string bytes) override;
  size_t pending_output() const override { return 0; }
  void finish() override;
  void on_disconnect(std::function<void()> callback) override;
  void post(std::function<void()> task) override { thread_->post(std::move(task)); }
  void post_after(Duration delay, std::function<void()> task) override {
    thread_->post_after(delay, std::move(task));
  }
  bool closed() const override { return state_ != State::kOpen; }

 private:
  enum class State { kOpen, kAnswered, kCancelled };

  // False where another has ended the call. Returns the disconnect callback by `callback`.
  bool leave_open(State next, std::function<void()>& callback);
  void end(net::HttpResponse response);

  const std::shared_ptr<TaskThread> thread_;
  const std::shared_ptr<DetachedReader> reader_;
  std::atomic<State> state_{State::kOpen};
  std::atomic<int> stream_status_{0};
  std::mutex mutex_;
  std::function<void()> disconnect_;  // guarded by mutex_; holds who answers
};

}  // namespace espalier::server
