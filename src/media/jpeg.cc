// JPEG by libjpeg-turbo. Its errors leave by longjmp, so the functions that set the jump hold no
// object with a destructor: all state lies in a JpegReader of the caller.
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include <jpeglib.h>

#include <jerror.h>

#include "media/formats.h"

namespace espalier::media {
namespace {

// A progressive file may contain any number of scans, each as costly as the whole picture. Encoders
// write about ten.
constexpr int kScansMax = 100;
constexpr int kExifMarker = JPEG_APP0 + 1;
constexpr std::string_view kExifName("Exif\0\0", 6);

struct JpegReader {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX] = "";

  ~JpegReader() { jpeg_destroy_decompress(&info); }
};

JpegReader& reader_of(j_common_ptr info) { return *static_cast<JpegReader*>(info->client_data); }

[[noreturn]] void leave(j_common_ptr info) {
  JpegReader& reader = reader_of(info);
  info->err->format_message(info, reader.message);
  std::longjmp(reader.jump, 1);
}

[[noreturn]] void leave_with(j_common_ptr info, const char* message) {
  JpegReader& reader = reader_of(info);
  std::snprintf(reader.message, sizeof(reader.message), "%s", message);
  std::longjmp(reader.jump, 1);
}

// Damaged data within a scan is decoded as far as possible, as other readers do; a file that ends
// early is refused.
void on_message(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) {
    leave_with(info, "the file ends before its picture does");
  }
}

void on_progress(j_common_ptr info) {
  const auto& reading = *reinterpret_cast<j_decompress_ptr>(info);
  if (reading.input_scan_number > kScansMax) leave_with(info, "the file has too many scans");
}

void prepare(JpegReader& reader) {
  reader.info.err = jpeg_std_error(&reader.errors);
  reader.errors.error_exit = leave;
  reader.errors.emit_message = on_message;
  reader.info.client_data = &reader;
}

bool read_header(JpegReader& reader, Bytes bytes) {
  prepare(reader);
  if (setjmp(reader.jump) != 0) return false;
  jpeg_create_decompress(&reader.info);
  reader.info.client_data = &reader;
  jpeg_mem_src(&reader.info, bytes.data(), bytes.size());
  jpeg_save_markers(&reader.info, kExifMarker, 0xffff);
  jpeg_read_header(&reader.info, TRUE);
  return true;
}

bool is_cmyk(const jpeg_decompress_struct& info) {
  return info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
}

// REQUIRES: the header was read. Rows are [components] bytes a pixel.
bool start(JpegReader& reader) {
  if (setjmp(reader.jump) != 0) return false;
  reader.progress.progress_monitor = on_progress;
  reader.info.progress = &reader.progress;
  reader.info.out_color_space = is_cmyk(reader.info) ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&reader.info);
  return true;
}

bool read_row(JpegReader& reader, uint8_t* row) {
  if (setjmp(reader.jump) != 0) return false;
  JSAMPROW rows[1] = {row};
  jpeg_read_scanlines(&reader.info, rows, 1);
  return true;
}

uint8_t times(int a, int b) {  // a * b / 255, rounded
  const int product = a * b + 128;
  return static_cast<uint8_t>((product + (product >> 8)) >> 8);
}

// inverted: 255 is no ink, as Adobe's programs write it.
void cmyk_to_rgb(const uint8_t* cmyk, int32_t width, bool inverted, uint8_t* rgb) {
  const int flip = inverted ? 255 : 0;
  for (int32_t i = 0; i < width; ++i, cmyk += 4, rgb += 3) {
    const int light = 255 - (cmyk[3] ^ flip);
    for (int c = 0; c < 3; ++c) rgb[c] = static_cast<uint8_t>(light - times(cmyk[c] ^ flip, light));
  }
}

Status damaged(const JpegReader& reader) {
  return invalid_argument("the file is damaged ({}): save the picture anew", reader.message);
}

int32_t orientation_of(const jpeg_decompress_struct& info) {
  for (const jpeg_marker_struct* marker = info.marker_list; marker != nullptr;
       marker = marker->next) {
    const Bytes data(marker->data, marker->data_length);
    if (marker->marker != kExifMarker || data.size() < kExifName.size()) continue;
    if (std::memcmp(data.data(), kExifName.data(), kExifName.size()) != 0) continue;
    return exif_orientation(data.subspan(kExifName.size()));
  }
  return 1;
}

}  // namespace

Result<PictureSize> read_jpeg_size(Bytes bytes) {
  JpegReader reader;
  if (!read_header(reader, bytes)) return fail(damaged(reader));
  return PictureSize{static_cast<int32_t>(reader.info.image_width),
                     static_cast<int32_t>(reader.info.image_height)};
}

Status decode_jpeg(Bytes bytes, Image& image) {
  JpegReader reader;
  if (!read_header(reader, bytes) || !start(reader)) return damaged(reader);
  const jpeg_decompress_struct& info = reader.info;
  if (info.output_width != static_cast<JDIMENSION>(image.width) ||
      info.output_height != static_cast<JDIMENSION>(image.height)) {
    return invalid_argument("the file's picture is not of the size that its header states");
  }
  const bool cmyk = info.out_color_space == JCS_CMYK;
  std::vector<uint8_t> inks(cmyk ? static_cast<size_t>(image.width) * 4 : 0);
  for (int32_t y = 0; y < image.height; ++y) {
    if (!read_row(reader, cmyk ? inks.data() : row_of(image, y))) return damaged(reader);
    if (cmyk) {
      cmyk_to_rgb(inks.data(), image.width, info.saw_Adobe_marker != 0, row_of(image, y));
    }
  }
  image = oriented(std::move(image), orientation_of(info));
  return Status();
}

}  // namespace espalier::media
