#include "engine/tiers/host_pinner.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/log.h"
#include "base/thread.h"

namespace espalier {
namespace {

// A driver may stop other calls while it pins a part, so parts are short, and their memory is there
// before.
constexpr int64_t kPartBytes = 64 << 20;

size_t part_size(int64_t border_bytes) {
  return static_cast<size_t>(std::max<int64_t>(1, kPartBytes / border_bytes) * border_bytes);
}

// Backs memory without changing it. Systems that do not know how leave it to the driver.
void populate(std::span<std::byte> memory) {
#ifdef MADV_POPULATE_WRITE
  static_cast<void>(madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE));
#else
  static_cast<void>(memory);
#endif
}

}  // namespace

HostPinner::HostPinner(PageCopier& copier, std::span<std::byte> arena, int64_t part_bytes)
    : copier_(copier), arena_(arena), part_(part_size(part_bytes)), thread_([this] { run(); }) {}

HostPinner::~HostPinner() {
  stopped_ = true;
  thread_.join();
  const auto end = static_cast<size_t>(num_pinned_.load());
  for (size_t at = 0; at < end; at += part_)
    copier_.unpin(arena_.subspan(at, std::min(part_, arena_.size() - at)));
}

void HostPinner::run() {
  set_thread_name("pin-memory");
  static_cast<void>(madvise(arena_.data(), arena_.size(), MADV_HUGEPAGE));
  for (size_t at = 0; at < arena_.size() && !stopped_; at += part_) {
    const std::span<std::byte> part = arena_.subspan(at, std::min(part_, arena_.size() - at));
    populate(part);
    if (const Status status = copier_.pin(part); !status.ok()) {
      log_warning(
          "host tier pinned_bytes={} of={} error=\"{}\": copies of the rest are slower; raise the "
          "limit of locked memory (ulimit -l), or lower --hicache-size",
          at, arena_.size(), status.message());
      return;
    }
    num_pinned_.store(static_cast<int64_t>(at + part.size()), std::memory_order_relaxed);
  }
}

}  // namespace espalier
