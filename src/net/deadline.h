// The one deadline of a connection. Internal to the room; includes Asio.
//
// Moving the deadline costs a store: the timer is set again only when it fires or must fire
// earlier.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>

#include "base/clock.h"

namespace espalier::net {

// Not thread-safe: belongs to the I/O thread of the executor.
class Deadline {
 public:
  explicit Deadline(const boost::asio::any_io_executor& executor) : timer_(executor) {}

  // `passed` is called when the deadline has passed, on the I/O thread, unless `owner`, of which
  // this is a part, is gone. REQUIRED before any other call.
  void start(std::weak_ptr<void> owner, std::function<void()> passed);
  void stop();  // for ever

  void set(Duration from_now) { set_at(std::chrono::steady_clock::now() + from_now); }
  void set_at(TimePoint at);
  void clear() { at_ = TimePoint::max(); }  // there is none

 private:
  void arm();
  void fire();

  boost::asio::steady_timer timer_;
  std::weak_ptr<void> owner_;
  std::function<void()> passed_;
  bool armed_ = false;
  bool stopped_ = false;
  TimePoint timer_at_ = TimePoint::max();  // when the timer fires, while it is armed
  TimePoint at_ = TimePoint::max();
};

}  // namespace espalier::net
