// What turns a sound into the input of an encoder of sounds: its spectrogram, and the first of the
// encoder's two convolutions. The second one is the program's first matrix, whose row reads three
// neighbours of the first one's result; so the host computes what is a sixth of the work, and the
// program stays a list of operations over rows.
//
// Immutable once loaded; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "media/audio.h"
#include "models/decoder_spec.h"
#include "models/model.h"

namespace espalier {

class SoundStem {
 public:
  // weights: [width, mels, 3] as the checkpoint has them; bias: [width].
  SoundStem(const SoundSpec& spec, int32_t width, std::span<const float> weights,
            std::span<const float> bias);

  // Rows of the program for a sound of so many samples at the spectrogram's rate: one for each two
  // frames. kInvalidArgument where it is too short for a row of the prompt, or longer than the
  // model reads.
  Result<int32_t> num_rows(int64_t num_samples) const;
  // Samples that a sound has at the spectrogram's rate.
  int64_t resampled(const Audio& audio) const;

  // The program's input, [num_rows, width, 3]. Fails as num_rows() does.
  Result<std::vector<float>> rows_of(const Audio& audio) const;

 private:
  void convolve(const float* frames, float* out) const;

  const SoundSpec spec_;
  const size_t width_;
  std::vector<float> weights_;  // [3, mels, width]
  const std::vector<float> bias_;
};

// From the folder's checkpoint, or drawn where the options ask for that. REQUIRES:
// spec.patches->sound.
Result<SoundStem> load_sound_stem(const ModelLoadOptions& options, const DecoderSpec& spec);

}  // namespace espalier
