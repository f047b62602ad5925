#include <unistd.h>

#include <cerrno>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "base/thread.h"
#include "tiers/block_io.h"

namespace espalier {
namespace {

// The whole transfer, however many calls it takes.
bool transfer(int fd, const BlockOp& op) {
  int64_t done = 0;
  while (done < op.size) {
    std::byte* const at = op.buffer + done;
    const auto left = static_cast<size_t>(op.size - done);
    const ssize_t count = op.is_write ? pwrite(fd, at, left, op.offset + done)
                                      : pread(fd, at, left, op.offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += count;
  }
  return true;
}

class ThreadIo final : public BlockIo {
 public:
  ThreadIo(int fd, int32_t num_threads, int32_t depth)
      : fd_(fd), queue_(static_cast<size_t>(depth)), done_(static_cast<size_t>(depth)) {
    for (int32_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
  }
  ~ThreadIo() override {
    queue_.close();
    for (std::thread& thread : threads_) thread.join();
  }

  std::string_view name() const override { return "threads"; }
  void submit(BlockOp& op) override { (void)queue_.try_push(&op); }
  BlockOp& wait() override { return **done_.pop(); }

 private:
  void run() {
    set_thread_name("disk-tier-io");
    while (const std::optional<BlockOp*> next = queue_.pop()) {
      BlockOp* op = *next;
      op->ok = transfer(fd_, *op);
      (void)done_.try_push(std::move(op));
    }
  }

  const int fd_;
  BoundedQueue<BlockOp*> queue_, done_;  // never full: `depth` are in flight at most
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockIo> make_thread_io(int fd, int32_t num_threads, int32_t depth) {
  return std::make_unique<ThreadIo>(fd, num_threads, depth);
}

}  // namespace espalier
