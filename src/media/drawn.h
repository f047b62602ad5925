// Pictures for this room's tests: those that tools/goldens/make_media_goldens.py draws.
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "media/image.h"

namespace espalier::test {

inline const std::string kMediaGoldens = "tests/golden/media/";

// A function of the size alone.
inline Image drawn(int32_t width, int32_t height) {
  Image image{.width = width, .height = height, .rgb = {}};
  for (int32_t y = 0; y < height; ++y) {
    for (int32_t x = 0; x < width; ++x) {
      for (int32_t c = 0; c < 3; ++c) {
        const auto mixed = static_cast<uint32_t>(uint64_t{2654435761} * static_cast<uint64_t>(x) +
                                                 uint64_t{40503} * static_cast<uint64_t>(y) +
                                                 uint64_t{97} * static_cast<uint64_t>(c));
        const int32_t noise = static_cast<int32_t>(mixed / 65536 % 64);
        const int32_t ramp = (x * (c + 2) + y * 3) % 256;
        const int32_t edge = (x / 5 + y / 7 + c) % 4 == 0 ? 255 : 0;
        image.rgb.push_back(static_cast<uint8_t>((x + y) % 9 < 3 ? edge : (ramp + noise) % 256));
      }
    }
  }
  return image;
}

// FNV-1a, 64 bits.
inline uint64_t fnv(const std::vector<uint8_t>& bytes) {
  uint64_t value = 0xcbf29ce484222325;
  for (const uint8_t byte : bytes) value = (value ^ byte) * 0x100000001b3;
  return value;
}

inline std::vector<uint8_t> read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace espalier::test
