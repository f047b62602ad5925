// Encoders of one model's pictures and of its videos as one: where a video's frames go through the
// same layers as pictures and another projector (LLaVA-NeXT-Video averages their rows first). Each
// has weights of its own, in the same type, so that both are the encoders of other models
// unchanged.
#pragma once

#include <memory>
#include <span>

#include "models/image_encoder.h"

namespace espalier {

class TwoEncoders final : public ImageEncoder {
 public:
  // REQUIRES: rows of both have one width; videos->info().patches.videos.
  TwoEncoders(std::unique_ptr<ImageEncoder> pictures, std::unique_ptr<ImageEncoder> videos);

  const ImageEncoderInfo& info() const override { return info_; }
  Result<PreparedImage> prepare_video(std::span<const Image> frames, double frames_per_second,
                                      bool fitted) const override;
  Result<PreparedImage> plan_video(const ImageProcessorSpec::Size& picture, int32_t num_frames,
                                   double frames_per_second) const override;
  int32_t batch_max() const override { return pictures_->batch_max(); }
  int64_t row_bytes(int32_t num_rows) const override { return pictures_->row_bytes(num_rows); }
  Result<EncodedRows> allocate_rows(int32_t num_rows) override {
    return pictures_->allocate_rows(num_rows);
  }
  int32_t batches_in_flight_max() const override { return pictures_->batches_in_flight_max(); }
  Status encode(const PreparedImage& image, std::span<float> rows,
                const std::stop_token& stop = {}) override;
  Status encode_batch(std::span<const EncoderTask> tasks) override;

 private:
  ImageEncoder& encoder_of(const PreparedImage& image) {
    return image.frame_rows > 0 ? *videos_ : *pictures_;
  }
  Status encode_tile(std::span<const float> patches, const PatchGrid& grid, std::span<float> rows,
                     const std::stop_token& stop) override;
  std::span<const float> line_end() const override { return {}; }

  const std::unique_ptr<ImageEncoder> pictures_, videos_;
  ImageEncoderInfo info_;
};

}  // namespace espalier
