// The stable name of a page of keys and values: the same in every process that runs the same model
// with the same KV layout. cache/page_name.h specifies how it is computed.
#pragma once

#include <array>
#include <compare>
#include <cstdint>

namespace espalier {

// 128 bits. Plain data. All zeros is no name: the parent of a prefix's first page.
struct PageName {
  std::array<uint8_t, 16> bytes{};

  bool empty() const { return *this == PageName{}; }
  // The first 8 bytes as a big-endian number: the block hash of the KV events.
  uint64_t prefix64() const {
    uint64_t value = 0;
    for (size_t i = 0; i < 8; ++i) value = value << 8 | bytes[i];
    return value;
  }
  friend auto operator<=>(const PageName&, const PageName&) = default;
};

}  // namespace espalier
