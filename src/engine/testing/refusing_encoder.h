// For tests of engines whose encoder refuses a picture: a tiny LLaVA's encoder that takes several
// pictures at once and refuses dark ones, with the whole batch in which they come.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <thread>
#include <utility>

#include "engine/startup/start_cpu.h"
#include "engine/testing/seeing_requests.h"

namespace espalier {

// Thread-safe. Batches run one at a time.
class RefusingEncoder final : public ImageEncoder {
 public:
  struct Counts {
    std::atomic<int> num_refused_alone{0}, num_refused_together{0};
    std::atomic<int> num_come{0};     // pictures that wait, or have waited, for the encoder
    std::atomic<int> num_awaited{0};  // no batch ends before so many have come
  };
  RefusingEncoder(std::unique_ptr<ImageEncoder> encoder, std::shared_ptr<Counts> counts)
      : encoder_(std::move(encoder)), counts_(std::move(counts)) {}

  const ImageEncoderInfo& info() const override { return encoder_->info(); }
  int32_t batch_max() const override { return 8; }
  // Called for each picture that comes, once it waits.
  int32_t batches_in_flight_max() const override {
    ++counts_->num_come;
    return 1;
  }
  Status encode_batch(std::span<const EncoderTask> tasks) override {
    while (counts_->num_come < counts_->num_awaited) std::this_thread::yield();
    for (const EncoderTask& task : tasks) {
      if (!is_refused(*task.image)) continue;
      ++(tasks.size() > 1 ? counts_->num_refused_together : counts_->num_refused_alone);
      return invalid_argument("the encoder does not take a picture without any light");
    }
    return encoder_->encode_batch(tasks);
  }

  // A picture that is refused.
  static ImageInput dark_picture(int32_t width, int32_t height) {
    return {.read = [=]() -> Result<std::string> {
      Image image = test::drawn(width, height);
      std::ranges::fill(image.rgb, uint8_t{0});
      return bmp_of(image);
    }};
  }

 private:
  static bool is_refused(const PreparedImage& image) {
    return *std::ranges::max_element(image.patches) < 0;
  }
  Status encode_tile(std::span<const float>, const PatchGrid&, std::span<float>,
                     const std::stop_token&) override {
    return error(StatusCode::kInternal, "encode_batch() calls the other encoder's");
  }
  std::span<const float> line_end() const override { return {}; }

  const std::unique_ptr<ImageEncoder> encoder_;
  const std::shared_ptr<Counts> counts_;
};

struct RefusingEngine {
  std::shared_ptr<RefusingEncoder::Counts> counts = std::make_shared<RefusingEncoder::Counts>();
  std::unique_ptr<Engine> engine;
};

// Null where it could not be started, with a failure of the test.
inline RefusingEngine make_refusing_engine() {
  RefusingEngine made;
  EngineConfig config{.compute = {.device = "cpu", .num_threads = 1},
                      .cache = {.max_total_tokens = 4000}};
  config.model.model_path = kModels / kSeeing;
  config.model.skip_tokenizer_init = true;
  config.check_invariants = true;
  config.sampling.random_seed = 5;
  config.images.image_threads = 8;
  auto started = start_cpu_executor(config, SystemInfo{.available_bytes = 1 << 30, .num_cpus = 1});
  EXPECT_TRUE(started) << started.error().to_string();
  if (!started) return made;
  auto engine =
      Engine::create(started->config, {.executor = std::move(started->executor),
                                       .info = std::move(started->info),
                                       .image_work = std::move(started->image_work),
                                       .image_encoder = std::make_unique<RefusingEncoder>(
                                           std::move(started->image_encoder), made.counts)});
  EXPECT_TRUE(engine) << engine.error().to_string();
  if (engine) made.engine = std::move(*engine);
  return made;
}

}  // namespace espalier
