#include "tiers/disk_format.h"

#define XXH_INLINE_ALL
#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>

#include "base/check.h"
#include "tiers/block_io.h"

namespace espalier {
namespace {

std::array<uint8_t, 16> canonical(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  std::array<uint8_t, 16> out{};
  std::memcpy(out.data(), bytes.digest, out.size());
  return out;
}

std::array<uint8_t, 16> checksum_of(const SlotHeader& header, std::span<const std::byte> page) {
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  XXH3_128bits_update(&state, &header, offsetof(SlotHeader, checksum));
  XXH3_128bits_update(&state, page.data(), page.size());
  return canonical(XXH3_128bits_digest(&state));
}

}  // namespace

ScopeDigest digest_of_scope(std::string_view scope) {
  return canonical(XXH3_128bits(scope.data(), scope.size()));
}

std::string scope_file_name(const ScopeDigest& digest) {
  std::string name;
  for (const uint8_t byte : digest) name += fmt::format("{:02x}", byte);
  return name;
}

int64_t slot_bytes_for(int64_t page_bytes) {
  return (kSlotHeaderBytes + page_bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

void seal_slot(std::span<std::byte> slot, int64_t page_bytes, const PageName& name,
               const ScopeDigest& scope) {
  SlotHeader header{.name = name, .scope = scope};
  header.checksum =
      checksum_of(header, slot.subspan(kSlotHeaderBytes, static_cast<size_t>(page_bytes)));
  std::memcpy(slot.data(), &header, sizeof(header));
}

bool slot_holds(std::span<const std::byte> slot, int64_t page_bytes, const PageName& name,
                const ScopeDigest& scope) {
  ESP_CHECK(std::ssize(slot) >= kSlotHeaderBytes + page_bytes);
  SlotHeader header;
  std::memcpy(&header, slot.data(), sizeof(header));
  return header.magic == SlotHeader::kMagic && header.version == SlotHeader::kVersion &&
         header.name == name && header.scope == scope &&
         header.checksum ==
             checksum_of(header, slot.subspan(kSlotHeaderBytes, static_cast<size_t>(page_bytes)));
}

}  // namespace espalier
