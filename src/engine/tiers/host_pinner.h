// Pins the memory of the host tier part by part on a thread of its own, while requests are served:
// a device copies pinned memory several times as fast, and pinning some 100 GB takes many seconds.
// Copies of parts that are not pinned yet are slower, and right.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>

#include "cache/page_copier.h"

namespace espalier {

class HostPinner {
 public:
  // Parts are multiples of `part_bytes`, whose borders no transfer crosses. Borrows both.
  HostPinner(PageCopier& copier, std::span<std::byte> arena, int64_t part_bytes);
  ~HostPinner();  // unpins. REQUIRES that no transfer of the arena is in progress

  int64_t pinned_bytes() const { return num_pinned_.load(std::memory_order_relaxed); }

 private:
  void run();

  PageCopier& copier_;
  const std::span<std::byte> arena_;
  const size_t part_;                   // bytes, of all parts but the last
  std::atomic<int64_t> num_pinned_{0};  // bytes, from the start of the arena on
  std::atomic<bool> stopped_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace espalier
