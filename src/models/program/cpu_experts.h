// The experts of a mixture on the CPU: rows sorted by expert and multiplied in passes of bounded
// memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "kernels/linear/op.h"
#include "models/decoder_weights.h"
#include "models/expert_counts.h"
#include "models/input_observer.h"
#include "models/program/program.h"
#include "models/program/wanted_rows.h"
#include "seams/forward_batch.h"
#include "tensor/buffer.h"

namespace espalier::program {

// Allocates `rows` rows of `width` floats, which are not initialised. kResourceExhausted: no
// memory.
Status allocate_floats(int64_t rows, int64_t width, espalier::Buffer& out);

// One run of a layer's experts over normed rows.
struct ExpertsArgs {
  const MoeExperts* op = nullptr;
  const ExpertsWeights* weights = nullptr;
  const float* x = nullptr;             // [rows, hidden], dense
  const int32_t* experts = nullptr;     // [rows, top_k], ascending in a row
  const float* pair_weights = nullptr;  // [rows, top_k]
  float* y = nullptr;                   // [rows, hidden], dense
  int64_t rows = 0;
  InputObserver* observer = nullptr;  // null: none
};

// Used from one thread (the back end's threads work inside). Sized by reserve(); run() allocates
// nothing.
class CpuExperts {
 public:
  // For the kMoeExperts of the program and steps of at most max_tokens; without such, nothing.
  Status reserve(const Program& program, int32_t max_tokens);
  // Rows that GEMMs of a pass have at most, each expert's rounded up to a tile; 0 without experts.
  int64_t max_pass_rows() const { return pass_rows_; }

  // Of the router, [max_tokens, experts].
  float* logits() { return logits_.as<float>(); }

  // Lets count() add to a tally of `counts`; nothing for a program without experts. spec: of all
  // ranks.
  void count_to(ExpertCounts& counts, const DecoderSpec& spec);
  // Counts the slots of a layer's pairs, where count_to() has been called.
  void count(int32_t layer, std::span<const int32_t> slots) {
    if (tally_ != nullptr) tally_->count(layer, slots);
  }

  // Of the rows behind the last layer's keys and values.
  std::span<const int32_t> positions_of(const WantedRows& rows, const ForwardBatch& batch);

  // y = sum over a row's experts, in ascending order, of weight * expert(x). So the sum does not
  // depend on the other rows.
  void run(kernels::CpuBackend& backend, const ExpertsArgs& args);

 private:
  void sort_pairs(const ExpertsArgs& args);
  size_t end_of_pass(size_t first, size_t count) const;
  void run_pass(kernels::CpuBackend& backend, const ExpertsArgs& args, size_t first, size_t last);
  void run_gemms(kernels::CpuBackend& backend, const ExpertsArgs& args, size_t first, size_t last);
  // Shows the observer the rows of experts [first, last) in `x`, one expert's behind another's.
  void show(InputObserver* observer, size_t first, size_t last, MatrixInputs inputs) const;
  std::span<const kernels::LinearGroup> groups(const ExpertsWeights& weights, size_t first,
                                               size_t last,
                                               kernels::PackedMatrix MlpWeights::*matrix,
                                               std::vector<float> MlpWeights::*bias);

  std::shared_ptr<HostExpertTally> tally_;  // shared with the reader; null: nothing is counted
  int64_t pass_rows_ = 0;
  espalier::Buffer logits_;
  espalier::Buffer x_, y_;          // [pass_rows_, hidden]: rows of a pass, and their results
  espalier::Buffer inner_;          // [pass_rows_, widest of gate_up]
  std::vector<int32_t> positions_;  // of wanted rows
  std::vector<int32_t> rows_;       // [pairs]: rows by expert
  // [pairs]: the index of each pair in rows_; -1: its expert is another rank's.
  std::vector<int32_t> slots_;
  std::vector<int32_t> begins_;               // [experts + 1]: of each expert's rows in rows_
  std::vector<kernels::LinearGroup> groups_;  // of a pass
};

}  // namespace espalier::program
