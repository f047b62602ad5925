#include "server/detached_call.h"

#include <utility>

#include "server/errors.h"

namespace espalier::server {

DetachedCall::~DetachedCall() {
  if (closed()) return;
  thread_->post([reader = reader_] { reader->on_end(http_error(500, "internal error")); });
}

bool DetachedCall::leave_open(State next, std::function<void()>& callback) {
  State expected = State::kOpen;
  if (!state_.compare_exchange_strong(expected, next)) return false;
  std::lock_guard lock(mutex_);
  callback = std::exchange(disconnect_, nullptr);
  return true;
}

void DetachedCall::cancel() {
  std::function<void()> callback;
  if (leave_open(State::kCancelled, callback) && callback != nullptr)
    thread_->post(std::move(callback));
}

void DetachedCall::send(net::HttpResponse response) { end(std::move(response)); }

void DetachedCall::start_stream(int status, net::Headers) { stream_status_ = status; }

void DetachedCall::write(std::string bytes) {
  if (closed()) return;
  thread_->post([self = shared_from_this(), bytes = std::move(bytes)]() mutable {
    if (self->state_ != State::kCancelled) self->reader_->on_bytes(std::move(bytes));
  });
}

void DetachedCall::finish() { end({stream_status_, {}, {}}); }

void DetachedCall::end(net::HttpResponse response) {
  std::function<void()> callback;  // destroyed at the end, without the lock: it holds who answers
  if (!leave_open(State::kAnswered, callback)) return;
  thread_->post([reader = reader_, response = std::move(response)]() mutable {
    reader->on_end(std::move(response));
  });
}

void DetachedCall::on_disconnect(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (state_ == State::kOpen) {
      disconnect_.swap(callback);
      return;
    }
  }
  if (state_ == State::kCancelled) thread_->post(std::move(callback));
}

}  // namespace espalier::server
