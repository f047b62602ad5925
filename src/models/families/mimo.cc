// MiMo 7B: Qwen 2, whose checkpoints have layers for multi-token prediction beside the model's
// (mtp.cc).
// Source: Xiaomi's report (MiMo, 2025), section 2.2; the released modeling_mimo.
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {

Result<DecoderSpec> make_mimo_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_qwen2_spec(config));
  spec.names.unused_prefixes.push_back("model.mtp_layers.");
  return spec;
}

}  // namespace espalier
