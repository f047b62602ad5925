// The log-mel spectrogram that Whisper's encoder reads, as transformers' WhisperFeatureExtractor
// makes it: a Hann window of 400 samples every 160, powers of its Fourier transform, triangular
// filters on Slaney's mel scale with Slaney's normalisation, the decimal logarithm, at most 8 below
// the whole sound's largest value, shifted and scaled to about [-1, 1].
//
// Computed in double, so a value differs from the reference's by the reference's own rounding.
// Pure and thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace espalier {

struct MelSpec {
  int32_t num_mels = 80;
  int32_t sample_rate = 16'000;  // Hz
  int32_t window = 400;          // samples of a frame; its factors are 2, 3 and 5
  int32_t hop = 160;             // samples between two frames
};

// values: [num_mels, num_frames]. Owns its memory.
struct MelSpectrogram {
  int32_t num_mels = 0;
  int64_t num_frames = 0;
  std::vector<float> values;

  std::span<const float> row(int32_t mel) const {
    return {values.data() + mel * num_frames, static_cast<size_t>(num_frames)};
  }
};

// A frame for each whole hop of the samples: frame i is centred on sample i * hop, and the sound is
// mirrored at its ends. REQUIRES: more than window / 2 samples.
MelSpectrogram log_mel(std::span<const float> samples, const MelSpec& spec);

// The weights of the filters, [num_mels, window / 2 + 1].
std::vector<double> mel_filters(const MelSpec& spec);

}  // namespace espalier
