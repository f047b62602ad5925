// Vision encoders of CLIP's shape, which several families of models see with: CLIP (Radford et al.
// 2021: a class token, a norm in front of the layers, quick GELU) and SigLIP (Zhai et al. 2023:
// neither of the first two, and a bias of the patch embedding). Pure functions.
// Source: transformers, models/clip and models/siglip.
#pragma once

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "models/decoder_spec.h"

namespace espalier {

// The encoder of a model's vision_config, up to feature_layer: an index into transformers' hidden
// states, 0 the embeddings and -1 the last layer's. Without a projector, which the caller sets.
Result<DecoderSpec> read_clip_vision(const JsonObject& config, int32_t feature_layer);

// The GELU of an encoder or a projector, `otherwise` where the field is absent.
Result<kernels::Gelu> read_gelu(const JsonObject& config, std::string_view field,
                                const char* otherwise);

}  // namespace espalier
