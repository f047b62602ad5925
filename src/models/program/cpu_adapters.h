// The adapters of a step's rows, and what they add to the result of a GEMM; and the rows' control
// vectors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/backend.h"
#include "kernels/lora/op.h"
#include "models/adapter.h"
#include "models/program/program.h"
#include "models/program/wanted_rows.h"
#include "seams/forward_batch.h"

namespace espalier::program {

// Used from one thread. A step allocates nothing within what was reserved, but for the first steps
// with several parts of a matrix.
class CpuAdapters {
 public:
  void reserve(size_t max_entries);

  // Finds the adapters of a batch's entries, which live until the next step. An entry whose adapter
  // is not in the table any more runs without: its request has ended.
  void begin(const AdapterTable& table, std::span<const BatchEntry> entries,
             const WantedRows& wanted);

  // The control vector of a slot's rows, from here on.
  void set_control(SlotId slot, const ControlUse& use);
  ControlUse control_of(SlotId slot) const {
    const auto at = static_cast<size_t>(slot);
    return at < controls_.size() ? controls_[at] : ControlUse();
  }

  // y += what the rows' adapters have for this matrix. x and y: `count` says which rows they are.
  void add(kernels::CpuBackend& backend, WeightId weight, RowCount count, kernels::LoraArgs args);

 private:
  struct AdaptedRows {
    std::shared_ptr<const Adapter> adapter;
    int64_t row = 0, num_rows = 0;
  };
  static void append(std::vector<AdaptedRows>& to, const std::shared_ptr<const Adapter>& adapter,
                     int64_t row, int64_t num_rows);

  std::vector<AdaptedRows> tokens_, wanted_;
  std::vector<ControlUse> controls_;  // of the slots that have had one
  std::vector<kernels::LoraSegment> segments_;
};

}  // namespace espalier::program
