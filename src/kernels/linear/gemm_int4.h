// GEMM for few rows with weights of 4 bits. Internal to kernels/linear: Linear::run() chooses the
// kernel. Thread-safe; requirements of pointers as in cuda.h.
#pragma once

#include <optional>

#include "kernels/linear/cuda.h"

namespace espalier::kernels::cuda {

// The largest number of rows.
inline constexpr int32_t kInt4GemmRows = 256;

// How the GEMM is divided among blocks.
struct Int4GemmConfig {
  int groups = 4;  // of 16 rows of weights in a block: 1 to 16
  int splits = 1;  // blocks among which the inputs are split (split-K): 1 or 2
  // Whether a block takes only half of a multiprocessor's shared memory, so that a block of the
  // next kernel fits beside it.
  bool half_shared = false;
};

// The configuration for these arguments; none where gemm_int4() does not support them.
std::optional<Int4GemmConfig> int4_gemm_config(const LinearArgs& args, const DeviceTraits& traits);

// Whether gemm_int4() supports these arguments in this configuration. REQUIRES: norm_weight is
// null.
bool gemm_int4_supports(const LinearArgs& args, const Int4GemmConfig& config,
                        const DeviceTraits& traits);

// Runs as Linear::run. REQUIRES: gemm_int4_supports(args, config, traits). With launch.pdl the
// first weights are fetched while the kernel before this one still runs. A row's result depends on
// that row, the weights, the configuration and the power of two that the number of rows is rounded
// up to.
Status gemm_int4(const LinearArgs& args, const Int4GemmConfig& config, const DeviceTraits& traits,
                 const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
