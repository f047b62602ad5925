// Rounds a model's matrices for the inputs that they have in given texts, layer by layer: the texts
// run through a layer, whose matrices' inputs are squared and summed; its matrices are rounded by
// these; and the texts run through it again, rounded, for the inputs of the next layer. Memory
// holds one layer's matrices, their H, and a row of hidden states for each token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/compressed_tensors.h"
#include "checkpoint/rounded_matrices.h"
#include "models/calibration/feedback_rounding.h"
#include "models/model_plan.h"
#include "seams/vocab_view.h"
#include "tensor/work_pool.h"

namespace espalier::calibration {

struct LayerReport {
  int32_t layer = 0;
  int32_t num_matrices = 0;  // that were rounded by their inputs
  int32_t num_unseen = 0;    // that had too few inputs, or none that are seen, and are not
  OutputSquares squares;     // of the former together
};

struct CalibrationInputs {
  std::span<const std::vector<TokenId>> texts;  // each of at least one token
  // Called with the tokens that have gone through layers, of total_steps().
  std::function<void(int64_t tokens)> progress;
};
int64_t total_steps(const CalibrationInputs& inputs, int64_t num_layers);

// checkpoint: of the plan's model. Hands on those matrices that rounded_module() names and that saw
// enough inputs. The same bits for any number of threads. kUnimplemented names an operation that
// the CPU does not run.
Result<std::vector<LayerReport>> calibrate(const Checkpoint& checkpoint, const ModelPlan& plan,
                                           const CompressedFormat& format,
                                           const CalibrationInputs& inputs, WorkPool& pool,
                                           RoundedMatrices& to);

}  // namespace espalier::calibration
