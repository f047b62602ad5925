// Products of a batch's rows, inside kernels/linear: Linear::run() decides which way a product
// goes.
#pragma once

#include <optional>

#include "kernels/linear/cuda.h"

namespace espalier::kernels::cuda {

// Up to so many rows.
inline constexpr int32_t kBatchRows = 64;

// How the work is shared out among blocks.
struct BatchWay {
  int groups = 4;  // of 16 rows of weights that a block has: 1 to 16
  int splits = 1;  // blocks that have a part of the inputs each: 1 or 2
  // Half a multiprocessor's shared memory, so that a block of the next kernel fits beside.
  bool half = true;

  friend bool operator==(const BatchWay&, const BatchWay&) = default;
};

// The way that is best for these; none where batch_linear() does not take them.
std::optional<BatchWay> batch_way(const LinearArgs& args, const DeviceTraits& traits);

// Whether batch_linear() takes these this way. norm_weight must not be set.
bool batch_linear_takes(const LinearArgs& args, const BatchWay& way, const DeviceTraits& traits);

// As Linear::run. REQUIRES: batch_linear_takes(args, way, traits). With launch.pdl the first
// weights are fetched while the kernel before this one still runs. A row's result depends on that
// row, the weights and the way alone.
Status batch_linear(const LinearArgs& args, const BatchWay& way, const DeviceTraits& traits,
                    const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
