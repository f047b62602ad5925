// Internal to kernels/moe: the grouped GEMM of experts in MXFP4 on Hopper (mxfp4_experts.cu).
#pragma once

#include "kernels/moe/cuda.h"

namespace espalier::kernels::cuda {

// Whether these arguments suit: bfloat16 rows by a permutation, the first GEMM with its activation
// (pairs_per_row is not 0) or the second one.
bool mxfp4_experts_supports(const GroupedArgs& args, const DeviceTraits& traits);
// Runs as grouped_linear. REQUIRES: mxfp4_experts_supports(args, traits). A row's result depends on
// that row, its expert's matrix and, unless args.row_invariant, on how many rows the expert has.
Status mxfp4_experts(const GroupedArgs& args, const DeviceTraits& traits,
                     const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
