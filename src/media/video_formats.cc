// Sources: ISO 14496-12 section 4.3 (ftyp), RFC 8794 (EBML), Microsoft's AVI RIFF reference,
// RFC 3533 (Ogg), ISO 13818-1 (transport and program streams).
#include <cstring>
#include <string_view>

#include "media/video.h"

namespace espalier {

bool recognise_video(std::span<const uint8_t> bytes) {
  const auto has = [&](size_t at, std::string_view magic) {
    return bytes.size() >= at + magic.size() &&
           std::memcmp(bytes.data() + at, magic.data(), magic.size()) == 0;
  };
  constexpr size_t kTransportPacket = 188;
  for (const std::string_view box : {"ftyp", "moov", "mdat", "free", "wide", "skip"})
    if (has(4, box)) return true;
  return has(0, "\x1a\x45\xdf\xa3") || (has(0, "RIFF") && has(8, "AVI ")) || has(0, "OggS") ||
         has(0, std::string_view("\0\0\1\xba", 4)) || (has(0, "G") && has(kTransportPacket, "G"));
}

}  // namespace espalier
