// Videos from bytes: frames of MP4, QuickTime, WebM, Matroska, AVI, MPEG and Ogg files become RGB.
//
// The bytes are a client's. They are read by FFmpeg's libraries, which are loaded when the first
// video arrives; where they are not installed open() fails with kUnimplemented and names the
// packages. Only the containers and codecs of a fixed list are opened, and nothing that a file
// names is: no other file, no network. Sizes and lengths are compared with the limits before
// memory for frames is allocated, and the numbers of frames are counted, not believed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>

#include "base/status.h"
#include "media/image.h"

namespace espalier {

struct VideoLimits {
  int64_t bytes_max = int64_t{512} << 20;  // of a file
  int64_t pixels_max = 64'000'000;         // of a frame
  double seconds_max = 600;
  int32_t num_threads = 2;  // that decode one video

  // Of all frames that are decoded: those of seconds_max at 1920 x 1080 and 60 a second, so that a
  // high rate or large frames do not buy more work.
  int64_t pixels_total_max() const { return static_cast<int64_t>(seconds_max * 60 * 1920 * 1080); }
};

struct VideoHeader {
  int32_t width = 0, height = 0;  // of a frame, in pixels; its rotation is not applied
  int32_t num_frames = 0;         // counted
  double frames_per_second = 0;   // on average

  double seconds() const { return num_frames / frames_per_second; }
};

// An open file. Not thread-safe.
class VideoFile {
 public:
  using Take = std::function<Status(Image&& frame)>;

  // bytes: outlive the result. Counts the frames, which reads all of the file and decodes the first
  // frames alone. Fails with kInvalidArgument, and with kUnimplemented where FFmpeg is missing.
  static Result<std::unique_ptr<VideoFile>> open(std::span<const uint8_t> bytes,
                                                 const VideoLimits& limits);
  virtual ~VideoFile() = default;
  virtual const VideoHeader& header() const = 0;

  // Calls `take` with the frames of these indices in the order in which they are shown; one that is
  // named twice is taken twice. Where the last tenth of the frames cannot be decoded the last one
  // that can stands for them. Once only. kAborted soon after `stop` is requested; what `take` fails
  // with ends it.
  // REQUIRES: indices rise, from 0 to below header().num_frames.
  virtual Status read(std::span<const int32_t> indices, const Take& take,
                      const std::stop_token& stop = {}) = 0;
};

// By the first bytes: whether they are a container of a video that may be read here.
bool recognise_video(std::span<const uint8_t> bytes);

}  // namespace espalier
