// Products of few rows, inside kernels/linear: Linear::run() decides which way a product goes.
#pragma once

#include "kernels/linear/cuda.h"

namespace espalier::kernels::cuda {

// Whether small_linear() takes these; `norm` too where norm_weight is set.
bool small_linear_takes(const LinearArgs& args, const DeviceTraits& traits);

// As Linear::run. REQUIRES: small_linear_takes(args). With launch.pdl the first weights are
// fetched while the kernel before this one still runs.
Status small_linear(const LinearArgs& args, const DeviceTraits& traits,
                    const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
