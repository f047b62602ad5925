// The orientation of a photograph, out of its EXIF block (a TIFF structure, TIFF 6.0 section 2).
#include <algorithm>
#include <utility>

#include "media/formats.h"

namespace espalier::media {
namespace {

constexpr uint32_t kOrientationTag = 0x0112;
constexpr uint32_t kShortType = 3;
constexpr size_t kEntryBytes = 12;

// An unsigned number of `count` bytes at `at`; 0 where it lies outside.
uint32_t number_at(Bytes bytes, size_t at, size_t count, bool little) {
  if (at > bytes.size() || bytes.size() - at < count) return 0;
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) {
    value = value << 8 | bytes[little ? at + count - 1 - i : at + i];
  }
  return value;
}

}  // namespace

int32_t exif_orientation(Bytes tiff) {
  if (tiff.size() < 8) return 1;
  const bool little = tiff[0] == 'I' && tiff[1] == 'I';
  if (!little && !(tiff[0] == 'M' && tiff[1] == 'M')) return 1;
  const size_t folder = number_at(tiff, 4, 4, little);
  const uint32_t num_entries = number_at(tiff, folder, 2, little);
  for (uint32_t i = 0; i < num_entries; ++i) {
    const size_t entry = folder + 2 + i * kEntryBytes;
    if (entry + kEntryBytes > tiff.size()) return 1;
    if (number_at(tiff, entry, 2, little) != kOrientationTag) continue;
    const uint32_t value = number_at(tiff, entry + 8, 2, little);
    const bool valid = number_at(tiff, entry + 2, 2, little) == kShortType && value >= 1;
    return valid && value <= 8 ? static_cast<int32_t>(value) : 1;
  }
  return 1;
}

Image oriented(Image image, int32_t orientation) {
  if (orientation <= 1) return image;
  // Orientations 5 to 8 swap rows and columns. A pixel (x, y) of the result lies in the stored
  // picture at (x or y, mirrored or not).
  const bool swapped = orientation >= 5;
  const bool mirror_x =
      orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool mirror_y =
      orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image out{.width = swapped ? image.height : image.width,
            .height = swapped ? image.width : image.height,
            .rgb = std::vector<uint8_t>(image.rgb.size())};
  uint8_t* to = out.rgb.data();
  for (int32_t y = 0; y < out.height; ++y) {
    for (int32_t x = 0; x < out.width; ++x, to += 3) {
      int32_t stored_x = swapped ? y : x, stored_y = swapped ? x : y;
      if (mirror_x) stored_x = image.width - 1 - stored_x;
      if (mirror_y) stored_y = image.height - 1 - stored_y;
      std::copy_n(row_of(image, stored_y) + static_cast<ptrdiff_t>(stored_x) * 3, 3, to);
    }
  }
  return out;
}

}  // namespace espalier::media
