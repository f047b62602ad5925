// One bound over memory that many requests hold together, such as bodies in flight: each holder has
// a charge, and a charge that would pass the bound is refused. Accounts count; they allocate
// nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

namespace espalier {

// Thread-safe.
class MemoryAccount {
 public:
  // name: as metrics show it, "bodies". limit: bytes over all charges.
  MemoryAccount(std::string name, int64_t limit) : name_(std::move(name)), limit_(limit) {}

  const std::string& name() const { return name_; }
  int64_t limit() const { return limit_; }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t refused_total() const { return refused_total_.load(std::memory_order_relaxed); }

 private:
  friend class MemoryCharge;
  bool take(int64_t bytes);
  void give_back(int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  const std::string name_;
  const int64_t limit_;
  std::atomic<int64_t> used_{0}, refused_total_{0};
};

// What one holder has of an account; gives it back when it is destroyed. Not thread-safe.
class MemoryCharge {
 public:
  MemoryCharge() = default;  // of no account: every size is granted
  explicit MemoryCharge(std::shared_ptr<MemoryAccount> account) : account_(std::move(account)) {}
  ~MemoryCharge() { release(); }
  MemoryCharge(MemoryCharge&& other) noexcept { *this = std::move(other); }
  MemoryCharge& operator=(MemoryCharge&& other) noexcept;

  int64_t bytes() const { return bytes_; }
  int64_t limit() const {  // of its account
    return account_ != nullptr ? account_->limit() : std::numeric_limits<int64_t>::max();
  }
  // Holds `bytes` from now on. False, and nothing changed, where the account has not so many left;
  // less than before is granted always.
  [[nodiscard]] bool resize(int64_t bytes);
  void release() { (void)resize(0); }

 private:
  std::shared_ptr<MemoryAccount> account_;  // shared: a charge may outlive its server
  int64_t bytes_ = 0;
};

}  // namespace espalier
