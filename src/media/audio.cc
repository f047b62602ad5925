#include "media/audio.h"

#include <cmath>
#include <cstring>
#include <new>

#include "media/audio_formats.h"

namespace espalier {
namespace {

using media::SoundBytes;

constexpr int32_t kRateMin = 1000, kRateMax = 192'000;
constexpr int32_t kChannelsMax = 32;

bool sound_begins_with(SoundBytes bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}
bool is_wav(SoundBytes bytes) {
  return sound_begins_with(bytes, "RIFF") && bytes.size() >= 12 &&
         sound_begins_with(bytes.subspan(8), "WAVE");
}
bool is_flac(SoundBytes bytes) { return sound_begins_with(bytes, "fLaC"); }
bool is_ogg(SoundBytes bytes) { return sound_begins_with(bytes, "OggS"); }
// An ID3 tag, or the eleven set bits of a frame of layer III.
bool is_mp3(SoundBytes bytes) {
  if (sound_begins_with(bytes, "ID3")) return true;
  return bytes.size() >= 2 && bytes[0] == 0xff && (bytes[1] & 0xe6) == 0xe2;
}

struct SoundFormat {
  AudioFormat format;
  std::string_view name;
  bool (*matches)(SoundBytes bytes);
  Result<AudioHeader> (*read_header)(SoundBytes bytes);
  Status (*decode)(SoundBytes bytes, const AudioHeader& header, int64_t frames_max,
                   std::vector<float>& samples);
};

constexpr SoundFormat kSoundFormats[] = {
    {AudioFormat::kWav, "WAV", is_wav, media::read_wav_header, media::decode_wav},
    {AudioFormat::kFlac, "FLAC", is_flac, media::read_sound_header, media::decode_sound},
    {AudioFormat::kOgg, "Ogg", is_ogg, media::read_sound_header, media::decode_sound},
    {AudioFormat::kMp3, "MP3", is_mp3, media::read_sound_header, media::decode_sound},
};

Result<const SoundFormat*> find_sound_format(SoundBytes bytes, const AudioLimits& limits) {
  if (bytes.empty()) return fail(invalid_argument("the audio is empty: send a file's bytes"));
  if (std::ssize(bytes) > limits.bytes_max) {
    return fail(invalid_argument(
        "the audio file of {} bytes is above the limit of {}: send it compressed, or in parts",
        bytes.size(), limits.bytes_max));
  }
  for (const SoundFormat& format : kSoundFormats) {
    if (format.matches(bytes)) return &format;
  }
  return fail(
      invalid_argument("the bytes are no audio that is read here: send WAV, FLAC, Ogg or MP3"));
}

Status check_sound(const SoundFormat& format, const AudioHeader& header,
                   const AudioLimits& limits) {
  if (header.sample_rate < kRateMin || header.sample_rate > kRateMax || header.num_channels < 1 ||
      header.num_channels > kChannelsMax) {
    return invalid_argument(
        "{}: {} channels at {} Hz are not read here: send 1 to {} channels at {} to {} Hz",
        format.name, header.num_channels, header.sample_rate, kChannelsMax, kRateMin, kRateMax);
  }
  // Another format than WAV may not state its length.
  if (header.num_frames < 1 && format.format == AudioFormat::kWav)
    return invalid_argument("{}: the file has no samples", format.name);
  if (header.seconds() > limits.seconds_max || header.num_frames > limits.frames_max()) {
    return invalid_argument(
        "{}: {} samples, {:.1f} s at {} Hz, are above the limit of {} s (of 48 kHz at most): send "
        "it in parts",
        format.name, header.num_frames, header.seconds(), header.sample_rate, limits.seconds_max);
  }
  return Status();
}

Result<AudioHeader> read_sound(const SoundFormat& format, SoundBytes bytes,
                               const AudioLimits& limits) {
  auto header = format.read_header(bytes);
  if (!header) return fail(header.error().with_context(format.name));
  header->format = format.format;
  ESP_RETURN_IF_ERROR(check_sound(format, *header, limits));
  return header;
}

Result<Audio> decode_checked(const SoundFormat& format, SoundBytes bytes, const AudioHeader& header,
                             const AudioLimits& limits) {
  Audio audio{.sample_rate = header.sample_rate, .samples = {}};
  const double seconds_frames = limits.seconds_max * header.sample_rate;
  const auto frames_max = seconds_frames < static_cast<double>(limits.frames_max())
                              ? static_cast<int64_t>(seconds_frames)
                              : limits.frames_max();
  audio.samples.reserve(static_cast<size_t>(header.num_frames));
  if (Status status = format.decode(bytes, header, frames_max, audio.samples); !status.ok()) {
    return fail(status.with_context(format.name));
  }
  if (audio.samples.empty()) {
    return fail(invalid_argument("{}: the file has no samples", format.name));
  }
  return audio;
}

}  // namespace

namespace media {

Status append_mixed(std::span<const float> frames, int32_t num_channels,
                    std::vector<float>& samples) {
  const auto channels = static_cast<size_t>(num_channels);
  for (size_t at = 0; at + channels <= frames.size(); at += channels) {
    double sum = 0;
    for (size_t c = 0; c < channels; ++c) sum += static_cast<double>(frames[at + c]);
    const auto mean = static_cast<float>(sum / num_channels);
    if (!std::isfinite(mean)) {
      return invalid_argument("sample {} is not finite: save the audio anew", samples.size());
    }
    samples.push_back(mean);
  }
  return Status();
}

}  // namespace media

std::string_view audio_format_name(AudioFormat format) {
  return kSoundFormats[static_cast<size_t>(format)].name;
}

std::optional<AudioFormat> recognise_audio(SoundBytes bytes) {
  for (const SoundFormat& format : kSoundFormats) {
    if (format.matches(bytes)) return format.format;
  }
  return std::nullopt;
}

Result<AudioHeader> read_audio_header(SoundBytes bytes, const AudioLimits& limits) {
  ESP_ASSIGN_OR_RETURN(const SoundFormat* format, find_sound_format(bytes, limits));
  return read_sound(*format, bytes, limits);
}

Result<Audio> decode_audio(SoundBytes bytes, const AudioLimits& limits) {
  ESP_ASSIGN_OR_RETURN(const SoundFormat* format, find_sound_format(bytes, limits));
  ESP_ASSIGN_OR_RETURN(const AudioHeader header, read_sound(*format, bytes, limits));
  try {
    return decode_checked(*format, bytes, header, limits);
  } catch (const std::bad_alloc&) {  // of the standard library's containers
    return fail(error(StatusCode::kResourceExhausted,
                      "no memory for audio of {} samples: try again later", header.num_frames));
  }
}

}  // namespace espalier
