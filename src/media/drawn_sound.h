// A sound for this room's tests: the one that tools/goldens/make_audio_goldens.py draws. Pure
// functions.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace espalier::test {

inline const std::string kSoundGoldens = "tests/golden/media/sounds/";

// The first samples of it, of 16 bits: a triangle wave, a chirp and noise.
inline std::vector<int16_t> drawn_sound(int64_t count) {
  std::vector<int16_t> samples;
  for (int64_t n = 0; n < count; ++n) {
    const int64_t wave = (std::abs((n * 37) % 4000 - 2000) - 1000) * 8;
    const int64_t chirp = (std::abs((n * n / 64) % 3000 - 1500) - 750) * 10;
    const int64_t noise = (n * 2654435761 % 4294967296) / 65536 % 512 - 256;
    samples.push_back(static_cast<int16_t>(wave + chirp + noise));
  }
  return samples;
}

// The same with full scale at 1.
inline std::vector<float> drawn_samples(int64_t count) {
  std::vector<float> samples;
  for (const int16_t sample : drawn_sound(count)) {
    samples.push_back(static_cast<float>(sample) / 32768.0f);
  }
  return samples;
}

inline std::vector<uint8_t> read_sound(const std::string& name) {
  std::ifstream file(kSoundGoldens + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace espalier::test
