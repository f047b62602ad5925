// Internal to kernels/moe: the grouped GEMMs of decode steps on Hopper (experts_decode.cu).
#pragma once

#include "kernels/moe/cuda.h"

namespace espalier::kernels::cuda {

// Whether these arguments suit: bfloat16 or e4m3 by a permutation, few rows a group, the first GEMM
// with its activation (pairs_per_row is not 0) or the second one.
bool experts_decode_supports(const GroupedArgs& args, const DeviceTraits& traits);
// REQUIRES: experts_decode_supports(args).
Status experts_decode(const GroupedArgs& args, const DeviceTraits& traits,
                      const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
