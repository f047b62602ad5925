#include "models/program/cpu_ropes.h"

#include <numeric>

#include "models/rope_table.h"

namespace espalier::program {

CpuRopes::CpuRopes(const DecoderSpec& spec) : spec_(spec) {
  for (const RopeSpec& rope : spec.ropes) {
    frequencies_.push_back(rope_frequencies(rope, spec.context_length));
  }
}

Status CpuRopes::reserve(int32_t max_tokens) {
  size_t floats = 0;  // of a token
  for (const auto& frequencies : frequencies_) floats += 2 * frequencies.size();
  ESP_ASSIGN_OR_RETURN(tables_, espalier::Buffer::allocate(static_cast<size_t>(max_tokens) *
                                                           floats * sizeof(float)));
  rows_.resize(static_cast<size_t>(max_tokens));
  std::iota(rows_.begin(), rows_.end(), 0);
  return Status();
}

void CpuRopes::fill(std::span<const int32_t> positions) {
  num_tokens_ = std::ssize(positions);
  float* table = tables_.as<float>();
  for (size_t i = 0; i < frequencies_.size(); ++i) {
    const size_t count = positions.size() * frequencies_[i].size();
    fill_rope_rows(frequencies_[i], static_cast<float>(spec_.ropes[i].attention_factor), positions,
                   table, table + count);
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
