// WAV: PCM of 8, 16, 24 and 32 bits, and IEEE float of 32 and 64 bits, in any number of channels.
// Source: Microsoft's WAVEFORMATEX and WAVEFORMATEXTENSIBLE, RIFF's chunks.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>

#include "media/audio_formats.h"

namespace espalier::media {
namespace {

constexpr uint32_t kPcm = 1, kFloat = 3, kExtensible = 0xfffe;
constexpr uint64_t kFormatBytes = 16;      // of a format chunk without extension
constexpr uint64_t kExtensibleBytes = 40;  // with the sub-format's GUID, whose begin is a tag
// A program that writes into a pipe cannot state how long its data are.
constexpr uint32_t kUnknownSize = 0xffffffff;

uint32_t little_endian(SoundBytes bytes, uint64_t at, size_t count) {
  uint32_t value = 0;
  for (size_t i = count; i-- > 0;) value = value << 8 | bytes[at + i];
  return value;
}

struct WavLayout {
  AudioHeader header;
  uint32_t tag = 0;
  uint32_t sample_bytes = 0;
  uint64_t data_begin = 0;
};

struct WavChunk {
  uint32_t name = 0;
  uint64_t begin = 0, size = 0;  // of the data
};

constexpr uint32_t chunk_name(const char (&text)[5]) {
  uint32_t name = 0;
  for (size_t i = 4; i-- > 0;) name = name << 8 | static_cast<uint8_t>(text[i]);
  return name;
}

// The next chunk at `at`, which moves behind it; nothing at the file's end.
std::optional<WavChunk> next_chunk(SoundBytes bytes, uint64_t& at) {
  if (at + 8 > bytes.size()) return std::nullopt;
  const WavChunk chunk{little_endian(bytes, at, 4), at + 8, little_endian(bytes, at + 4, 4)};
  at = chunk.begin + chunk.size + (chunk.size & 1);
  return chunk;
}

Status read_format(SoundBytes bytes, const WavChunk& chunk, WavLayout& layout) {
  if (chunk.size < kFormatBytes || chunk.begin + chunk.size > bytes.size()) {
    return invalid_argument("the format chunk is damaged: save the audio anew");
  }
  const uint64_t at = chunk.begin;
  layout.tag = little_endian(bytes, at, 2);
  const uint32_t bits = little_endian(bytes, at + 14, 2), block = little_endian(bytes, at + 12, 2);
  if (layout.tag == kExtensible && chunk.size >= kExtensibleBytes) {
    layout.tag = little_endian(bytes, at + 24, 2);
  }
  const bool pcm = layout.tag == kPcm && (bits == 8 || bits == 16 || bits == 24 || bits == 32);
  const bool real = layout.tag == kFloat && (bits == 32 || bits == 64);
  if (!pcm && !real) {
    return invalid_argument(
        "format {} of {} bits is not read here: save the audio as PCM of 16 bits", layout.tag,
        bits);
  }
  layout.sample_bytes = bits / 8;
  layout.header.num_channels = static_cast<int32_t>(little_endian(bytes, at + 2, 2));
  const uint32_t rate = little_endian(bytes, at + 4, 4);
  layout.header.sample_rate = static_cast<int32_t>(
      std::min<uint32_t>(rate, static_cast<uint32_t>(std::numeric_limits<int32_t>::max())));
  if (layout.header.num_channels < 1 ||
      block != layout.sample_bytes * static_cast<uint32_t>(layout.header.num_channels)) {
    return invalid_argument("{} channels in frames of {} bytes do not agree: save the audio anew",
                            layout.header.num_channels, block);
  }
  return Status();
}

Result<WavLayout> read_wav_layout(SoundBytes bytes) {
  WavLayout layout;
  uint64_t at = 12;  // behind RIFF, the size and WAVE
  while (const auto chunk = next_chunk(bytes, at)) {
    if (chunk->name == chunk_name("fmt ")) {
      ESP_RETURN_IF_ERROR(read_format(bytes, *chunk, layout));
    } else if (chunk->name == chunk_name("data")) {
      if (layout.sample_bytes == 0) break;  // the format comes first
      const uint64_t there = bytes.size() - chunk->begin;
      const bool unknown = chunk->size == kUnknownSize || chunk->size == 0;
      if (!unknown && chunk->size > there) {
        return fail(invalid_argument(
            "the file ends {} bytes before its data do: send the whole file", chunk->size - there));
      }
      const uint64_t frame_bytes =
          uint64_t{layout.sample_bytes} * static_cast<uint64_t>(layout.header.num_channels);
      layout.header.num_frames =
          static_cast<int64_t>((unknown ? there : chunk->size) / frame_bytes);
      layout.data_begin = chunk->begin;
      return layout;
    }
  }
  return fail(invalid_argument("the file has no {} chunk: save the audio anew",
                               layout.sample_bytes == 0 ? "format" : "data"));
}

// A sample of whole numbers, with full scale at 1.
float whole_sample(const uint8_t* from, size_t count) {
  if (count == 1) return static_cast<float>(int32_t{*from} - 128) / 128.0f;
  uint32_t value = 0;  // at the upper end of 32 bits, so that the sign is in its place
  for (size_t i = 0; i < count; ++i) value |= uint32_t{from[i]} << (8 * (4 - count + i));
  return static_cast<float>(static_cast<double>(static_cast<int32_t>(value)) / 2147483648.0);
}

float real_sample(const uint8_t* from, size_t count) {
  uint64_t bits = 0;
  for (size_t i = count; i-- > 0;) bits = bits << 8 | from[i];
  if (count == 4) return std::bit_cast<float>(static_cast<uint32_t>(bits));
  return static_cast<float>(std::bit_cast<double>(bits));
}

}  // namespace

Result<AudioHeader> read_wav_header(SoundBytes bytes) {
  ESP_ASSIGN_OR_RETURN(const WavLayout layout, read_wav_layout(bytes));
  return layout.header;
}

// REQUIRES: read_wav_header() took the bytes and gave this header, so all frames are there.
// The header's length is that of the bytes, which the caller has checked.
Status decode_wav(SoundBytes bytes, const AudioHeader& header, int64_t,
                  std::vector<float>& samples) {
  ESP_ASSIGN_OR_RETURN(const WavLayout layout, read_wav_layout(bytes));
  const auto channels = static_cast<size_t>(header.num_channels);
  const uint8_t* from = bytes.data() + layout.data_begin;
  std::vector<float> frames;
  constexpr int64_t kFramesAtOnce = 4096;
  for (int64_t done = 0; done < header.num_frames; done += kFramesAtOnce) {
    const auto count = static_cast<size_t>(std::min(kFramesAtOnce, header.num_frames - done));
    frames.resize(count * channels);
    for (float& sample : frames) {
      sample = layout.tag == kFloat ? real_sample(from, layout.sample_bytes)
                                    : whole_sample(from, layout.sample_bytes);
      from += layout.sample_bytes;
    }
    ESP_RETURN_IF_ERROR(append_mixed(frames, header.num_channels, samples));
  }
  return Status();
}

}  // namespace espalier::media
