// In place of video.cc where FFmpeg's headers are missing.
#include "media/video.h"

namespace espalier {

Result<std::unique_ptr<VideoFile>> VideoFile::open(std::span<const uint8_t>, const VideoLimits&) {
  return fail(error(StatusCode::kUnimplemented,
                    "files of videos are not read by this build, which was made without FFmpeg's "
                    "headers: send the video as a list of its frames"));
}

}  // namespace espalier
