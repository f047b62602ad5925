// Internal to kernels/moe: the experts of one row in codes of 4 bits on Hopper
// (one_row_coded_experts.cu), behind the scores of small_batch_moe().
#pragma once

#include "kernels/moe/cuda_small_batch.h"

namespace espalier::kernels::cuda {

// Whether these arguments suit: args.int4 or args.mxfp4, one row, no shared expert.
bool one_row_coded_supports(const SmallBatchMoeArgs& args, const DeviceTraits& traits);
// Both GEMVs of the experts that args.scores select. REQUIRES: one_row_coded_supports(args,
// traits), and the kernel before in the stream writes the scores and the normalised row.
Status one_row_coded_experts(const SmallBatchMoeArgs& args, const DeviceTraits& traits,
                             const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
