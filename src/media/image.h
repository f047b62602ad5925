// Pictures from bytes: JPEG, PNG, WebP, GIF (its first frame) and BMP become rows of 8-bit RGB.
//
// The bytes are a client's. The size that the file's header states is checked against the limits
// before memory for a picture is allocated, so a small file cannot demand much memory, and a file
// that contains something else than its header states is refused. Colours are those of Pillow's
// convert("RGB"): an alpha channel is dropped, grey is repeated and embedded colour profiles are
// ignored. Of 16 bits the upper 8 count. A JPEG is turned as its EXIF orientation demands.
//
// The functions are pure and thread-safe. They fail with kInvalidArgument, and with
// kResourceExhausted where the system has no memory.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier {

enum class ImageFormat : uint8_t { kJpeg, kPng, kWebp, kGif, kBmp };
std::string_view image_format_name(ImageFormat format);  // "JPEG"

struct ImageLimits {
  int64_t bytes_max = int64_t{32} << 20;  // of a file
  int64_t pixels_max = 64'000'000;        // width times height: 192 MB of RGB
};

struct ImageHeader {
  ImageFormat format = ImageFormat::kPng;
  int32_t width = 0, height = 0;  // as stored, before an orientation turns it

  int64_t num_pixels() const { return int64_t{width} * height; }
};

// rgb: [height, width, 3]. Owns its memory.
struct Image {
  int32_t width = 0, height = 0;
  std::vector<uint8_t> rgb;
};

// Recognises the format by its first bytes and reads the size. Fails where a limit is exceeded.
Result<ImageHeader> read_image_header(std::span<const uint8_t> bytes, const ImageLimits& limits);

Result<Image> decode_image(std::span<const uint8_t> bytes, const ImageLimits& limits);

}  // namespace espalier
