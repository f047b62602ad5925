// Asynchronous reads and writes of blocks of one file, by io_uring where the kernel has it, else by
// threads.
//
// Not thread-safe: one thread submits and waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/status.h"

namespace espalier {

// Direct I/O takes addresses, offsets and sizes that are multiples of this.
inline constexpr int64_t kBlockAlignment = 4096;

// One transfer. Owned by the caller; unchanged from submit() until wait() has returned it.
struct BlockOp {
  bool is_write = false;
  int64_t offset = 0;
  std::byte* buffer = nullptr;
  int64_t size = 0;
  bool ok = false;  // set by wait(): all bytes were transferred
};

class BlockIo {
 public:
  virtual ~BlockIo() = default;  // REQUIRES: nothing is in flight
  virtual std::string_view name() const = 0;

  // Queues an operation; it starts with the next wait() at the latest. REQUIRES fewer than `depth`
  // in flight.
  virtual void submit(BlockOp& op) = 0;

  // Waits for one operation to end. REQUIRES one in flight.
  virtual BlockOp& wait() = 0;
};

// `fd` is borrowed. kUnimplemented where the kernel, or this build, has no io_uring.
Result<std::unique_ptr<BlockIo>> make_uring_io(int fd, int32_t depth);
std::unique_ptr<BlockIo> make_thread_io(int fd, int32_t num_threads, int32_t depth);

}  // namespace espalier
