// Mistral 7B and its kin: Llama with a sliding window in every layer (null in the later releases).
// Source: transformers, models/mistral.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {

Result<DecoderSpec> make_mistral_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_llama_like(config));
  ESP_ASSIGN_OR_RETURN(const int64_t window, config.integer_or("sliding_window", 0, 0, 1 << 30));
  for (LayerSpec& layer : spec.layers) {
    layer.attention.sliding_window = static_cast<int32_t>(window);
  }
  return spec;
}

}  // namespace espalier
