// Unsigned integers as big-endian bytes, which network formats use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

// Appends the low `size` bytes of `value`, at most 8.
inline void append_big_endian(std::string& out, uint64_t value, size_t size = sizeof(uint64_t)) {
  for (size_t i = size; i-- > 0;) out += static_cast<char>(value >> (8 * i) & 0xff);
}

// REQUIRES at most 8 bytes.
inline uint64_t read_big_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

}  // namespace espalier
