#include "base/memory_account.h"

#include <utility>

namespace espalier {

bool MemoryAccount::take(int64_t bytes) {
  int64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_ - used) {
      refused_total_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

MemoryCharge& MemoryCharge::operator=(MemoryCharge&& other) noexcept {
  if (this == &other) return *this;
  release();
  account_ = std::move(other.account_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

bool MemoryCharge::resize(int64_t bytes) {
  if (account_ == nullptr || bytes == bytes_) return true;
  if (bytes > bytes_) {
    if (!account_->take(bytes - bytes_)) return false;
  } else {
    account_->give_back(bytes_ - bytes);
  }
  bytes_ = bytes;
  return true;
}

}  // namespace espalier
