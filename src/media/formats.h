// The decoders that image.h chooses among, one source for each. Internal to the room.
//
// A header function reads the size alone and allocates nothing that depends on it. A decode
// function fills `image`, whose memory the caller has allocated after it checked that size, and
// fails where the file contains a picture of another size. Messages lack the format's name, which
// the caller adds. All are pure and thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "media/image.h"

namespace espalier::media {

using Bytes = std::span<const uint8_t>;

struct PictureSize {
  int32_t width = 0, height = 0;
};

Result<PictureSize> read_jpeg_size(Bytes bytes);
Result<PictureSize> read_png_size(Bytes bytes);
Result<PictureSize> read_webp_size(Bytes bytes);
Result<PictureSize> read_gif_size(Bytes bytes);
Result<PictureSize> read_bmp_size(Bytes bytes);

// Also applies the EXIF orientation, which may swap width and height.
Status decode_jpeg(Bytes bytes, Image& image);
Status decode_png(Bytes bytes, Image& image);
Status decode_webp(Bytes bytes, Image& image);
Status decode_gif(Bytes bytes, Image& image);
Status decode_bmp(Bytes bytes, Image& image);

// The orientation, 1 to 8, that an EXIF block (TIFF structure) states; 1 where it states none.
int32_t exif_orientation(Bytes tiff);
// Turns and mirrors the picture so that orientation 1 is correct for it.
Image oriented(Image image, int32_t orientation);

// The row's first pixel. REQUIRES: 0 <= row < height.
inline uint8_t* row_of(Image& image, int32_t row) {
  return image.rgb.data() + static_cast<size_t>(row) * static_cast<size_t>(image.width) * 3;
}

}  // namespace espalier::media
