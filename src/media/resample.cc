#include "media/resample.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/check.h"

namespace espalier {
namespace {

constexpr int32_t kResampledRateMin = 1000, kResampledRateMax = 192'000;
// Zero crossings of the sinc on each side of its centre, and the window's shape: with 9 the side
// lobes lie at -90 dB, and 32 crossings make the transition a tenth of the band on each side.
constexpr double kZeroCrossings = 32;
constexpr double kKaiserBeta = 9;
// Rates with more phases than the first are interpolated between the second: linearly between 512
// the error is below 2e-6 (h^2/8 times the sinc's largest curvature, pi^2/3).
constexpr int64_t kPhasesMax = 1024, kPhasesInterpolated = 512;

// The modified Bessel function of order zero, by its power series.
double bessel_i0(double x) {
  double term = 1, sum = 1;
  for (int k = 1; term > sum * 1e-17; ++k) {
    term *= (x / 2 / k) * (x / 2 / k);
    sum += term;
  }
  return sum;
}

// Output sample i lies at input time i * from / to, rates without their common divisor: at input
// sample i * from / to (whole), phase i * from % to.
struct PhaseFilter {
  int64_t from = 1, to = 1;
  int64_t reach = 0;        // taps on each side of an output sample
  int64_t num_phases = 0;   // `to`, or those that others are interpolated between
  std::vector<float> taps;  // [num_phases, 2 * reach], and one phase more where interpolated

  bool interpolated() const { return num_phases != to; }

  std::span<const float> phase(int64_t index) const {
    const auto count = static_cast<size_t>(2 * reach);
    return {taps.data() + static_cast<size_t>(index) * count, count};
  }
};

PhaseFilter make_phase_filter(int32_t from_rate, int32_t to_rate) {
  PhaseFilter filter;
  const int64_t divisor = std::gcd(from_rate, to_rate);
  filter.from = from_rate / divisor;
  filter.to = to_rate / divisor;
  // The pass band as a share of the input's: narrower where the rate falls.
  const double band = std::min(1.0, static_cast<double>(to_rate) / from_rate);
  const double half_width = kZeroCrossings / band;
  filter.reach = static_cast<int64_t>(std::ceil(half_width));
  filter.num_phases = filter.to <= kPhasesMax ? filter.to : kPhasesInterpolated;
  const int64_t num_rows = filter.num_phases + (filter.interpolated() ? 1 : 0);
  filter.taps.resize(static_cast<size_t>(num_rows * 2 * filter.reach));
  const double window_scale = 1 / bessel_i0(kKaiserBeta);
  float* tap = filter.taps.data();
  for (int64_t phase = 0; phase < num_rows; ++phase) {
    const double offset = static_cast<double>(phase) / static_cast<double>(filter.num_phases);
    double sum = 0;
    float* const first = tap;
    for (int64_t k = 1 - filter.reach; k <= filter.reach; ++k) {
      const double x = static_cast<double>(k) - offset;
      const double inside = 1 - (x / half_width) * (x / half_width);
      const double angle = std::numbers::pi * x * band;
      const double sinc = angle == 0 ? 1 : std::sin(angle) / angle;
      const double weight =
          inside <= 0 ? 0 : sinc * bessel_i0(kKaiserBeta * std::sqrt(inside)) * window_scale;
      sum += weight;
      *tap++ = static_cast<float>(weight);
    }
    // A constant keeps its level in every phase.
    for (float* each = first; each != tap; ++each) {
      *each = static_cast<float>(static_cast<double>(*each) / sum);
    }
  }
  return filter;
}

// The sum of taps and samples from `first` on; those outside of the samples are zero.
float filtered(std::span<const float> samples, int64_t first, std::span<const float> taps) {
  const int64_t begin = std::max<int64_t>(0, -first);
  const int64_t end = std::min<int64_t>(std::ssize(taps), std::ssize(samples) - first);
  float sums[4] = {};  // four chains, so that additions need not wait for one another
  int64_t k = begin;
  const float* const from = samples.data() + first;
  for (; k + 4 <= end; k += 4) {
    for (int64_t j = 0; j < 4; ++j) sums[j] += from[k + j] * taps[static_cast<size_t>(k + j)];
  }
  for (; k < end; ++k) sums[0] += from[k] * taps[static_cast<size_t>(k)];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

float at_phase(const PhaseFilter& filter, std::span<const float> samples, int64_t first,
               int64_t phase) {
  if (!filter.interpolated()) return filtered(samples, first, filter.phase(phase));
  const int64_t scaled = phase * filter.num_phases, below = scaled / filter.to;
  const float share = static_cast<float>(scaled % filter.to) / static_cast<float>(filter.to);
  const float low = filtered(samples, first, filter.phase(below));
  return low + share * (filtered(samples, first, filter.phase(below + 1)) - low);
}

}  // namespace

std::vector<float> resample(std::span<const float> samples, int32_t from_rate, int32_t to_rate) {
  ESP_CHECK(from_rate >= kResampledRateMin && from_rate <= kResampledRateMax &&
            to_rate >= kResampledRateMin && to_rate <= kResampledRateMax);
  if (from_rate == to_rate) return {samples.begin(), samples.end()};
  const PhaseFilter filter = make_phase_filter(from_rate, to_rate);
  const int64_t count = (std::ssize(samples) * filter.to + filter.from / 2) / filter.from;
  std::vector<float> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t time = i * filter.from;
    const int64_t first = time / filter.to + 1 - filter.reach;
    out[static_cast<size_t>(i)] = at_phase(filter, samples, first, time % filter.to);
  }
  return out;
}

}  // namespace espalier
