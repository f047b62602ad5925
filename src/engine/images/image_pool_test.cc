// The pool with an encoder that ends when it is stopped and not before, and pictures that are
// refused before they are resized.
#include "engine/images/image_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <future>
#include <thread>

#include "engine/testing/seeing_requests.h"

namespace espalier {
namespace {

using testing::HasSubstr;

// Makes a row of each square of 14 x 14 pixels.
class BlockingEncoder final : public ImageEncoder {
 public:
  explicit BlockingEncoder(int64_t pixels_min, bool blocks) : blocks_(blocks) {
    info_.width = 4;
    info_.patches.patch_size = 14;
    info_.processor.area = {
        .pixels_min = pixels_min, .pixels_max = int64_t{1} << 40, .multiple = 14};
  }
  const ImageEncoderInfo& info() const override { return info_; }

  std::shared_ptr<std::atomic<int>> num_begun = std::make_shared<std::atomic<int>>(0);

 private:
  Status encode_tile(std::span<const float>, const PatchGrid&, std::span<float>,
                     const std::stop_token& stop) override {
    ++*num_begun;
    while (blocks_ && !stop.stop_requested()) std::this_thread::yield();
    return blocks_ ? encoding_stopped() : Status();
  }
  std::span<const float> line_end() const override { return {}; }

  const bool blocks_;
  ImageEncoderInfo info_;
};

ImagePoolConfig config_of(int32_t threads) {
  return {.num_threads = threads,
          .num_waiting_max = 8,
          .row_bytes_max = 1 << 20,
          .num_rows_max = 1 << 20,
          .limits = {}};
}

void wait_for(const std::atomic<int>& number, int value) {
  while (number < value) std::this_thread::yield();
}

ImagePool::Done unexpected() {
  return [](Result<std::vector<EncodedImage>>&&) { ADD_FAILURE() << "it was cancelled"; };
}

TEST(ImagePool, EndsWhileAPictureIsEncoded) {
  auto encoder = std::make_unique<BlockingEncoder>(1, true);
  const auto begun = encoder->num_begun;
  {
    ImagePool pool(std::move(encoder), config_of(2));
    for (RequestId id = 1; id <= 4; ++id)
      ASSERT_TRUE(
          pool.submit(id, {picture(20, 30), picture(30, 20 + static_cast<int>(id))}, unexpected())
              .ok());
    wait_for(*begun, 1);
  }
  EXPECT_LE(*begun, 2) << "what waited was encoded";
}

// The one that is encoded, one that waits for the same picture's rows, and one in the queue.
TEST(ImagePool, RequestsThatAreCancelledLeaveTheirPicturesOut) {
  auto encoder = std::make_unique<BlockingEncoder>(1, true);
  const auto begun = encoder->num_begun;
  std::atomic<int> num_read{0};
  const auto read = [&num_read]() -> Result<std::string> {
    ++num_read;
    return bmp_of(test::drawn(20, 30));
  };
  ImagePool pool(std::move(encoder), config_of(2));
  ASSERT_TRUE(pool.submit(1, {{.read = read}, picture(30, 20)}, unexpected()).ok());
  wait_for(*begun, 1);
  ASSERT_TRUE(pool.submit(2, {{.read = read}, {.read = read}}, unexpected()).ok());
  wait_for(num_read, 2);
  ASSERT_TRUE(pool.submit(3, {{.read = read}}, unexpected()).ok());
  pool.cancel(3);
  pool.cancel(2);
  pool.cancel(1);
  pool.cancel(99);
  // Both threads are free again: a picture that cannot be read needs no encoder.
  std::promise<StatusCode> answer;
  const auto fails = []() -> Result<std::string> { return std::string("no picture"); };
  ASSERT_TRUE(pool.submit(4, {{.read = fails}},
                          [&](auto&& images) { answer.set_value(images.error().code()); })
                  .ok());
  EXPECT_EQ(answer.get_future().get(), StatusCode::kInvalidArgument);
  EXPECT_EQ(*begun, 1);
  EXPECT_EQ(pool.stats().num_images_total, 0);
  while (pool.stats().row_bytes > 0) std::this_thread::yield();
}

int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// It would be resized to 200 million pixels, and they would become 2.4 GB of numbers.
TEST(ImagePool, RefusesAPictureBeforeItIsResized) {
  for (const bool context : {false, true}) {
    auto encoder = std::make_unique<BlockingEncoder>(200'000'000, false);
    const auto begun = encoder->num_begun;
    ImagePoolConfig config = config_of(1);
    if (context) config.num_rows_max = 1000;
    ImagePool pool(std::move(encoder), config);
    const int64_t before = peak_bytes();
    std::promise<Status> answer;
    ASSERT_TRUE(
        pool.submit(1, {picture(20, 20)}, [&](auto&& images) { answer.set_value(images.error()); })
            .ok());
    const Status refused = answer.get_future().get();
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(),
                HasSubstr(context ? "prompt and output share 1000" : "--image-cache-bytes"));
    EXPECT_LT(peak_bytes() - before, int64_t{256} << 20);
    EXPECT_EQ(*begun, 0);
  }
}

}  // namespace
}  // namespace espalier
