// WebP by libwebp.
#include <webp/decode.h>

#include "media/formats.h"

namespace espalier::media {

Result<PictureSize> read_webp_size(Bytes bytes) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(bytes.data(), bytes.size(), &features) != VP8_STATUS_OK) {
    return fail(invalid_argument("the file is damaged: save the picture anew"));
  }
  if (features.has_animation != 0) {
    return fail(invalid_argument("an animation is not read here: send one of its frames"));
  }
  return PictureSize{features.width, features.height};
}

Status decode_webp(Bytes bytes, Image& image) {
  const int stride = image.width * 3;
  if (WebPDecodeRGBInto(bytes.data(), bytes.size(), image.rgb.data(), image.rgb.size(), stride) ==
      nullptr) {
    return invalid_argument("the file is damaged: save the picture anew");
  }
  return Status();
}

}  // namespace espalier::media
