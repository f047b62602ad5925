// BMP without compression: 1, 4, 8, 16, 24 and 32 bits a pixel, from the bottom up or down.
// Source: Microsoft's BITMAPINFOHEADER and its successors.
#include <array>
#include <bit>
#include <cstdlib>

#include "media/formats.h"

namespace espalier::media {
namespace {

constexpr uint32_t kFileHeaderBytes = 14;
constexpr uint32_t kOldHeaderBytes = 12;  // OS/2's, with sizes of 16 bits
constexpr uint32_t kNoCompression = 0, kBitFields = 3, kBitFieldsWithAlpha = 6;

struct Layout {
  PictureSize size;
  bool bottom_up = true;
  uint32_t bits = 0;  // a pixel
  uint64_t pixels_begin = 0;
  uint64_t row_bytes = 0;
  std::array<uint32_t, 3> masks{};  // of red, green and blue; 16 and 32 bits
  uint64_t palette_begin = 0;
  uint32_t palette_entry_bytes = 4;
  uint32_t palette_size = 0;
};

// REQUIRES: the bytes are there.
uint32_t little(Bytes bytes, uint64_t at, size_t count) {
  uint32_t value = 0;
  for (size_t i = count; i-- > 0;) value = value << 8 | bytes[at + i];
  return value;
}

Status damaged() { return invalid_argument("the file is damaged: save the picture anew"); }

Status read_masks(Bytes bytes, uint32_t compression, Layout& layout) {
  if (compression == kNoCompression) {
    layout.masks = layout.bits == 16 ? std::array<uint32_t, 3>{0x7c00, 0x3e0, 0x1f}
                                     : std::array<uint32_t, 3>{0xff0000, 0xff00, 0xff};
    return Status();
  }
  // Behind a header of 40 bytes, and within the longer ones at the same place.
  constexpr uint64_t kMasksBegin = kFileHeaderBytes + 40;
  if (bytes.size() < kMasksBegin + 12) return damaged();
  for (size_t i = 0; i < 3; ++i) {
    const uint32_t mask = little(bytes, kMasksBegin + 4 * i, 4);
    const uint32_t bits = mask == 0 ? 0 : mask >> std::countr_zero(mask);
    if (mask == 0 || (bits & (bits + 1)) != 0) return damaged();
    layout.masks[i] = mask;
  }
  return Status();
}

Status check_kind(uint32_t bits, uint32_t compression) {
  const bool fields = compression == kBitFields || compression == kBitFieldsWithAlpha;
  const bool known = bits == 1 || bits == 4 || bits == 8 || bits == 16 || bits == 24 || bits == 32;
  if (known && (compression == kNoCompression || (fields && (bits == 16 || bits == 32)))) {
    return Status();
  }
  return invalid_argument(
      "{} bits a pixel in compression {} are not read here: save the picture as PNG", bits,
      compression);
}

Result<Layout> read_layout(Bytes bytes) {
  if (bytes.size() < kFileHeaderBytes + kOldHeaderBytes) return fail(damaged());
  Layout layout;
  layout.pixels_begin = little(bytes, 10, 4);
  const uint32_t header_bytes = little(bytes, 14, 4);
  const bool old = header_bytes == kOldHeaderBytes;
  if (!old && (header_bytes < 40 || bytes.size() < kFileHeaderBytes + 40)) return fail(damaged());
  const auto width = static_cast<int32_t>(little(bytes, 18, old ? 2 : 4));
  const auto height = static_cast<int32_t>(old ? little(bytes, 20, 2) : little(bytes, 22, 4));
  if (width < 1 || height == 0 || height == INT32_MIN) return fail(damaged());
  layout.size = {width, std::abs(height)};
  layout.bottom_up = height > 0;
  layout.bits = little(bytes, old ? 24 : 28, 2);
  const uint32_t compression = old ? kNoCompression : little(bytes, 30, 4);
  ESP_RETURN_IF_ERROR(check_kind(layout.bits, compression));
  layout.row_bytes = (static_cast<uint64_t>(width) * layout.bits + 31) / 32 * 4;
  if (layout.bits == 16 || layout.bits == 32) {
    ESP_RETURN_IF_ERROR(read_masks(bytes, compression, layout));
  }
  if (layout.bits <= 8) {
    const uint32_t used = old ? 0 : little(bytes, 46, 4);
    layout.palette_size = used == 0 || used > 256 ? 1u << layout.bits : used;
    layout.palette_begin = uint64_t{kFileHeaderBytes} + header_bytes;
    layout.palette_entry_bytes = old ? 3 : 4;
  }
  return layout;
}

uint8_t field(uint32_t pixel, uint32_t mask) {
  const auto shift = std::countr_zero(mask);
  const uint64_t largest = mask >> shift;
  return static_cast<uint8_t>(((pixel & mask) >> shift) * uint64_t{255} / largest);
}

using Palette = std::array<std::array<uint8_t, 3>, 256>;

Result<Palette> read_palette(Bytes bytes, const Layout& layout) {
  Palette palette{};
  const uint64_t end =
      layout.palette_begin + uint64_t{layout.palette_size} * layout.palette_entry_bytes;
  if (end > bytes.size()) return fail(damaged());
  for (uint32_t i = 0; i < layout.palette_size; ++i) {
    const uint64_t at = layout.palette_begin + uint64_t{i} * layout.palette_entry_bytes;
    palette[i] = {bytes[at + 2], bytes[at + 1], bytes[at]};
  }
  return palette;
}

void decode_row(const uint8_t* from, const Layout& layout, const Palette& palette, uint8_t* to) {
  for (uint32_t x = 0; x < static_cast<uint32_t>(layout.size.width); ++x, to += 3) {
    if (layout.bits <= 8) {
      const uint32_t in_byte = 8 / layout.bits;
      const uint32_t shift = 8 - layout.bits * (x % in_byte + 1);
      const uint32_t index = from[x / in_byte] >> shift & ((1u << layout.bits) - 1);
      for (size_t c = 0; c < 3; ++c) to[c] = palette[index][c];
    } else if (layout.bits == 24) {
      for (size_t c = 0; c < 3; ++c) to[c] = from[x * 3 + 2 - c];
    } else {
      const size_t pixel_bytes = layout.bits / 8;
      const uint32_t pixel = little(Bytes(from + x * pixel_bytes, pixel_bytes), 0, pixel_bytes);
      for (size_t c = 0; c < 3; ++c) to[c] = field(pixel, layout.masks[c]);
    }
  }
}

}  // namespace

Result<PictureSize> read_bmp_size(Bytes bytes) {
  ESP_ASSIGN_OR_RETURN(const Layout layout, read_layout(bytes));
  const uint64_t end =
      layout.pixels_begin + layout.row_bytes * static_cast<uint64_t>(layout.size.height);
  if (end > bytes.size()) {
    return fail(invalid_argument("the file ends before its picture does: save the picture anew"));
  }
  return layout.size;
}

// REQUIRES: read_bmp_size() took the bytes, so all rows are there.
Status decode_bmp(Bytes bytes, Image& image) {
  ESP_ASSIGN_OR_RETURN(const Layout layout, read_layout(bytes));
  Palette palette{};
  if (layout.bits <= 8) {
    ESP_ASSIGN_OR_RETURN(palette, read_palette(bytes, layout));
  }
  for (int32_t y = 0; y < image.height; ++y) {
    const auto stored = static_cast<uint64_t>(layout.bottom_up ? image.height - 1 - y : y);
    decode_row(bytes.data() + layout.pixels_begin + stored * layout.row_bytes, layout, palette,
               row_of(image, y));
  }
  return Status();
}

}  // namespace espalier::media
