// Attention over latents of 576 numbers that are keys and values at once, for heads by sixteens.
// Inside kernels/attention.
#pragma once

#include <cstddef>

#include "kernels/attention/cuda.h"

namespace espalier::kernels::cuda {

bool latent_shape(const AttentionShape& shape, const DeviceTraits& traits);
// For steps of any size.
size_t latent_workspace_bytes(const DeviceTraits& traits);
// It needs no plan. REQUIRES latent_shape, a workspace of so many bytes, keys and values in one
// plane, and neither softcap nor sinks.
Status attention_latent(const AttentionArgs& args, const DeviceTraits& traits,
                        const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
