// The memory with which latent attention computes the keys and values of a step's long entries
// (kernels/attention/latent_prefill.h), and which steps have room in it.
//
// Not thread-safe; the memory is borrowed from the arena of lay_out().
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/status.h"
#include "models/cuda/scratch.h"
#include "models/cuda/step.h"
#include "models/program/gpu_passes.h"
#include "tensor/cuda/memory.h"
#include "tensor/dtype.h"

namespace espalier {

struct AttentionLimits;

class CudaExpandedLatents {
 public:
  // alternatives: of the program; none is a kLatentPrefill: no step expands.
  CudaExpandedLatents(std::span<const program::Alternative> alternatives, DType type);

  // Takes no memory where the device has no kernel for the heads, and where results may not depend
  // on a step's shape.
  Status lay_out(cuda::Arena& arena, const AttentionLimits& limits);

  // Whether the step's long entries are expanded: it has some, and there is room for all of them.
  bool takes(const CudaStep& step) const {
    return step.expanded.rows > 0 && step.expanded.rows <= scratch_.max_rows;
  }
  const CudaExpandedScratch& scratch() const { return scratch_; }

 private:
  std::optional<program::LatentPrefill> shape_;
  const DType type_;
  CudaExpandedScratch scratch_;
};

}  // namespace espalier
