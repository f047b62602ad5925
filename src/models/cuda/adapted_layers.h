// Steps in which some rows have a LoRA adapter: the same decoder by a plan whose GEMMs take
// adapters. Steps without adapters run the plain plan, so they cost nothing for it.
//
// Not thread-safe: one thread enqueues; AdaptedMatrices is immutable. Borrows what create() is
// given.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "kernels/linear/cuda.h"
#include "kernels/lora/cuda.h"
#include "models/adapter.h"
#include "models/cuda/context.h"
#include "models/cuda/plan.h"
#include "models/cuda/step.h"
#include "models/cuda/weights.h"
#include "models/decoder_spec.h"
#include "models/program/program.h"
#include "models/weight_id.h"

namespace espalier {

// The matrices that adapters add to, numbered, and their parts as the kernels take them.
class AdaptedMatrices {
 public:
  // rank_max: of an adapter; 0: kDefaultRankMax. kUnimplemented names a matrix whose parts have
  // sizes that the kernels do not take.
  static Result<AdaptedMatrices> create(const DecoderSpec& spec, const program::Program& program,
                                        int32_t rank_max);
  static constexpr int32_t kDefaultRankMax = 256;

  const AdaptedModules& modules() const { return modules_; }
  int32_t count() const { return count_; }
  int32_t rank_max() const { return rank_max_; }  // padded
  // Null where the matrix takes no adapters.
  const kernels::cuda::LoraMatrix* find(WeightId id) const;
  // Where a module's factors stand among an adapter's parts, [count(), kLoraPartsMax].
  int32_t part_index(const AdaptedModule& module) const;
  int64_t workspace_bytes(int32_t max_rows) const;

 private:
  explicit AdaptedMatrices(AdaptedModules modules) : modules_(std::move(modules)) {}
  Status add(const AdaptedModule& module);

  AdaptedModules modules_;
  std::vector<kernels::cuda::LoraMatrix> by_weight_;  // part_count 0: none
  int32_t count_ = 0;
  int32_t rank_max_ = 0;
};

class CudaAdaptedLayers {
 public:
  // lowered: the whole model's program.
  static Result<std::unique_ptr<CudaAdaptedLayers>> create(
      const program::Program& lowered, const DecoderSpec& spec, int32_t rank_max,
      const CudaWeights& weights, kernels::cuda::Linear& linear, CudaLaunchPolicy& policy);

  const CudaPlan& plan() const { return plan_; }
  const AdaptedMatrices& matrices() const { return matrices_; }
  CudaContext& context() { return context_; }
  const CudaContext& context() const { return context_; }

  // Buffers, which may be those of another plan: one of them runs at a time.
  void lay_out(cuda::Arena& arena, const DecoderLimits& limits) { context_.lay_out(arena, limits); }
  // What operations read, and a workspace of the arena's. Returns all of it, for other plans that
  // take adapters.
  CudaScratch bind(cuda::Arena& arena, const DecoderLimits& limits, const CudaScratch& scratch);

 private:
  CudaAdaptedLayers(CudaPlan plan, AdaptedMatrices matrices, const DecoderSpec& spec,
                    const CudaWeights& weights, kernels::cuda::Linear& linear,
                    CudaLaunchPolicy& policy);

  const CudaPlan plan_;
  const AdaptedMatrices matrices_;
  CudaContext context_;
};

}  // namespace espalier
