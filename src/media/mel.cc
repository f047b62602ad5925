#include "media/mel.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

#include "base/check.h"
#include "media/fourier.h"

namespace espalier {
namespace {

using Complex = std::complex<double>;

// Slaney's scale: linear up to 1,000 Hz, which is 15, and logarithmic above, 27 to a factor of 6.4.
constexpr double kLinearHz = 1000, kLinearMels = 15, kHzPerMel = 200.0 / 3;
double log_step() { return std::log(6.4) / 27; }

double hz_of_mel(double mel) {
  return mel < kLinearMels ? mel * kHzPerMel
                           : kLinearHz * std::exp(log_step() * (mel - kLinearMels));
}
double mel_of_hz(double hz) {
  return hz < kLinearHz ? hz / kHzPerMel : kLinearMels + std::log(hz / kLinearHz) / log_step();
}

constexpr double kPowerMin = 1e-10;  // below it the logarithm stays
constexpr double kRange = 8;         // decades below the largest value that are kept

std::vector<double> hann_window(int32_t size) {
  std::vector<double> window;
  for (int32_t i = 0; i < size; ++i) {
    window.push_back(0.5 - 0.5 * std::cos(2 * std::numbers::pi * i / size));
  }
  return window;
}

// The index of a sample beyond an end, mirrored there without repeating the last one.
int64_t mirrored(int64_t index, int64_t size) {
  if (index < 0) index = -index;
  return index < size ? index : 2 * (size - 1) - index;
}

// Powers of the frames of a sound.
class Frames {
 public:
  Frames(std::span<const float> samples, const MelSpec& spec)
      : samples_(samples),
        spec_(spec),
        window_(hann_window(spec.window)),
        fourier_(spec.window),
        in_(static_cast<size_t>(spec.window)),
        out_(static_cast<size_t>(spec.window)) {}

  // Of two frames at once, as the real and the imaginary part of one transform. powers: of each,
  // [window / 2 + 1].
  void powers(int64_t frame, std::vector<double>& first, std::vector<double>& second) {
    const int64_t size = spec_.window;
    for (int64_t i = 0; i < size; ++i) {
      const auto at = static_cast<size_t>(i);
      in_[at] = {window_[at] * sample(frame, i), window_[at] * sample(frame + 1, i)};
    }
    fourier_.transform(in_, out_);
    for (int64_t k = 0; k <= size / 2; ++k) {
      const Complex here = out_[static_cast<size_t>(k)];
      const Complex there = std::conj(out_[static_cast<size_t>((size - k) % size)]);
      first[static_cast<size_t>(k)] = std::norm((here + there) * 0.5);
      second[static_cast<size_t>(k)] = std::norm((here - there) * 0.5);
    }
  }

 private:
  double sample(int64_t frame, int64_t i) const {
    const int64_t index = frame * spec_.hop + i - spec_.window / 2, size = std::ssize(samples_);
    // The second frame of a pair may lie behind the last one; what it gives is not read.
    if (index >= size + spec_.window / 2) return 0;
    return static_cast<double>(samples_[static_cast<size_t>(mirrored(index, size))]);
  }

  const std::span<const float> samples_;
  const MelSpec spec_;
  const std::vector<double> window_;
  const media::FourierTransform fourier_;
  std::vector<Complex> in_, out_;
};

// Filters without the zeros around their triangles.
struct Triangle {
  size_t first = 0;
  std::vector<double> weights;

  double of(const std::vector<double>& powers) const {
    double sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) sum += weights[i] * powers[first + i];
    return sum;
  }
};

std::vector<Triangle> make_triangles(const MelSpec& spec) {
  const std::vector<double> filters = mel_filters(spec);
  const auto bins = static_cast<size_t>(spec.window / 2 + 1);
  std::vector<Triangle> triangles;
  for (size_t begin = 0; begin < filters.size(); begin += bins) {
    const auto row = std::span(filters).subspan(begin, bins);
    const auto is_set = [](double weight) { return weight != 0; };
    const auto first = std::find_if(row.begin(), row.end(), is_set);
    const auto last = std::find_if(row.rbegin(), row.rend(), is_set).base();
    triangles.push_back({.first = static_cast<size_t>(first - row.begin()), .weights = {}});
    if (first < last) triangles.back().weights.assign(first, last);
  }
  return triangles;
}

}  // namespace

std::vector<double> mel_filters(const MelSpec& spec) {
  const double nyquist = spec.sample_rate / 2.0;
  std::vector<double> edges;  // in Hz: of filter i they are i, i + 1 (its centre) and i + 2
  for (int32_t i = 0; i < spec.num_mels + 2; ++i) {
    edges.push_back(hz_of_mel(mel_of_hz(nyquist) * i / (spec.num_mels + 1)));
  }
  const int32_t bins = spec.window / 2 + 1;
  std::vector<double> filters;
  for (size_t mel = 0; mel < static_cast<size_t>(spec.num_mels); ++mel) {
    const double low = edges[mel], centre = edges[mel + 1], high = edges[mel + 2];
    for (int32_t bin = 0; bin < bins; ++bin) {
      const double hz = nyquist * bin / (bins - 1);
      const double height = std::min((hz - low) / (centre - low), (high - hz) / (high - centre));
      filters.push_back(std::max(0.0, height) * 2 / (high - low));
    }
  }
  return filters;
}

MelSpectrogram log_mel(std::span<const float> samples, const MelSpec& spec) {
  ESP_CHECK(std::ssize(samples) > spec.window / 2);
  const std::vector<Triangle> triangles = make_triangles(spec);
  MelSpectrogram mel{
      .num_mels = spec.num_mels, .num_frames = std::ssize(samples) / spec.hop, .values = {}};
  mel.values.resize(static_cast<size_t>(mel.num_mels * mel.num_frames));
  Frames frames(samples, spec);
  std::vector<double> powers[2];
  for (auto& each : powers) each.resize(static_cast<size_t>(spec.window / 2 + 1));
  double largest = std::log10(kPowerMin);
  for (int64_t frame = 0; frame < mel.num_frames; frame += 2) {
    frames.powers(frame, powers[0], powers[1]);
    for (int64_t i = 0; i < std::min<int64_t>(2, mel.num_frames - frame); ++i) {
      for (size_t row = 0; row < triangles.size(); ++row) {
        const double value = std::log10(std::max(kPowerMin, triangles[row].of(powers[i])));
        largest = std::max(largest, value);
        mel.values[row * static_cast<size_t>(mel.num_frames) + static_cast<size_t>(frame + i)] =
            static_cast<float>(value);
      }
    }
  }
  const auto floor = static_cast<float>(largest - kRange);
  for (float& value : mel.values) value = (std::max(value, floor) + 4) / 4;
  return mel;
}

}  // namespace espalier
