// The decoders that audio.h chooses among. Internal to the room.
//
// A header function allocates nothing that depends on the file. A decode function appends to
// `samples`, whose memory the caller has reserved after it checked the header; it fails with
// kFailedPrecondition where more than frames_max come, which a header need not state. Messages lack
// the format's name, which the caller adds. All are pure and thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "media/audio.h"

namespace espalier::media {

using SoundBytes = std::span<const uint8_t>;

// `format` of the header is the caller's to set.
Result<AudioHeader> read_wav_header(SoundBytes bytes);
Status decode_wav(SoundBytes bytes, const AudioHeader& header, int64_t frames_max,
                  std::vector<float>& samples);

// FLAC, Ogg and MP3, by libsndfile. kUnimplemented where it is not installed, or is too old to
// read the format.
Result<AudioHeader> read_sound_header(SoundBytes bytes);
Status decode_sound(SoundBytes bytes, const AudioHeader& header, int64_t frames_max,
                    std::vector<float>& samples);

// Where another sound begins, behind the first one of joined Ogg files; the size where none does.
size_t next_ogg_stream(SoundBytes bytes);
// Where four frames of an MP3 lie one behind another; the size where none do.
size_t next_mp3_frames(SoundBytes bytes);

// Appends the mean of each frame's channels. frames: [n, num_channels]. Fails where a sample is
// NaN or infinite.
Status append_mixed(std::span<const float> frames, int32_t num_channels,
                    std::vector<float>& samples);

}  // namespace espalier::media
