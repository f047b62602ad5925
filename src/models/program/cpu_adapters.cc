#include "models/program/cpu_adapters.h"

namespace espalier::program {

void CpuAdapters::reserve(size_t max_entries) {
  constexpr size_t kPartsMax = 3;  // q, k, v
  tokens_.reserve(max_entries);
  wanted_.reserve(max_entries);
  segments_.reserve(kPartsMax * max_entries);
}

// Neighbours of one adapter become one segment.
void CpuAdapters::append(std::vector<AdaptedRows>& to,
                         const std::shared_ptr<const Adapter>& adapter, int64_t row,
                         int64_t num_rows) {
  if (!to.empty() && to.back().adapter == adapter && to.back().row + to.back().num_rows == row) {
    to.back().num_rows += num_rows;
  } else {
    to.push_back({adapter, row, num_rows});
  }
}

void CpuAdapters::begin(const AdapterTable& table, std::span<const BatchEntry> entries,
                        const WantedRows& wanted) {
  tokens_.clear();
  wanted_.clear();
  const std::span<const WantedRows::Tail> tails = wanted.tails();
  size_t tail = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    while (tail < tails.size() && static_cast<size_t>(tails[tail].entry) < i) ++tail;
    const BatchEntry& entry = entries[i];
    if (entry.adapter == kNoAdapter) continue;
    const std::shared_ptr<const Adapter> adapter = table.find(entry.adapter);
    if (adapter == nullptr) continue;
    append(tokens_, adapter, entry.query_begin, entry.num_query_tokens);
    if (tail < tails.size() && static_cast<size_t>(tails[tail].entry) == i)
      append(wanted_, adapter, tails[tail].row, tails[tail].count);
  }
}

void CpuAdapters::add(kernels::CpuBackend& backend, WeightId weight, RowCount count,
                      kernels::LoraArgs args) {
  const std::vector<AdaptedRows>& all = count == RowCount::kWanted ? wanted_ : tokens_;
  if (all.empty() || (count != RowCount::kWanted && count != RowCount::kTokens)) return;
  segments_.clear();
  for (const AdaptedRows& rows : all)
    for (const Adapter::Part& part : rows.adapter->parts(weight))
      segments_.push_back({&part.factors, rows.row, rows.num_rows, part.column});
  args.segments = segments_;
  if (!segments_.empty()) kernels::lora(backend, args);
}

void CpuAdapters::set_control(SlotId slot, const ControlUse& use) {
  const auto at = static_cast<size_t>(slot);
  if (at >= controls_.size() && !use.any()) return;
  if (at >= controls_.size()) controls_.resize(at + 1);
  controls_[at] = use;
}

}  // namespace espalier::program
