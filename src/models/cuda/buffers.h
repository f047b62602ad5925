// Where the buffers of a program lie in device memory, and the rows that each has in the step that
// is enqueued. A selection of rows may let a buffer be other memory instead of copying it.
//
// Not thread-safe: one thread enqueues. Borrows the plan and the memory of lay_out().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "models/cuda/plan.h"
#include "models/cuda/step.h"
#include "models/program/program.h"
#include "tensor/cuda/memory.h"
#include "tensor/dtype.h"

namespace espalier {

class CudaBuffers {
 public:
  // type: of activations.
  CudaBuffers(const CudaPlan& plan, DType type) : plan_(plan), type_(type) {}

  // Takes the memory of all buffers but the last operation's, which has the logits; from an arena
  // without a block it measures.
  void lay_out(cuda::Arena& arena, const DecoderLimits& limits);
  // What lay_out() took for activations.
  std::span<std::byte> activations() const { return activations_; }

  // Starts a step: every buffer is its own memory. num_ranks: that have rows of their own.
  void begin(const CudaStep& step, int32_t num_ranks);
  // Starts the output section for rows [first, first + count) of the wanted ones; logits to out,
  // rows logits_stride apart.
  void begin_outputs(int32_t first, int32_t count, float* out, int64_t logits_stride);

  int32_t num_rows(const program::Operand& operand) const;
  // Where an operand's first row begins, to be read or to be written, and the elements from one row
  // to the next. They differ for a selection of outputs alone, whose source is not written.
  const void* read(const program::Operand& operand) const;
  void* write(const program::Operand& operand) const;
  int64_t stride(const program::Operand& operand) const { return at(operand).stride; }

  // Lets a whole buffer be other memory: for the rest of the step, or until it is written.
  void alias(const program::Operand& operand, const void* data);
  void alias_reads(const program::Operand& operand, const void* data);
  // An operation has written the operand, so reads of it see its own memory again.
  void wrote(const program::Operand& operand);
  int32_t first_output() const { return first_output_; }

 private:
  struct Memory {
    std::byte* data = nullptr;
    int64_t stride = 0;  // elements
    int64_t element_size = 0;
  };
  Memory& at(const program::Operand& operand) { return now_[static_cast<size_t>(operand.buffer)]; }
  const Memory& at(const program::Operand& operand) const {
    return now_[static_cast<size_t>(operand.buffer)];
  }

  const CudaPlan& plan_;
  const DType type_;
  std::span<std::byte> activations_;
  std::vector<Memory> own_;  // of each buffer
  std::vector<Memory> now_;  // the same in this step
  program::BufferId read_alias_ = -1;
  const std::byte* read_alias_data_ = nullptr;
  int32_t num_tokens_ = 0, num_wanted_ = 0;
  int32_t num_rank_tokens_ = 0;  // of all ranks
  int32_t first_output_ = 0, num_outputs_ = 0;
};

}  // namespace espalier
