// Steps whose hidden states are returned. They run a second plan of the same decoder, which
// computes all rows to the end of the last layer and calls CudaStep::on_states behind each layer.
// Other steps run the plain plan and cost nothing more.
//
// Not thread-safe: one thread enqueues. Borrows what create() is given.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"
#include "kernels/linear/cuda.h"
#include "models/cuda/context.h"
#include "models/cuda/plan.h"
#include "models/cuda/step.h"
#include "models/cuda/weights.h"
#include "models/decoder_spec.h"
#include "models/program/program.h"

namespace espalier {

class CudaStateLayers {
 public:
  // lowered: the whole model's program. adapters: its GEMMs take them.
  static Result<std::unique_ptr<CudaStateLayers>> create(const program::Program& lowered,
                                                         bool adapters, const DecoderSpec& spec,
                                                         const CudaWeights& weights,
                                                         kernels::cuda::Linear& linear,
                                                         CudaLaunchPolicy& policy);

  const CudaPlan& plan() const { return plan_; }
  CudaContext& context() { return context_; }
  const CudaContext& context() const { return context_; }

  // Buffers, which may be those of another plan: one of them runs at a time.
  void lay_out(cuda::Arena& arena, const DecoderLimits& limits) { context_.lay_out(arena, limits); }
  void bind(const CudaScratch& scratch) { context_.bind(scratch); }

  // Enqueues all operations in front of the output section, and calls step.on_states between them.
  // REQUIRES: step.returns_states; the context has begun the step.
  Status run(const CudaStep& step);

 private:
  CudaStateLayers(CudaPlan plan, const DecoderSpec& spec, const CudaWeights& weights,
                  kernels::cuda::Linear& linear, CudaLaunchPolicy& policy);

  const CudaPlan plan_;
  CudaContext context_;
  program::Operand hidden_;
  std::vector<size_t> first_ops_;  // of each layer
  size_t layers_end_ = 0;          // behind the last one
};

}  // namespace espalier
