#include "lang/waiting.h"

#include <chrono>

namespace espalier::lang {
namespace {

constexpr auto kAskEvery = std::chrono::milliseconds(50);
thread_local Interruptible* innermost = nullptr;

}  // namespace

Interruptible::Interruptible(std::function<bool()> asked)
    : asked_(std::move(asked)), outer_(innermost) {
  innermost = this;
}

Interruptible::~Interruptible() { innermost = outer_; }

bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                const std::function<bool()>& is_so) {
  if (innermost == nullptr) {
    changed.wait(lock, is_so);
    return true;
  }
  while (!changed.wait_for(lock, kAskEvery, is_so)) {
    lock.unlock();
    const bool is_asked = innermost->asked_();
    lock.lock();
    if (is_asked) return is_so();
  }
  return true;
}

Status interrupted() { return error(StatusCode::kAborted, "interrupted while it was waited for"); }

}  // namespace espalier::lang
