// Grouped GEMM on Hopper. Internal to kernels/moe: grouped_linear() chooses the kernel.
// Thread-safe; requirements of pointers as in cuda.h.
#pragma once

#include "kernels/moe/cuda.h"

namespace espalier::kernels::cuda {

// Whether grouped_gemm_sm90() supports these arguments: bfloat16 rows by a plan, either gathered
// and with an activation, or in the order of slots and without one.
bool grouped_gemm_sm90_supports(const GroupedArgs& args, const DeviceTraits& traits);

// Runs as grouped_linear. REQUIRES: grouped_gemm_sm90_supports(args, traits). A row's result
// depends on that row and its expert's matrix alone.
Status grouped_gemm_sm90(const GroupedArgs& args, const DeviceTraits& traits,
                         const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
