// The first frame of a GIF, by giflib.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <gif_lib.h>

#include "media/formats.h"

namespace espalier::media {
namespace {

struct GifReader {
  GifFileType* file = nullptr;
  Bytes rest;  // what was not read yet

  ~GifReader() {
    if (file != nullptr) DGifCloseFile(file, nullptr);
  }
};

int read_bytes(GifFileType* file, GifByteType* to, int count) {
  auto& reader = *static_cast<GifReader*>(file->UserData);
  const size_t taken = std::min(static_cast<size_t>(std::max(count, 0)), reader.rest.size());
  std::memcpy(to, reader.rest.data(), taken);
  reader.rest = reader.rest.subspan(taken);
  return static_cast<int>(taken);
}

Status damaged(int code) {
  const char* reason = GifErrorString(code);
  return invalid_argument("the file is damaged ({}): save the picture anew",
                          reason != nullptr ? reason : "it ends early");
}
Status damaged(const GifReader& reader) { return damaged(reader.file->Error); }

Status open(GifReader& reader, Bytes bytes) {
  reader.rest = bytes;
  int code = 0;
  reader.file = DGifOpen(&reader, read_bytes, &code);
  return reader.file != nullptr ? Status() : damaged(code);
}

// Reads up to the first frame. transparent: its index that leaves the background, or -1.
Status find_frame(GifReader& reader, int& transparent) {
  transparent = -1;
  while (true) {
    GifRecordType record = UNDEFINED_RECORD_TYPE;
    if (DGifGetRecordType(reader.file, &record) == GIF_ERROR) return damaged(reader);
    if (record == IMAGE_DESC_RECORD_TYPE) break;
    if (record != EXTENSION_RECORD_TYPE) return invalid_argument("the file has no frame");
    int code = 0;
    GifByteType* block = nullptr;
    if (DGifGetExtension(reader.file, &code, &block) == GIF_ERROR) return damaged(reader);
    while (block != nullptr) {
      GraphicsControlBlock control;
      if (code == GRAPHICS_EXT_FUNC_CODE &&
          DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK) {
        transparent = control.TransparentColor;
      }
      if (DGifGetExtensionNext(reader.file, &block) == GIF_ERROR) return damaged(reader);
    }
  }
  return DGifGetImageDesc(reader.file) == GIF_ERROR ? damaged(reader) : Status();
}

using Palette = std::array<std::array<uint8_t, 3>, 256>;

// Indices behind the file's palette are black.
Palette palette_of(const GifFileType& file) {
  Palette palette{};
  const ColorMapObject* map = file.Image.ColorMap != nullptr ? file.Image.ColorMap : file.SColorMap;
  for (int i = 0; map != nullptr && i < std::min(map->ColorCount, 256); ++i) {
    const GifColorType& color = map->Colors[i];
    palette[static_cast<size_t>(i)] = {color.Red, color.Green, color.Blue};
  }
  return palette;
}

// The rows of a frame in the order in which the file has them.
std::vector<int32_t> row_order(int32_t height, bool interlaced) {
  struct Pass {
    int32_t first, step;
  };
  static constexpr Pass kPasses[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}};
  std::vector<int32_t> rows;
  for (const Pass& pass : kPasses) {
    if (!interlaced && pass.first != 0) break;
    for (int32_t y = pass.first; y < height; y += interlaced ? pass.step : 1) rows.push_back(y);
  }
  return rows;
}

}  // namespace

Result<PictureSize> read_gif_size(Bytes bytes) {
  GifReader reader;
  ESP_RETURN_IF_ERROR(open(reader, bytes));
  return PictureSize{reader.file->SWidth, reader.file->SHeight};
}

Status decode_gif(Bytes bytes, Image& image) {
  GifReader reader;
  ESP_RETURN_IF_ERROR(open(reader, bytes));
  int transparent = -1;
  ESP_RETURN_IF_ERROR(find_frame(reader, transparent));
  const GifImageDesc& frame = reader.file->Image;
  if (frame.Left < 0 || frame.Top < 0 || frame.Width < 1 || frame.Height < 1 ||
      frame.Left + frame.Width > image.width || frame.Top + frame.Height > image.height) {
    return invalid_argument("the first frame lies outside the picture: save the picture anew");
  }
  const Palette palette = palette_of(*reader.file);
  // What the frame leaves out has the transparent colour, or the palette's first.
  const auto& background = palette[static_cast<size_t>(std::clamp(transparent, 0, 255))];
  for (size_t i = 0; i < image.rgb.size(); ++i) image.rgb[i] = background[i % 3];
  std::vector<uint8_t> line(static_cast<size_t>(frame.Width));
  for (const int32_t y : row_order(frame.Height, frame.Interlace)) {
    if (DGifGetLine(reader.file, line.data(), frame.Width) == GIF_ERROR) return damaged(reader);
    uint8_t* to = row_of(image, frame.Top + y) + static_cast<ptrdiff_t>(frame.Left) * 3;
    for (const uint8_t index : line) to = std::copy_n(palette[index].begin(), 3, to);
  }
  return Status();
}

}  // namespace espalier::media
