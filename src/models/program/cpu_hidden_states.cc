#include "models/program/cpu_hidden_states.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"

namespace espalier::program {
namespace {

Operand named_buffer(const Program& program, std::string_view name) {
  const auto found = std::ranges::find(program.buffers, name, &Buffer::name);
  ESP_CHECK(found != program.buffers.end(), "{} has no buffer {}", program.name, name);
  return {static_cast<BufferId>(found - program.buffers.begin()), 0, found->columns};
}

// Floats that an entry asks for.
size_t row_floats(const BatchEntry& entry, size_t hidden_size) {
  return entry.hidden_layers.size() * hidden_size;
}

size_t num_rows(const BatchEntry& entry) {
  return static_cast<size_t>(entry.hidden_begin < 0 ? 0
                                                    : entry.num_query_tokens - entry.hidden_begin);
}

}  // namespace

CpuHiddenStates::CpuHiddenStates(const Program& program, int32_t hidden_size)
    : hidden_size_(static_cast<size_t>(hidden_size)),
      hidden_(named_buffer(program, "hidden")),
      outputs_(named_buffer(program, "outputs")) {
  for (size_t i = 0; i < program.ops.size(); ++i)
    if (program.ops[i].layer == num_layers()) first_ops_.push_back(i);
  for (size_t i = output_begin(program); i < program.ops.size(); ++i)
    for (const Operand& output : program.ops[i].outputs)
      if (output.buffer == outputs_.buffer) final_end_ = i + 1;
  ESP_CHECK(hidden_.columns == hidden_size && final_end_ > 0);
}

bool CpuHiddenStates::begin(const ForwardBatch& batch) {
  size_t count = 0;
  for (const BatchEntry& entry : batch.entries)
    count += num_rows(entry) * row_floats(entry, hidden_size_);
  states_.resize(count);
  if (count == 0) states_.shrink_to_fit();
  return count > 0;
}

void CpuHiddenStates::put(const Place& place, int32_t layer, const float* row) {
  for (size_t k = 0; k < place.layers.size(); ++k)
    if (place.layers[k] == layer)
      std::copy_n(row, hidden_size_, states_.data() + place.begin + k * hidden_size_);
}

void CpuHiddenStates::take(const ForwardBatch& batch, int32_t layer, const CpuView& rows) {
  size_t begin = 0;
  for (const BatchEntry& entry : batch.entries)
    for (size_t i = 0; i < num_rows(entry); ++i, begin += row_floats(entry, hidden_size_)) {
      const int64_t row = entry.query_begin + entry.hidden_begin + static_cast<int64_t>(i);
      put({begin, entry.hidden_layers}, layer, rows.data + row * rows.stride);
    }
}

void CpuHiddenStates::list_final_rows(const ForwardBatch& batch,
                                      std::span<const WantedRows::Tail> tails) {
  final_rows_.clear();
  final_places_.clear();
  num_final_ = 0;
  size_t begin = 0;
  for (const WantedRows::Tail& tail : tails) {
    const BatchEntry& entry = batch.entries[static_cast<size_t>(tail.entry)];
    const bool wants = std::ranges::count(entry.hidden_layers, num_layers()) > 0;
    for (size_t i = 0; i < num_rows(entry); ++i, begin += row_floats(entry, hidden_size_)) {
      if (!wants) continue;
      final_rows_.push_back(tail.row + entry.hidden_begin - tail.first_token +
                            static_cast<int32_t>(i));
      final_places_.push_back({begin, entry.hidden_layers});
    }
  }
}

void CpuHiddenStates::take_final(size_t count, const CpuView& rows) {
  for (size_t i = 0; i < count; ++i)
    put(final_places_[num_final_++], num_layers(),
        rows.data + static_cast<int64_t>(i) * rows.stride);
}

}  // namespace espalier::program
