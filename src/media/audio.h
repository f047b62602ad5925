// Sound from bytes: WAV, FLAC, Ogg (Vorbis, Opus) and MP3 become one channel of float samples.
//
// The bytes are a client's. The length that the file's header states is checked against the limits
// before memory for samples is allocated. Of a format other than WAV it may be an estimate, or be
// missing: such a file is decoded to its end, and the limits are checked while it is. WAV is read
// by own code; the other formats by libsndfile, which is loaded when such a file first arrives.
//
// The functions are pure and thread-safe. They fail with kInvalidArgument, with kUnimplemented for
// a format whose library is not installed, and with kResourceExhausted where the system has no
// memory. decode_audio() fails with kFailedPrecondition where more sound comes than the limits
// allow and the header did not state it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier {

enum class AudioFormat : uint8_t { kWav, kFlac, kOgg, kMp3 };
std::string_view audio_format_name(AudioFormat format);  // "FLAC"

struct AudioLimits {
  int64_t bytes_max = int64_t{64} << 20;  // of a file
  double seconds_max = 3600;
  // Of a file, so that a high rate does not demand more memory: 48 kHz may last seconds_max.
  int64_t frames_max() const { return static_cast<int64_t>(seconds_max * 48'000); }
};

struct AudioHeader {
  AudioFormat format = AudioFormat::kWav;
  int32_t sample_rate = 0;  // Hz
  int32_t num_channels = 0;
  int64_t num_frames = 0;  // samples of one channel; 0: the file does not state them

  double seconds() const { return static_cast<double>(num_frames) / sample_rate; }
};

// samples: in [-1, 1] where the file is not louder. Owns its memory.
struct Audio {
  int32_t sample_rate = 0;  // Hz
  std::vector<float> samples;

  double seconds() const { return static_cast<double>(samples.size()) / sample_rate; }
};

// By the first bytes; nothing where they are of no format that is read here.
std::optional<AudioFormat> recognise_audio(std::span<const uint8_t> bytes);

// Recognises the format by its first bytes and reads the header. Fails where a limit is exceeded.
Result<AudioHeader> read_audio_header(std::span<const uint8_t> bytes, const AudioLimits& limits);

// All channels mixed to one, each with the same weight, at the file's own rate.
Result<Audio> decode_audio(std::span<const uint8_t> bytes, const AudioLimits& limits);

}  // namespace espalier
