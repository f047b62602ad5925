#include "net/deadline.h"

#include <utility>

namespace espalier::net {

void Deadline::start(std::weak_ptr<void> owner, std::function<void()> passed) {
  owner_ = std::move(owner);
  passed_ = std::move(passed);
}

void Deadline::stop() {
  stopped_ = true;
  timer_.cancel();
}

void Deadline::set_at(TimePoint at) {
  at_ = at;
  arm();
}

void Deadline::arm() {
  if (stopped_ || at_ == TimePoint::max() || (armed_ && timer_at_ <= at_)) return;
  timer_.expires_at(std::chrono::time_point_cast<std::chrono::steady_clock::duration>(at_));
  armed_ = false;  // the earlier wait is cancelled
  timer_.async_wait([this, weak = owner_](boost::system::error_code ec) {
    const auto owner = weak.lock();
    if (!ec && owner != nullptr) fire();
  });
  armed_ = true;
  timer_at_ = at_;
}

void Deadline::fire() {
  if (stopped_) return;
  armed_ = false;
  if (at_ > std::chrono::steady_clock::now()) return arm();
  clear();
  passed_();
}

}  // namespace espalier::net
