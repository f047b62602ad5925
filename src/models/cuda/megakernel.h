// The persistent kernel that runs the embedding and all layers of a step of one token, from the
// program that it stands for.
//
// Not thread-safe: run() fills the pages of the step into its list of layers. Borrows the weights
// and its workspace.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/megakernel/cuda.h"
#include "models/cuda/context.h"
#include "models/cuda/weights.h"
#include "models/decoder_spec.h"
#include "models/program/program.h"

namespace espalier {

class CudaMegakernel {
 public:
  // program: the same layers kernel by kernel, after the GPU's passes. ropes: of each of the
  // spec's.
  CudaMegakernel(const program::Program& program, const DecoderSpec& spec,
                 const CudaWeights& weights, std::span<const float* const> ropes);

  const kernels::cuda::MegakernelShape& shape() const { return shape_; }
  void set_workspace(std::byte* data, int64_t bytes);
  // Keys and values of a token in one layer, in bytes of bfloat16.
  int64_t kv_bytes_per_token() const;

  Status run(CudaContext& context, const program::Op& op) const;

 private:
  void add_op(const program::Op& op, const DecoderSpec& spec, std::span<const float* const> ropes);

  kernels::cuda::MegakernelShape shape_;
  mutable std::vector<kernels::cuda::MegakernelLayer> layers_;  // k and v are the step's
  std::byte* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
};

}  // namespace espalier
