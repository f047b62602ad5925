#include <liburing.h>

#include <cstring>

#include "base/check.h"
#include "tiers/block_io.h"

namespace espalier {
namespace {

class UringIo final : public BlockIo {
 public:
  explicit UringIo(int fd) : fd_(fd) {}
  UringIo(const UringIo&) = delete;
  UringIo& operator=(const UringIo&) = delete;
  ~UringIo() override {
    if (open_) io_uring_queue_exit(&ring_);
  }

  Status open(int32_t depth) {
    const int result = io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0);
    if (result < 0)
      return error(StatusCode::kUnimplemented, "the system refuses io_uring: {}",
                   std::strerror(-result));
    open_ = true;
    return {};
  }

  std::string_view name() const override { return "io_uring"; }

  void submit(BlockOp& op) override {
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    ESP_CHECK(entry != nullptr, "more transfers than the ring has entries");
    const auto size = static_cast<unsigned>(op.size);
    const auto offset = static_cast<uint64_t>(op.offset);
    if (op.is_write) {
      io_uring_prep_write(entry, fd_, op.buffer, size, offset);
    } else {
      io_uring_prep_read(entry, fd_, op.buffer, size, offset);
    }
    io_uring_sqe_set_data(entry, &op);
  }

  BlockOp& wait() override {
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(&ring_, &entry) != 0) (void)io_uring_submit_and_wait(&ring_, 1);
    (void)io_uring_submit(&ring_);  // what was queued starts also when a result was there already
    auto& op = *static_cast<BlockOp*>(io_uring_cqe_get_data(entry));
    op.ok = entry->res == op.size;
    io_uring_cqe_seen(&ring_, entry);
    return op;
  }

 private:
  const int fd_;
  io_uring ring_{};
  bool open_ = false;
};

}  // namespace

Result<std::unique_ptr<BlockIo>> make_uring_io(int fd, int32_t depth) {
  auto io = std::make_unique<UringIo>(fd);
  ESP_RETURN_IF_ERROR(io->open(depth));
  return io;
}

}  // namespace espalier
