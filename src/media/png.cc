// PNG by libpng. Its errors leave by longjmp, so the functions that set the jump hold no object
// with a destructor: all state lies in a PngReader of the caller.
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include <png.h>

#include "media/formats.h"

namespace espalier::media {
namespace {

struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  Bytes rest;  // what was not read yet
  std::jmp_buf jump;
  char message[128] = "there is no memory for it";

  ~PngReader() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void leave(png_structp png, png_const_charp message) {
  auto& reader = *static_cast<PngReader*>(png_get_error_ptr(png));
  std::snprintf(reader.message, sizeof(reader.message), "%s", message);
  std::longjmp(reader.jump, 1);
}

void ignore_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep to, size_t count) {
  auto& reader = *static_cast<PngReader*>(png_get_io_ptr(png));
  if (reader.rest.size() < count) png_error(png, "the file ends before its picture does");
  std::memcpy(to, reader.rest.data(), count);
  reader.rest = reader.rest.subspan(count);
}

// Chunks beside the picture are skipped, not decompressed: they may be bombs of their own. tRNS
// follows as it concerns pixels, and is dropped with the alpha channel.
bool read_header(PngReader& reader, Bytes bytes) {
  reader.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader, leave, ignore_warning);
  if (reader.png == nullptr) return false;
  if (setjmp(reader.jump) != 0) return false;
  reader.info = png_create_info_struct(reader.png);
  if (reader.info == nullptr) return false;
  reader.rest = bytes;
  png_set_read_fn(reader.png, &reader, read_bytes);
  png_set_keep_unknown_chunks(reader.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(reader.png, reader.info);
  return true;
}

// Rows of three bytes a pixel, whatever the file has.
bool start(PngReader& reader) {
  if (setjmp(reader.jump) != 0) return false;
  const png_byte color = png_get_color_type(reader.png, reader.info);
  if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(reader.png);
  if (color == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(reader.png);
  png_set_strip_16(reader.png);
  png_set_strip_alpha(reader.png);
  if ((color & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(reader.png);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  return true;
}

bool read_rows(PngReader& reader, png_bytepp rows) {
  if (setjmp(reader.jump) != 0) return false;
  png_read_image(reader.png, rows);
  return true;
}

Status damaged(const PngReader& reader) {
  return invalid_argument("the file is damaged ({}): save the picture anew", reader.message);
}

}  // namespace

Result<PictureSize> read_png_size(Bytes bytes) {
  PngReader reader;
  if (!read_header(reader, bytes)) return fail(damaged(reader));
  return PictureSize{static_cast<int32_t>(png_get_image_width(reader.png, reader.info)),
                     static_cast<int32_t>(png_get_image_height(reader.png, reader.info))};
}

Status decode_png(Bytes bytes, Image& image) {
  PngReader reader;
  if (!read_header(reader, bytes) || !start(reader)) return damaged(reader);
  if (png_get_rowbytes(reader.png, reader.info) != static_cast<size_t>(image.width) * 3 ||
      png_get_image_height(reader.png, reader.info) != static_cast<uint32_t>(image.height)) {
    return invalid_argument("the file's picture is not of the size that its header states");
  }
  std::vector<png_bytep> rows;
  for (int32_t y = 0; y < image.height; ++y) rows.push_back(row_of(image, y));
  if (!read_rows(reader, rows.data())) return damaged(reader);
  return Status();
}

}  // namespace espalier::media
