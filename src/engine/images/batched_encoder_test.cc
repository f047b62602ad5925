// Pictures of many threads through an encoder that counts: none is lost, batches are no larger than
// they may be, no more of them run at once, and a failure is that of its picture alone.
#include "engine/images/batched_encoder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace espalier {
namespace {

// Adds 1 to a picture's only number. Waits in a batch until release(), where that is on.
class CountingEncoder final : public ImageEncoder {
 public:
  CountingEncoder(int32_t batch_max, int32_t in_flight_max)
      : batch_max_(batch_max), in_flight_max_(in_flight_max) {}

  const ImageEncoderInfo& info() const override { return info_; }
  int32_t batch_max() const override { return batch_max_; }
  // Called for each picture that comes, once it waits.
  int32_t batches_in_flight_max() const override {
    ++num_come;
    return in_flight_max_;
  }
  Status encode_batch(std::span<const EncoderTask> tasks) override {
    EXPECT_LE(std::ssize(tasks), batch_max_);
    EXPECT_LE(++in_flight, in_flight_max_);
    ++num_batches;
    most = std::max(most.load(), static_cast<int>(tasks.size()));
    while (closed || num_come < num_awaited) std::this_thread::yield();
    for (const EncoderTask& task : tasks) {
      const float number = task.image->patches[0];
      if (number != kThrows && number != kFails) continue;
      if (tasks.size() > 1) ++num_failed_together;
      for (const EncoderTask& other : tasks) other.rows->values[0] = -100;
      --in_flight;
      if (number == kThrows) throw std::runtime_error("thrown");
      return error(StatusCode::kInternal, "failed");
    }
    Status status = ImageEncoder::encode_batch(tasks);
    --in_flight;
    return status;
  }

  static constexpr float kFails = -1, kThrows = -2;
  std::atomic<int> in_flight{0}, num_batches{0}, most{0}, num_failed_together{0};
  std::atomic<bool> closed{false};
  mutable std::atomic<int> num_come{0};
  std::atomic<int> num_awaited{0};  // no batch ends before so many have come

 private:
  Status encode_tile(std::span<const float> patches, const PatchGrid&, std::span<float> rows,
                     const std::stop_token&) override {
    rows[0] = patches[0] + 1;
    return Status();
  }
  std::span<const float> line_end() const override { return {}; }

  const int32_t batch_max_, in_flight_max_;
  const ImageEncoderInfo info_{
      .num_rows = 1, .width = 1, .patches = {}, .tiles = {}, .processor = {}};
};

Result<float> encode(BatchedEncoder& batches, ImageEncoder& encoder, float number) {
  ESP_ASSIGN_OR_RETURN(EncodedRows rows, encoder.allocate_rows(1));
  const PreparedImage image{.patches = {number}, .grid = {}, .tiles = {}, .num_rows = 1};
  ESP_ASSIGN_OR_RETURN(const double seconds, batches.encode({.image = &image, .rows = &rows}));
  EXPECT_GE(seconds, 0);
  return rows.values[0];
}

TEST(BatchedEncoder, EveryPictureHasItsRows) {
  for (const int32_t batch_max : {1, 3, 16}) {
    for (const int32_t in_flight : {1, 2}) {
      CountingEncoder encoder(batch_max, in_flight);
      BatchedEncoder batches(encoder);
      std::vector<std::thread> threads;
      for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&, t] {
          for (int i = 0; i < 200; ++i) {
            const auto number = static_cast<float>(t * 1000 + i);
            const auto made = encode(batches, encoder, number);
            ASSERT_TRUE(made);
            ASSERT_EQ(*made, number + 1);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
  }
}

// While a batch runs, what comes waits for the next one.
TEST(BatchedEncoder, WhatWaitsIsEncodedTogether) {
  CountingEncoder encoder(4, 1);
  BatchedEncoder batches(encoder);
  encoder.closed = true;
  std::atomic<int> begun{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 9; ++t) {
    threads.emplace_back([&, t] {
      ++begun;
      EXPECT_TRUE(encode(batches, encoder, static_cast<float>(t)));
    });
  }
  while (begun < 9 || encoder.num_batches == 0) std::this_thread::yield();
  encoder.closed = false;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(encoder.num_batches, 3);
  EXPECT_LE(encoder.num_batches, 9);
}

TEST(BatchedEncoder, FailuresAndExceptionsAreReturned) {
  CountingEncoder encoder(4, 1);
  BatchedEncoder batches(encoder);
  EXPECT_EQ(encode(batches, encoder, CountingEncoder::kFails).error().code(),
            StatusCode::kInternal);
  EXPECT_EQ(encode(batches, encoder, CountingEncoder::kThrows).error().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(*encode(batches, encoder, 5), 6);
}

// Until the one that is refused has been in a batch with others: all come while the first batches
// run.
TEST(BatchedEncoder, ARefusedPictureFailsAlone) {
  for (const float refused : {CountingEncoder::kFails, CountingEncoder::kThrows}) {
    CountingEncoder encoder(8, 2);
    BatchedEncoder batches(encoder);
    while (encoder.num_failed_together < 3) {
      encoder.num_awaited = encoder.num_come + 8;
      std::vector<std::thread> threads;
      for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&, t] {
          const float number = t == 5 ? refused : static_cast<float>(t);
          const auto made = encode(batches, encoder, number);
          ASSERT_EQ(made.has_value(), t != 5) << t;
          if (!made) return;
          ASSERT_EQ(*made, number + 1);
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    EXPECT_EQ(encoder.in_flight, 0);
  }
}

}  // namespace
}  // namespace espalier
