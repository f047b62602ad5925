// The files of the disk tier. For each scope (a model and a layout of its keys and values) a folder
// has two of them, named by a digest of the scope:
//
//   DIGEST.index   header | buckets of names: which page should lie in which slot, and its last use
//   DIGEST.pages   slots: slot header | the page's bytes | padding to kBlockAlignment
//
// The slot decides and the index is a hint. A slot's header has the page's name, the scope's digest
// and a checksum of both and the bytes, so a slot that is half written, written by two processes at
// once, moved, or damaged is no page of any name; then the page is absent. Nothing is written in an
// order that matters, so a process can be killed between any two instructions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "seams/page_name.h"

namespace espalier {

using ScopeDigest = std::array<uint8_t, 16>;
ScopeDigest digest_of_scope(std::string_view scope);
std::string scope_file_name(const ScopeDigest& digest);  // 32 hexadecimal digits

struct SlotHeader {
  static constexpr uint64_t kMagic = 0x3167617071736531;
  static constexpr uint32_t kVersion = 1;
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t reserved = 0;
  PageName name;
  ScopeDigest scope{};
  std::array<uint8_t, 16> checksum{};  // XXH3, 128 bits, of all before it and of the page
};
inline constexpr int64_t kSlotHeaderBytes = 64;
static_assert(sizeof(SlotHeader) == kSlotHeaderBytes);

// The bytes of a slot whose page has so many.
int64_t slot_bytes_for(int64_t page_bytes);

// `slot` begins with room for the header; the page's bytes follow. Writes the header.
void seal_slot(std::span<std::byte> slot, int64_t page_bytes, const PageName& name,
               const ScopeDigest& scope);
// Whether the slot has the page `name` of this scope, undamaged.
bool slot_holds(std::span<const std::byte> slot, int64_t page_bytes, const PageName& name,
                const ScopeDigest& scope);

}  // namespace espalier
