// Phi 3, 3.5 and 4: Llama with q, k and v in one tensor, gate and up in another, a part of each
// head rotated in some sizes, and longrope. Source: transformers, models/phi3.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {

Result<DecoderSpec> make_phi3_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_mistral_spec(config));  // the same window
  spec.names.qkv = "model.layers.{}.self_attn.qkv_proj";
  spec.names.gate_up = "model.layers.{}.mlp.gate_up_proj";
  return spec;
}

}  // namespace espalier
