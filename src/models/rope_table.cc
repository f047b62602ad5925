#include "models/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace espalier {
namespace {

constexpr double kTwoPi = 2 * std::numbers::pi;

// High frequencies (many turns within the pretraining context) stay, low ones are divided by the
// factor, and those between are blended.
double llama3_frequency(const RopeSpec& spec, double frequency) {
  const double turns = spec.original_max_positions * frequency / kTwoPi;
  if (turns < spec.low_freq_factor) return frequency / spec.factor;
  if (turns > spec.high_freq_factor) return frequency;
  const double blend =
      (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor);
  return (1 - blend) * frequency / spec.factor + blend * frequency;
}

// NTK-aware: a larger base, as transformers takes it for a text of `context_length` tokens. It
// holds for every token of a model of that context, so that a key in the cache stays true.
double dynamic_theta(const RopeSpec& spec, int32_t context_length) {
  const double longer =
      std::max(1.0, static_cast<double>(context_length) / spec.original_max_positions);
  return spec.theta * std::pow(spec.factor * longer - (spec.factor - 1),
                               spec.rotary_dim / (spec.rotary_dim - 2.0));
}

// The (fractional) pair that makes `turns` turns within the pretraining context.
double pair_of_turns(const RopeSpec& spec, double turns) {
  return spec.rotary_dim * std::log(spec.original_max_positions / (turns * kTwoPi)) /
         (2 * std::log(spec.theta));
}

// Weight of the unscaled frequency at pair i: 1 below `low`, 0 above `high`, a ramp between.
struct YarnRamp {
  double low = 0, high = 0;
  explicit YarnRamp(const RopeSpec& spec) {
    low = pair_of_turns(spec, spec.beta_fast);
    high = pair_of_turns(spec, spec.beta_slow);
    if (spec.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, spec.rotary_dim - 1.0);
    if (low == high) high += 0.001;  // no division by zero
  }
  double keep(int32_t pair) const { return 1 - std::clamp((pair - low) / (high - low), 0.0, 1.0); }
};

}  // namespace

std::vector<float> rope_frequencies(const RopeSpec& spec, int32_t context_length) {
  std::vector<float> frequencies;
  if (spec.axial) {
    for (size_t section = 0; section < spec.sections.size(); ++section) {
      const int32_t pairs = spec.sections[section];
      const double begin = spec.axial_in_turns && section == 2 ? 0.5 : 0.0;
      for (int32_t i = 0; i < pairs; ++i) {
        frequencies.push_back(static_cast<float>(std::pow(spec.theta, -(begin + i) / pairs)));
      }
    }
    return frequencies;
  }
  const std::vector<double>& factors =
      context_length > spec.original_max_positions ? spec.long_factors : spec.short_factors;
  const bool dynamic = spec.scaling == RopeSpec::Scaling::kDynamic && spec.rotary_dim > 2;
  const double theta = dynamic ? dynamic_theta(spec, context_length) : spec.theta;
  for (int32_t i = 0; i < spec.rotary_dim / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * i / spec.rotary_dim);
    switch (spec.scaling) {
      case RopeSpec::Scaling::kNone:
      case RopeSpec::Scaling::kDynamic:
        break;
      case RopeSpec::Scaling::kLinear:
        frequency /= spec.factor;
        break;
      case RopeSpec::Scaling::kLlama3:
        frequency = llama3_frequency(spec, frequency);
        break;
      case RopeSpec::Scaling::kYarn: {
        const double keep = YarnRamp(spec).keep(i);
        frequency = frequency / spec.factor * (1 - keep) + frequency * keep;
        break;
      }
      case RopeSpec::Scaling::kLongRope:
        frequency /= factors[static_cast<size_t>(i)];
        break;
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

void fill_rope_rows(std::span<const float> frequencies, float attention_factor,
                    std::span<const int32_t> positions, float* cos, float* sin) {
  for (const int32_t position : positions) {
    for (const float frequency : frequencies) {
      const float angle = static_cast<float>(position) * frequency;
      *cos++ = attention_factor * std::cos(angle);
      *sin++ = attention_factor * std::sin(angle);
    }
  }
}

std::vector<uint8_t> rope_components(const RopeSpec& spec) {
  std::vector<uint8_t> components;
  if (spec.interleaved_sections) {
    for (int32_t pair = 0; pair < spec.rotary_dim / 2; ++pair) {
      const auto turn = static_cast<uint8_t>(pair % 3);
      components.push_back(pair < 3 * spec.sections[turn] ? turn : uint8_t{0});
    }
    return components;
  }
  for (size_t section = 0; section < spec.sections.size(); ++section) {
    components.insert(components.end(), static_cast<size_t>(spec.sections[section]),
                      static_cast<uint8_t>(section));
  }
  return components;
}

void fill_section_rows(std::span<const float> frequencies, std::span<const uint8_t> components,
                       float attention_factor, std::span<const int32_t> places, float* cos,
                       float* sin) {
  const size_t tokens = places.size() / 3;
  for (size_t token = 0; token < tokens; ++token) {
    for (size_t pair = 0; pair < frequencies.size(); ++pair) {
      const auto place = static_cast<float>(places[components[pair] * tokens + token]);
      const float angle = place * frequencies[pair];
      *cos++ = attention_factor * std::cos(angle);
      *sin++ = attention_factor * std::sin(angle);
    }
  }
}

}  // namespace espalier
