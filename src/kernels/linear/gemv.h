// GEMV for 1 and 2 rows. Internal to kernels/linear: Linear::run() chooses the kernel. Thread-safe;
// requirements of pointers as in cuda.h.
#pragma once

#include "kernels/linear/cuda.h"

namespace espalier::kernels::cuda {

// Whether gemv() supports these arguments; with norm_weight set it normalises x itself.
bool gemv_supports(const LinearArgs& args, const DeviceTraits& traits);

// Runs as Linear::run. REQUIRES: gemv_supports(args). With launch.pdl the first weights are fetched
// while the kernel before this one still runs.
Status gemv(const LinearArgs& args, const DeviceTraits& traits, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
