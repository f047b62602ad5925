#include "models/two_encoders.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace espalier {

TwoEncoders::TwoEncoders(std::unique_ptr<ImageEncoder> pictures,
                         std::unique_ptr<ImageEncoder> videos)
    : pictures_(std::move(pictures)), videos_(std::move(videos)), info_(pictures_->info()) {
  ESP_CHECK(info_.width == videos_->info().width && videos_->info().patches.videos);
  info_.patches.videos = true;
  info_.processor.video = videos_->info().processor.video;
  info_.weight_bytes += videos_->info().weight_bytes;
}

Result<PreparedImage> TwoEncoders::prepare_video(std::span<const Image> frames,
                                                 double frames_per_second, bool fitted) const {
  return videos_->prepare_video(frames, frames_per_second, fitted);
}

Result<PreparedImage> TwoEncoders::plan_video(const ImageProcessorSpec::Size& picture,
                                              int32_t num_frames, double frames_per_second) const {
  return videos_->plan_video(picture, num_frames, frames_per_second);
}

Status TwoEncoders::encode(const PreparedImage& image, std::span<float> rows,
                           const std::stop_token& stop) {
  return encoder_of(image).encode(image, rows, stop);
}

Status TwoEncoders::encode_batch(std::span<const EncoderTask> tasks) {
  std::vector<EncoderTask> of_pictures, of_videos;
  for (const EncoderTask& task : tasks)
    (task.image->frame_rows > 0 ? of_videos : of_pictures).push_back(task);
  if (!of_pictures.empty()) ESP_RETURN_IF_ERROR(pictures_->encode_batch(of_pictures));
  return of_videos.empty() ? Status() : videos_->encode_batch(of_videos);
}

// encode() is the other encoders'.
Status TwoEncoders::encode_tile(std::span<const float>, const PatchGrid&, std::span<float>,
                                const std::stop_token&) {
  return error(StatusCode::kInternal, "a tile belongs to one of two encoders");
}

}  // namespace espalier
