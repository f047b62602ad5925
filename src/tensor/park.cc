#include "tensor/park.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <ctime>

namespace espalier {
namespace {

using SpinClock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(50);

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr,
          nullptr, 0);
}

}  // namespace

// The waker changes `word` before it reads `parked`, the sleeper raises `parked` before it reads
// `word`, both in the one total order, so one of them sees the other's write.
void wait_for_change(std::atomic<uint32_t>& word, uint32_t old, std::atomic<uint32_t>& parked) {
  const auto give_up = SpinClock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (word.load(std::memory_order_acquire) != old) return;
      cpu_relax();
    }
  } while (SpinClock::now() < give_up);
  parked.fetch_add(1, std::memory_order_seq_cst);
  while (word.load(std::memory_order_seq_cst) == old) futex_wait(&word, old);
  parked.fetch_sub(1, std::memory_order_relaxed);
}

void wake_all(std::atomic<uint32_t>& word, std::atomic<uint32_t>& parked) {
  if (parked.load(std::memory_order_seq_cst) != 0) futex_wake_all(&word);
}

}  // namespace espalier
