// GEMM for few rows, of bfloat16 or of e4m3. Internal to kernels/linear: Linear::run() chooses the
// kernel. Thread-safe; requirements of pointers as in cuda.h.
#pragma once

#include <optional>

#include "kernels/linear/cuda.h"

namespace espalier::kernels::cuda {

// The largest numbers of rows.
inline constexpr int32_t kSmallBatchRows = 64, kSmallBatchRowsE4m3 = 128;

// How the GEMM is divided among blocks.
struct SmallBatchConfig {
  int groups = 4;  // of 16 rows of weights in a block: 1 to 16
  int splits = 1;  // blocks among which the inputs are split (split-K): 1 or 2
  // Whether a block takes only half of a multiprocessor's shared memory, so that a block of the
  // next kernel fits beside it.
  bool half_shared = true;

  friend bool operator==(const SmallBatchConfig&, const SmallBatchConfig&) = default;
};

// The configuration that is best for these arguments; none where gemm_small_batch() does not
// support them.
std::optional<SmallBatchConfig> small_batch_config(const LinearArgs& args,
                                                   const DeviceTraits& traits);

// Whether gemm_small_batch() supports these arguments in this configuration. REQUIRES: norm_weight
// is null; with weight_scales x is e4m3 already.
bool gemm_small_batch_supports(const LinearArgs& args, const SmallBatchConfig& config,
                               const DeviceTraits& traits);

// Runs as Linear::run. REQUIRES: gemm_small_batch_supports(args, config, traits). With launch.pdl
// the first weights are fetched while the kernel before this one still runs. A row's result depends
// on that row, the weights and the configuration alone.
Status gemm_small_batch(const LinearArgs& args, const SmallBatchConfig& config,
                        const DeviceTraits& traits, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
