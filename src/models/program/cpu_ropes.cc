#include "models/program/cpu_ropes.h"

#include <numeric>

#include "models/rope_table.h"
#include "models/rotary_places.h"

namespace espalier::program {

CpuRopes::CpuRopes(const DecoderSpec& spec) : spec_(spec) {
  for (const RopeSpec& rope : spec.ropes) {
    frequencies_.push_back(rope_frequencies(rope, spec.context_length));
    components_.push_back(rope_components(rope));
  }
}

Status CpuRopes::reserve(int32_t max_tokens) {
  size_t floats = 0;  // of a token
  for (const auto& frequencies : frequencies_) floats += 2 * frequencies.size();
  ESP_ASSIGN_OR_RETURN(tables_, espalier::Buffer::allocate(static_cast<size_t>(max_tokens) *
                                                           floats * sizeof(float)));
  rows_.resize(static_cast<size_t>(max_tokens));
  std::iota(rows_.begin(), rows_.end(), 0);
  if (has_sections(spec_) && !spec_.patches) {
    places_.reserve(3 * static_cast<size_t>(max_tokens));
  }
  return Status();
}

std::span<const int32_t> CpuRopes::places_of(const ForwardBatch& batch) {
  const auto tokens = std::ssize(batch.positions);
  places_.resize(static_cast<size_t>(3 * tokens));
  write_rotary_places(batch, {.token = 1, .component = tokens}, places_.data());
  return places_;
}

void CpuRopes::fill(const ForwardBatch& batch, std::span<const int32_t> places) {
  const std::span<const int32_t> positions = batch.positions;
  num_tokens_ = std::ssize(positions);
  if (places.empty() && !batch.rotary_spans.empty()) places = places_of(batch);
  float* table = tables_.as<float>();
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const RopeSpec& rope = spec_.ropes[i];
    const size_t count = positions.size() * frequencies_[i].size();
    const auto factor = static_cast<float>(rope.attention_factor);
    if (places.empty() || rope.sections.empty()) {
      fill_rope_rows(frequencies_[i], factor, positions, table, table + count);
    } else {
      fill_section_rows(frequencies_[i], components_[i], factor, places, table, table + count);
    }
    table += 2 * count;
  }
}

CpuRope CpuRopes::of(int32_t index) const {
  const float* cos = tables_.as<float>();
  for (int32_t i = 0; i < index; ++i) {
    cos += 2 * num_tokens_ * std::ssize(frequencies_[static_cast<size_t>(i)]);
  }
  const auto at = static_cast<size_t>(index);
  return {cos, cos + num_tokens_ * std::ssize(frequencies_[at]), &spec_.ropes[at]};
}

}  // namespace espalier::program
