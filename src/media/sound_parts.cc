// Where the sounds of joined files begin, which libsndfile does not look for.
// Sources: RFC 3533 (Ogg pages), ISO 11172-3 section 2.4.1.3 (headers of MPEG audio).
#include <cstring>
#include <optional>

#include "media/audio_formats.h"

namespace espalier::media {
namespace {

constexpr size_t kPageHeader = 27;
constexpr uint8_t kFirstPage = 2;

// The size of the Ogg page that the bytes begin with; nothing where they begin with none.
std::optional<size_t> page_size(SoundBytes bytes) {
  if (bytes.size() < kPageHeader || std::memcmp(bytes.data(), "OggS", 4) != 0) return std::nullopt;
  const size_t num_lengths = bytes[26];
  if (bytes.size() < kPageHeader + num_lengths) return std::nullopt;
  size_t size = kPageHeader + num_lengths;
  for (const uint8_t length : bytes.subspan(kPageHeader, num_lengths)) size += length;
  return size;
}

// The size of the frame of layer III that the bytes begin with; nothing where they begin with none.
std::optional<size_t> frame_size(SoundBytes bytes) {
  constexpr int kKilobits[2][15] = {
      {0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320},  // version 1
      {0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160}};     // versions 2 and 2.5
  constexpr int kRates[3] = {44'100, 48'000, 32'000};
  if (bytes.size() < 4 || bytes[0] != 0xff || (bytes[1] & 0xe6) != 0xe2) return std::nullopt;
  const int version = (bytes[1] >> 3) & 3;  // 3: 1, 2: 2, 0: 2.5
  const int kilobits = bytes[2] >> 4, rate = (bytes[2] >> 2) & 3;
  if (version == 1 || rate == 3 || kilobits == 0 || kilobits == 15) return std::nullopt;
  const int hz = kRates[rate] >> (version == 3 ? 0 : version == 2 ? 1 : 2);
  const int slots = (version == 3 ? 144'000 : 72'000) * kKilobits[version == 3 ? 0 : 1][kilobits];
  return static_cast<size_t>(slots / hz + ((bytes[2] >> 1) & 1));
}

}  // namespace

size_t next_ogg_stream(SoundBytes bytes) {
  bool in_sound = false;  // the first pages of streams that go together lie at its begin
  for (size_t at = 0; at < bytes.size();) {
    const auto size = page_size(bytes.subspan(at));
    if (!size) break;
    const bool first = (bytes[at + 5] & kFirstPage) != 0;
    if (first && in_sound) return at;
    in_sound |= !first;
    at += *size;
  }
  return bytes.size();
}

size_t next_mp3_frames(SoundBytes bytes) {
  constexpr int kFrames = 4;  // padding that a decoder leaves has fewer
  for (size_t begin = 0; begin < bytes.size(); ++begin) {
    size_t at = begin;
    int count = 0;
    for (; count < kFrames && at < bytes.size(); ++count) {
      const auto size = frame_size(bytes.subspan(at));
      if (!size) break;
      at += *size;
    }
    if (count == kFrames) return begin;
  }
  return bytes.size();
}

}  // namespace espalier::media
