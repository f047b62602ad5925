#include "media/image.h"

#include <cstring>
#include <new>

#include "media/formats.h"

namespace espalier {
namespace {

using media::Bytes;

bool begins_with(Bytes bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}
bool is_jpeg(Bytes bytes) { return begins_with(bytes, "\xff\xd8\xff"); }
bool is_png(Bytes bytes) { return begins_with(bytes, "\x89PNG\r\n\x1a\n"); }
bool is_webp(Bytes bytes) {
  return begins_with(bytes, "RIFF") && bytes.size() >= 12 && begins_with(bytes.subspan(8), "WEBP");
}
bool is_gif(Bytes bytes) { return begins_with(bytes, "GIF87a") || begins_with(bytes, "GIF89a"); }
bool is_bmp(Bytes bytes) { return begins_with(bytes, "BM"); }

struct Format {
  ImageFormat format;
  std::string_view name;
  bool (*matches)(Bytes bytes);
  Result<media::PictureSize> (*read_size)(Bytes bytes);
  Status (*decode)(Bytes bytes, Image& image);
};

constexpr Format kFormats[] = {
    {ImageFormat::kJpeg, "JPEG", is_jpeg, media::read_jpeg_size, media::decode_jpeg},
    {ImageFormat::kPng, "PNG", is_png, media::read_png_size, media::decode_png},
    {ImageFormat::kWebp, "WebP", is_webp, media::read_webp_size, media::decode_webp},
    {ImageFormat::kGif, "GIF", is_gif, media::read_gif_size, media::decode_gif},
    {ImageFormat::kBmp, "BMP", is_bmp, media::read_bmp_size, media::decode_bmp},
};

Result<const Format*> find_format(Bytes bytes, const ImageLimits& limits) {
  if (bytes.empty()) return fail(invalid_argument("the picture is empty: send a file's bytes"));
  if (std::ssize(bytes) > limits.bytes_max) {
    return fail(
        invalid_argument("the picture's file of {} bytes is above the limit of {}: make it smaller",
                         bytes.size(), limits.bytes_max));
  }
  for (const Format& format : kFormats) {
    if (format.matches(bytes)) return &format;
  }
  return fail(invalid_argument(
      "the bytes are no picture that is read here: send JPEG, PNG, WebP, GIF or BMP"));
}

Result<ImageHeader> read_header(const Format& format, Bytes bytes, const ImageLimits& limits) {
  const auto size = format.read_size(bytes);
  if (!size) return fail(size.error().with_context(format.name));
  const ImageHeader header{format.format, size->width, size->height};
  if (header.width < 1 || header.height < 1) {
    return fail(invalid_argument("{}: a picture of {} x {} pixels is none", format.name,
                                 header.width, header.height));
  }
  if (header.num_pixels() > limits.pixels_max) {
    return fail(invalid_argument(
        "{}: a picture of {} x {} pixels is above the limit of {} pixels: make it smaller",
        format.name, header.width, header.height, limits.pixels_max));
  }
  return header;
}

Result<Image> decode(const Format& format, Bytes bytes, const ImageHeader& header) {
  Image image{.width = header.width, .height = header.height, .rgb = {}};
  image.rgb.resize(static_cast<size_t>(header.num_pixels()) * 3);
  if (Status status = format.decode(bytes, image); !status.ok()) {
    return fail(status.with_context(format.name));
  }
  return image;
}

}  // namespace

std::string_view image_format_name(ImageFormat format) {
  return kFormats[static_cast<size_t>(format)].name;
}

Result<ImageHeader> read_image_header(Bytes bytes, const ImageLimits& limits) {
  ESP_ASSIGN_OR_RETURN(const Format* format, find_format(bytes, limits));
  return read_header(*format, bytes, limits);
}

Result<Image> decode_image(Bytes bytes, const ImageLimits& limits) {
  ESP_ASSIGN_OR_RETURN(const Format* format, find_format(bytes, limits));
  ESP_ASSIGN_OR_RETURN(const ImageHeader header, read_header(*format, bytes, limits));
  try {
    return decode(*format, bytes, header);
  } catch (const std::bad_alloc&) {  // of the standard library's containers
    return fail(error(StatusCode::kResourceExhausted,
                      "no memory for a picture of {} x {} pixels: try again later", header.width,
                      header.height));
  }
}

}  // namespace espalier
