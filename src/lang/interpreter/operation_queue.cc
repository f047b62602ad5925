#include "lang/interpreter/operation_queue.h"

#include <utility>

namespace espalier::lang {

bool OperationQueue::push(Operation op, const Monitor::Lock&) {
  queue_.push_back(std::move(op));
  return !std::exchange(busy_, true);
}

std::optional<OperationQueue::Next> OperationQueue::take() {
  Monitor::Lock lock = monitor_.lock();
  if (!queue_.empty()) {
    Next next{std::move(queue_.front()), !failure_.status.ok()};
    queue_.pop_front();
    return next;
  }
  busy_ = false;
  const auto callbacks = std::exchange(idle_callbacks_, {});
  monitor_.notify_all();
  lock.unlock();
  for (const auto& callback : callbacks) callback();
  return std::nullopt;
}

uint64_t OperationQueue::suspend(Operation&& op) {
  const Monitor::Lock lock = monitor_.lock();
  suspended_ = std::move(op);
  awaits_value_ = true;
  return ++turn_;
}

std::optional<OperationQueue::Next> OperationQueue::resume(uint64_t turn) {
  const Monitor::Lock lock = monitor_.lock();
  if (turn != turn_ || !awaits_value_) return std::nullopt;
  awaits_value_ = false;
  return Next{std::move(suspended_), !failure_.status.ok()};
}

uint64_t OperationQueue::begin_call(Operation& op, std::string id) {
  const Monitor::Lock lock = monitor_.lock();
  if (!failure_.status.ok()) return 0;
  suspended_ = std::move(op);
  call_id_ = std::move(id);
  return ++turn_;
}

std::optional<OperationQueue::Next> OperationQueue::end_call(uint64_t turn) {
  const Monitor::Lock lock = monitor_.lock();
  if (turn != turn_ || call_id_.empty()) return std::nullopt;
  call_id_.clear();
  return Next{std::move(suspended_), !failure_.status.ok()};
}

bool OperationQueue::find_target(uint64_t turn, VariablePtr& target) const {
  const Monitor::Lock lock = monitor_.lock();
  if (turn != turn_) return false;
  target = suspended_.target;
  return true;
}

std::string OperationQueue::cancelled_call(uint64_t turn) const {
  const Monitor::Lock lock = monitor_.lock();
  return cancelled_ && turn == turn_ ? call_id_ : std::string();
}

std::string OperationQueue::call_in_flight() const {
  const Monitor::Lock lock = monitor_.lock();
  return call_id_;
}

void OperationQueue::fail(Status why, Location where) {
  const Monitor::Lock lock = monitor_.lock();
  if (failure_.status.ok()) failure_ = {std::move(why), where};
}

OperationQueue::Failure OperationQueue::failure() const {
  const Monitor::Lock lock = monitor_.lock();
  return failure_;
}

OperationQueue::Cancelled OperationQueue::cancel(const Status& why) {
  const Monitor::Lock lock = monitor_.lock();
  cancelled_ = true;
  if (failure_.status.ok()) failure_.status = why;
  Cancelled out{.call_id = call_id_};
  if (std::exchange(awaits_value_, false)) {
    ++turn_;
    out.abandoned = std::move(suspended_);
  }
  return out;
}

void OperationQueue::when_idle(std::function<void()> callback) {
  {
    const Monitor::Lock lock = monitor_.lock();
    if (busy_) {
      idle_callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

}  // namespace espalier::lang
