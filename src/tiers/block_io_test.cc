#include "tiers/block_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "base/rng.h"
#include "tiers/test_pages.h"

namespace espalier {
namespace {

constexpr int32_t kDepth = 8;
constexpr int64_t kNumBlocks = 64;

struct Buffer {
  Buffer() : data(static_cast<std::byte*>(std::aligned_alloc(kBlockAlignment, kBlockAlignment))) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data); }
  std::byte* const data;
};

// Random writes and reads, `kDepth` at once: each block has the byte that was last written to it.
void check_blocks(BlockIo& io) {
  Rng rng(7);
  std::vector<int> expected(kNumBlocks, 0);
  std::vector<Buffer> buffers(kDepth);
  for (int round = 0; round < 50; ++round) {
    std::vector<BlockOp> ops;
    std::vector<int64_t> blocks;
    for (int32_t i = 0; i < kDepth; ++i) {  // no two of a round touch one block
      const int64_t block = i * (kNumBlocks / kDepth) + static_cast<int64_t>(rng.below(8));
      const bool is_write = rng.below(2) == 0;
      if (is_write) {
        expected[static_cast<size_t>(block)] = static_cast<int>(rng.below(256));
        std::memset(buffers[static_cast<size_t>(i)].data, expected[static_cast<size_t>(block)],
                    kBlockAlignment);
      }
      ops.push_back({is_write, block * kBlockAlignment, buffers[static_cast<size_t>(i)].data,
                     kBlockAlignment});
      blocks.push_back(block);
    }
    for (BlockOp& op : ops) io.submit(op);
    for (int32_t i = 0; i < kDepth; ++i) EXPECT_TRUE(io.wait().ok);
    for (size_t i = 0; i < ops.size(); ++i)
      for (const int64_t at : {int64_t{0}, kBlockAlignment - 1})
        ASSERT_EQ(static_cast<int>(ops[i].buffer[at]), expected[static_cast<size_t>(blocks[i])]);
  }
  BlockOp beyond{false, (kNumBlocks + 1) * kBlockAlignment, buffers[0].data, kBlockAlignment};
  io.submit(beyond);
  EXPECT_FALSE(io.wait().ok) << "a read behind the end of the file";
}

class BlockIoTest : public testing::Test {
 protected:
  BlockIoTest() : fd_(open((folder_.path() / "file").c_str(), O_RDWR | O_CREAT, 0600)) {
    EXPECT_EQ(ftruncate(fd_, kNumBlocks * kBlockAlignment), 0);
  }
  ~BlockIoTest() override { close(fd_); }
  TestFolder folder_;
  const int fd_;
};

TEST_F(BlockIoTest, ThreadsMoveBlocks) { check_blocks(*make_thread_io(fd_, 3, kDepth)); }

TEST_F(BlockIoTest, UringMovesBlocks) {
  const auto io = make_uring_io(fd_, kDepth);
  if (!io) GTEST_SKIP() << io.error().message();
  EXPECT_EQ((*io)->name(), "io_uring");
  check_blocks(**io);
}

}  // namespace
}  // namespace espalier
