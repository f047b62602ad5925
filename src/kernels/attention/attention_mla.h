// Multi-head latent attention: latents of 576 elements that are keys and values at once, heads in
// tiles of 16. Internal to kernels/attention; requirements and ownership as cuda.h.
#pragma once

#include <cstddef>

#include "kernels/attention/cuda.h"

namespace espalier::kernels::cuda {

bool mla_shape(const AttentionShape& shape, const DeviceTraits& traits);
// Bytes of workspace for steps of any size.
size_t mla_workspace_bytes(const DeviceTraits& traits);
// Needs no attention_plan(). REQUIRES: mla_shape(), a workspace of mla_workspace_bytes(), keys and
// values in one plane, and neither softcap nor sinks.
Status attention_mla(const AttentionArgs& args, const DeviceTraits& traits,
                     const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
