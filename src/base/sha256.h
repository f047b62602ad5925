// SHA-256 (FIPS 180-4), for names that every process and every tenant must agree on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace espalier {

// Hashes bytes that come in parts. Not thread-safe; owns its state; allocates nothing.
class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  // The digest of all bytes so far. REQUIRES that the object is not used afterwards.
  Digest finish();

 private:
  static constexpr size_t kBlockBytes = 64;
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, kBlockBytes> block_{};
  size_t num_in_block_ = 0;
  uint64_t num_bytes_ = 0;
};

}  // namespace espalier
