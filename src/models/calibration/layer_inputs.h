// The inputs of a layer's matrices, squared and summed. Used from one thread.
#pragma once

#include <map>
#include <utility>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "models/calibration/input_squares.h"
#include "models/input_observer.h"

namespace espalier::calibration {

class LayerInputs final : public InputObserver {
 public:
  explicit LayerInputs(kernels::CpuBackend& backend) : backend_(backend) {}

  void see(const MatrixInputs& inputs) override {
    if (!status_.ok()) return;
    InputSquares& squares =
        squares_.try_emplace({inputs.weight.kind, inputs.expert}, inputs.columns).first->second;
    status_ = squares.add(backend_, inputs.x, inputs.stride, inputs.rows);
  }
  const Status& status() const { return status_; }

  // Of a mixture's expert, else -1. Null: none were seen.
  InputSquares* find(WeightKind kind, int32_t expert) {
    const auto found = squares_.find({kind, expert});
    return found == squares_.end() ? nullptr : &found->second;
  }
  // The largest input of all experts.
  float largest(WeightKind kind) const {
    float out = 0;
    for (const auto& [key, squares] : squares_)
      if (key.first == kind) out = std::max(out, squares.largest());
    return out;
  }

 private:
  kernels::CpuBackend& backend_;
  std::map<std::pair<WeightKind, int32_t>, InputSquares> squares_;
  Status status_;
};

}  // namespace espalier::calibration
