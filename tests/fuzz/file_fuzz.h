// Headers that are read from a mapped file: a file in memory, under a path.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/check.h"

namespace espalier::fuzz {

inline std::filesystem::path file_of(const uint8_t* data, size_t size) {
  static const int file = memfd_create("fuzz", 0);
  ESP_CHECK(file >= 0 && ftruncate(file, 0) == 0);
  ESP_CHECK(pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  return "/proc/self/fd/" + std::to_string(file);
}

}  // namespace espalier::fuzz
