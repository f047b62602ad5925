// What the families that descend from Llama share when they read a config.json.
#pragma once

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "models/decoder_spec.h"

namespace espalier {

// Sizes, norms, rope, MLP and head of a Llama-like model, every layer alike; no biases, no qk-norm,
// no windows: a family adds its own. `head_dim` is what holds where config.json has none (0:
// hidden_size / num_attention_heads). Fields that change the mathematics and are not honoured
// (another activation, a quantisation, an unknown rope type) are refused by name.
Result<DecoderSpec> read_llama_like(const JsonObject& config, int32_t head_dim = 0);

// rope_parameters (transformers 5), or rope_theta and rope_scaling (before).
Result<RopeSpec> read_rope(const JsonObject& config, int32_t head_dim, int32_t context_length);

// Sliding windows as Qwen configures them: use_sliding_window, and layer_types or
// max_window_layers.
Status read_qwen_windows(const JsonObject& config, DecoderSpec& spec);

}  // namespace espalier
