// The hidden states of a step that its entries ask for (BatchEntry::hidden_begin), copied while the
// step runs: those in front of each layer between two operations, those behind the final norm
// by runs of the output section as far as that norm.
//
// State 0 is the embeddings, state i what layer i - 1 leaves, and state num_layers() what the final
// norm leaves, as transformers numbers them. Not thread-safe. A step without such entries costs
// nothing; others allocate what they return.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/program/cpu_context.h"
#include "models/program/program.h"
#include "models/program/wanted_rows.h"
#include "seams/forward_batch.h"

namespace espalier::program {

class CpuHiddenStates {
 public:
  // REQUIRES: a decoder's program, with logits.
  CpuHiddenStates(const Program& program, int32_t hidden_size);

  int32_t num_layers() const { return static_cast<int32_t>(first_ops_.size()); }
  size_t first_op(int32_t layer) const { return first_ops_[static_cast<size_t>(layer)]; }
  // Where the states lie in front of a layer, and behind the operations up to final_end().
  const Operand& hidden() const { return hidden_; }
  const Operand& outputs() const { return outputs_; }
  size_t final_end() const { return final_end_; }

  // Makes room for what the batch asks for; false: it asks for nothing.
  bool begin(const ForwardBatch& batch);
  // Copies state `layer` < num_layers() of the batch's rows.
  void take(const ForwardBatch& batch, int32_t layer, const CpuView& rows);

  // The wanted rows whose final state is requested, in the order of take_final()'s calls.
  void list_final_rows(const ForwardBatch& batch, std::span<const WantedRows::Tail> tails);
  std::span<const int32_t> final_rows() const { return final_rows_; }
  // Copies the final states of the next `count` final rows.
  void take_final(size_t count, const CpuView& rows);

  // As ForwardOutput::hidden_states.
  std::span<const float> states() const { return states_; }

 private:
  struct Place {
    size_t begin = 0;  // in states_: of the row's first requested state
    std::span<const int32_t> layers;
  };
  void put(const Place& place, int32_t layer, const float* row);

  const size_t hidden_size_;
  std::vector<size_t> first_ops_;  // of each layer
  Operand hidden_, outputs_;
  size_t final_end_ = 0;
  std::vector<float> states_;
  std::vector<int32_t> final_rows_;
  std::vector<Place> final_places_;  // of final_rows_
  size_t num_final_ = 0;             // of them, copied
};

}  // namespace espalier::program
