#include "models/sound_stem.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "kernels/activation/gelu.h"
#include "media/mel.h"
#include "media/resample.h"
#include "models/weight_source.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

constexpr MelSpec kMel;
constexpr size_t kTaps = 3;  // of both convolutions

// Frames of the spectrogram that a sound's samples begin.
int64_t frames_of(int64_t num_samples) { return (num_samples + kMel.hop - 1) / kMel.hop; }

Result<std::vector<float>> read_floats(WeightSource& source, const std::string& name,
                                       std::span<const int64_t> shape) {
  ESP_ASSIGN_OR_RETURN(const LentTensor lent, source.lend(name, shape));
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  std::vector<float> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] = element_of(lent, i);
  source.give_back(name);
  return out;
}

Result<SoundStem> read_stem(WeightSource& source, const DecoderSpec& spec) {
  const SoundSpec& sound = *spec.patches->sound;
  const int64_t shape[] = {spec.hidden_size, sound.num_mels, static_cast<int64_t>(kTaps)};
  ESP_ASSIGN_OR_RETURN(const std::vector<float> weights,
                       read_floats(source, sound.stem + ".weight", shape));
  ESP_ASSIGN_OR_RETURN(const std::vector<float> bias,
                       read_floats(source, sound.stem + ".bias", std::span(shape).first(1)));
  return SoundStem(sound, spec.hidden_size, weights, bias);
}

}  // namespace

SoundStem::SoundStem(const SoundSpec& spec, int32_t width, std::span<const float> weights,
                     std::span<const float> bias)
    : spec_(spec),
      width_(static_cast<size_t>(width)),
      weights_(weights.size()),
      bias_(bias.begin(), bias.end()) {
  const auto mels = static_cast<size_t>(spec.num_mels);
  ESP_CHECK(weights.size() == width_ * mels * kTaps && bias.size() == width_);
  for (size_t out = 0; out < width_; ++out)
    for (size_t mel = 0; mel < mels; ++mel)
      for (size_t tap = 0; tap < kTaps; ++tap)
        weights_[(tap * mels + mel) * width_ + out] = weights[(out * mels + mel) * kTaps + tap];
}

int64_t SoundStem::resampled(const Audio& audio) const {
  const double rate = static_cast<double>(kMel.sample_rate) / audio.sample_rate;
  return std::llround(static_cast<double>(audio.samples.size()) * rate);
}

Result<int32_t> SoundStem::num_rows(int64_t num_samples) const {
  const int64_t frames = frames_of(num_samples);
  if (frames > spec_.frames_max) {
    return fail(invalid_argument(
        "the sound lasts {:.2f} s, and the model takes {:.0f} s at once: send it in parts",
        static_cast<double>(num_samples) / kMel.sample_rate,
        static_cast<double>(spec_.frames_max) * kMel.hop / kMel.sample_rate));
  }
  const auto rows = static_cast<int32_t>((frames + 1) / 2);
  if (rows >= spec_.merge) return rows;
  return fail(invalid_argument("the sound has {} samples at {} Hz, and the model takes {} or more",
                               num_samples, kMel.sample_rate,
                               (2 * spec_.merge - 2) * kMel.hop + 1));
}

// out = gelu(bias + weights * three frames).
void SoundStem::convolve(const float* frames, float* out) const {
  std::ranges::copy(bias_, out);
  const size_t inputs = kTaps * static_cast<size_t>(spec_.num_mels);
  for (size_t in = 0; in < inputs; ++in) {
    const float x = frames[in];
    const float* const column = weights_.data() + in * width_;
    for (size_t i = 0; i < width_; ++i) out[i] += x * column[i];
  }
  for (size_t i = 0; i < width_; ++i) out[i] = 0.5f * out[i] * (1 + std::erf(out[i] * 0.70710678f));
}

// The feature extractor pads a sound with silence to the longest that the model takes; what of it
// the rows read are the next frames alone. Beyond the last frame and in front of the first one
// there are zeros.
Result<std::vector<float>> SoundStem::rows_of(const Audio& audio) const {
  ESP_ASSIGN_OR_RETURN(const int32_t rows, num_rows(resampled(audio)));
  std::vector<float> samples = resample(audio.samples, audio.sample_rate, kMel.sample_rate);
  const size_t longest = static_cast<size_t>(spec_.frames_max) * static_cast<size_t>(kMel.hop);
  const size_t padded = samples.size() + static_cast<size_t>(2 * kMel.window + 4 * kMel.hop);
  samples.resize(std::min(longest, padded));
  const MelSpectrogram mel =
      log_mel(samples, {.num_mels = spec_.num_mels, .sample_rate = kMel.sample_rate});

  const auto mels = static_cast<size_t>(spec_.num_mels);
  const int64_t num_frames = 2 * int64_t{rows};
  std::vector<float> frames(static_cast<size_t>(num_frames + 2) * mels);  // zeros around them
  const int64_t there = std::min(num_frames + 1, mel.num_frames);
  for (size_t m = 0; m < mels; ++m) {
    const std::span<const float> values = mel.row(static_cast<int32_t>(m));
    for (int64_t i = 0; i < there; ++i)
      frames[static_cast<size_t>(i + 1) * mels + m] = values[static_cast<size_t>(i)];
  }
  // Row r reads the first convolution's results 2r - 1, 2r and 2r + 1; that in front is zero.
  std::vector<float> out(static_cast<size_t>(rows) * width_ * kTaps), made(width_);
  for (int64_t at = 0; at < num_frames; ++at) {
    convolve(frames.data() + static_cast<size_t>(at) * mels, made.data());
    const auto put = [&](int64_t row, size_t tap) {
      if (row >= rows) return;
      float* const to = out.data() + static_cast<size_t>(row) * width_ * kTaps + tap;
      for (size_t i = 0; i < width_; ++i) to[i * kTaps] = made[i];
    };
    if (at % 2 == 0) {
      put(at / 2, 1);
    } else {
      put(at / 2, 2);
      put(at / 2 + 1, 0);
    }
  }
  return out;
}

Result<SoundStem> load_sound_stem(const ModelLoadOptions& options, const DecoderSpec& spec) {
  if (options.format == LoadFormat::kDummy) {
    std::optional<WorkPool> own;
    WorkPool& pool = options.pool != nullptr ? *options.pool : own.emplace();
    DummySource source(options.seed, DType::kFloat32, pool);
    return read_stem(source, spec);
  }
  ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.path));
  CheckpointSource source(checkpoint, spec, DType::kFloat32);
  return read_stem(source, spec);
}

}  // namespace espalier
