// Steps of one token of one entry, whose embedding and layers run as one persistent kernel where
// the model's shape and the pages allow it.
//
// Not thread-safe: one thread enqueues. Borrows what its constructor is given.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/status.h"
#include "kernels/linear/cuda.h"
#include "models/cuda/context.h"
#include "models/cuda/megakernel.h"
#include "models/cuda/plan.h"
#include "models/cuda/prologue.h"
#include "models/cuda/ropes.h"
#include "models/cuda/step.h"
#include "models/cuda/weights.h"
#include "models/decoder_spec.h"
#include "models/program/program.h"

namespace espalier {

class CudaOneToken {
 public:
  // Null where the lowered program has another form than the kernel's. fused: the same program
  // after the GPU's passes, from which the kernel's list of layers is made.
  static Result<std::unique_ptr<CudaOneToken>> create(const program::Program& lowered,
                                                      const program::Program& fused,
                                                      const DecoderSpec& spec,
                                                      const CudaWeights& weights,
                                                      const CudaRopes& ropes);

  // Of entries with more cached tokens the layers run kernel by kernel: the one kernel reads long
  // caches slower. all_windows: every layer has a sliding window, so that caches stay short.
  // Returns the bytes of its workspace; 0: the kernel does not run on such pages, or may not.
  Result<int64_t> reserve(const AttentionLimits& limits, bool all_windows,
                          kernels::cuda::Linear& linear, CudaLaunchPolicy& policy);
  // workspace: of the size that reserve() returned. From an arena without a block this measures.
  void lay_out(cuda::Arena& arena, std::byte* workspace, int64_t workspace_bytes,
               const CudaScratch& scratch);

  void set_on(bool on) { on_ = on; }
  bool reserved() const { return context_.has_value(); }
  int64_t num_steps() const { return num_steps_; }  // enqueued so far
  int32_t context_max() const { return context_max_; }

  // Whether run() takes this step: the kernel reads one page table.
  bool takes(const CudaStep& step) const;
  Status run(const CudaStep& step, const KvView& kv, const cuda::Stream& stream);
  // Where the step's hidden states are. REQUIRES: reserved().
  CudaContext& context() { return *context_; }

 private:
  CudaOneToken(CudaPlan plan, const program::Program& fused, const DecoderSpec& spec,
               const CudaWeights& weights, const CudaRopes& ropes);

  const CudaPlan plan_;
  const DecoderSpec& spec_;
  const CudaWeights& weights_;
  CudaMegakernel megakernel_;
  std::optional<CudaContext> context_;  // where the kernel runs on these pages
  bool on_ = true;
  bool all_windows_ = false;
  int64_t num_steps_ = 0;
  int32_t context_max_ = 0;  // cached tokens; set by reserve()
};

}  // namespace espalier
