// The hidden states of a step that its entries ask for (BatchEntry::hidden_begin, pooled_begin), on
// their way from a GPU to the host: each layer's rows are copied behind the layer, in the order of
// the step's stream, through one pinned block, from which a function of the host widens them, or
// adds those of a text that becomes a vector.
//
// Not thread-safe: the executor's thread enqueues; the host's functions run one after the other on
// a thread of the driver's, before the step is done. A step without such entries costs nothing;
// others allocate what they return.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "models/cuda/decoder.h"
#include "seams/forward_batch.h"
#include "seams/step_result.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

class HiddenReader {
 public:
  // What one step returns. Stays where it is until the step is done.
  struct Step {
    struct Entry {
      size_t index = 0;       // in the batch
      int32_t first_row = 0;  // of the step's tokens
      int32_t num_rows = 0;
      std::span<const int32_t> layers;
      std::vector<float> states;  // [num_rows, layers, hidden_size]
      // Of a text that becomes a vector, instead of states:
      SlotId pooled_slot = -1;
      bool pooled_end = false;
      std::vector<double> sum;  // [hidden_size], over the rows
    };
    // Rows in the pinned block, which become rows of an entry's states, or are added to its sum.
    struct Piece {
      const HiddenReader* reader = nullptr;
      Entry* entry = nullptr;
      int32_t num_rows = 0;
      float* to = nullptr;
      int64_t to_stride = 0;
    };
    std::vector<Entry> entries;
    std::deque<Piece> pieces;  // does not move what it holds

    bool any() const { return !entries.empty(); }
  };

  // model: borrowed; its info states that it returns hidden states, or makes vectors.
  static Result<std::unique_ptr<HiddenReader>> create(CudaDecoder& model, int32_t max_slots);
  int64_t device_bytes() const { return normed_.size_bytes(); }

  // A text begins in the slot.
  void init(SlotId slot) { pooled_[static_cast<size_t>(slot)] = {}; }
  // Lists what the batch asks for and makes room for it.
  void begin(const ForwardBatch& batch, Step& step) const;
  // Enqueues the copies of state `index` of the step's tokens (CudaStep::on_states).
  Status take(Step& step, int32_t index, const void* rows, const cuda::Stream& stream);
  // Moves the states of a step that is done into its result, and the vectors of the texts that end
  // with it.
  void read(Step& step, StepResult& result);

 private:
  // Of a slot's text so far.
  struct Pooled {
    std::vector<double> sum;
    int64_t num_rows = 0;
  };

  HiddenReader(CudaDecoder& model, int32_t max_slots);
  Status take_rows(Step& step, Step::Entry& entry, size_t layer, const std::byte* rows, bool last,
                   const cuda::Stream& stream);
  void take_piece(const Step::Piece& piece) const;
  void pool(const Step::Entry& entry, EntryResult& result);

  CudaDecoder& model_;
  const int64_t hidden_size_;
  const int32_t num_layers_;    // also the state behind the final norm
  std::vector<Pooled> pooled_;  // of each slot
  int32_t rows_max_ = 0;        // that the block holds
  cuda::PinnedBuffer block_;
  cuda::DeviceBuffer normed_;  // rows_max_ rows behind the final norm
};

}  // namespace espalier
