// What the interpreter runs: a program after the GPU's passes, each operation bound to the function
// that launches its kernels, and where its buffers lie in one block of scratch.
//
// Immutable after create(), so any thread may read it. Makes no call to a device: a plan is made
// and tested on systems without one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "models/program/gpu_passes.h"
#include "models/program/memory_plan.h"
#include "models/program/program.h"
#include "tensor/dtype.h"

namespace espalier {

class CudaContext;

// Enqueues the kernels of one operation of the step that the context is in.
using CudaOp = Status (*)(CudaContext& context, const program::Op& op);
// Null: the GPU does not run this kind.
CudaOp cuda_op(program::OpKind kind);

// Whether it writes new keys and values to the pages.
bool appends(const program::Op& op);

// The largest step, in rows of each kind.
struct DecoderLimits {
  int32_t max_tokens = 0;
  int32_t max_outputs = 0;  // rows of logits of one run of the output section
  int32_t num_ranks = 1;    // that have max_tokens of their own each
};

class CudaPlan {
 public:
  struct BoundOp {
    CudaOp run = nullptr;
    program::Op op;
    // Index into alternatives() of the one that begins here; -1: none.
    int32_t alternative = -1;
  };

  // kUnimplemented names the first operation that the GPU has no kernel for.
  static Result<CudaPlan> create(program::Program program);

  const program::Program& program() const { return program_; }
  const std::vector<BoundOp>& ops() const { return ops_; }
  const std::vector<program::Alternative>& alternatives() const { return alternatives_; }
  // Operations [0, output_begin) compute the hidden states, the others the logits.
  size_t output_begin() const { return output_begin_; }
  // Where a step without wanted rows ends: behind the last append to pages, whose effect outlives
  // the step, and behind the states that are kept for a draft head or handed to the next stage of
  // a pipeline.
  size_t append_end() const { return append_end_; }
  // A stage of a pipeline that is not the last one has none.
  bool has_logits() const { return output_begin_ < ops_.size(); }

  // Of the buffers of activations of the weights' type. The buffer of logits is the caller's.
  program::MemoryPlan place(const DecoderLimits& limits, DType type) const;
  // Rows that a buffer has room for.
  static int64_t max_rows(const program::Rows& rows, const DecoderLimits& limits);

 private:
  program::Program program_;
  std::vector<BoundOp> ops_;
  std::vector<program::Alternative> alternatives_;
  size_t output_begin_ = 0;
  size_t append_end_ = 0;
};

}  // namespace espalier
