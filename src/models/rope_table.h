// Cosines and sines for the rope kernel, made for the positions of one step at a time: a table over
// a long context would cost more memory than it saves time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/decoder_spec.h"

namespace espalier {

// Angle per position of each rotated pair, [rotary_dim / 2], with the scaling applied.
// Sources: Su et al. 2021 (theta ^ (-2i / d)); linear: kaiokendev 2023; llama3: Llama 3.1's
// release; yarn: Peng et al. 2023, section 3.2, with the ramp's bounds as transformers computes
// them; longrope: Ding et al. 2024, whose long factors hold where context_length, in tokens, is
// above the spec's original_max_positions.
std::vector<float> rope_frequencies(const RopeSpec& spec, int32_t context_length = 0);

// cos[t * n + i] = attention_factor * cos(positions[t] * frequencies[i]), and sin likewise; n is
// frequencies.size(). The angle is rounded to float32 first, as transformers does. A row depends on
// its position alone.
void fill_rope_rows(std::span<const float> frequencies, float attention_factor,
                    std::span<const int32_t> positions, float* cos, float* sin);

// Of each rotated pair the component of a position that it turns by, [rotary_dim / 2]; empty
// without sections.
std::vector<uint8_t> rope_components(const RopeSpec& spec);

// The same where positions have three components, places: [3, tokens], and each pair turns by its
// own (rope_components()).
void fill_section_rows(std::span<const float> frequencies, std::span<const uint8_t> components,
                       float attention_factor, std::span<const int32_t> places, float* cos,
                       float* sin);

}  // namespace espalier
