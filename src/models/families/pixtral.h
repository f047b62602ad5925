// Pixtral (Agrawal et al. 2024) in its two forms: beside Mistral Nemo, as a LLaVA whose
// vision_config is Pixtral's, and in Mistral Small 3.1, which merges patches. Pure functions.
#pragma once

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "models/decoder_spec.h"

namespace espalier {

// Whether a LLaVA's encoder is Pixtral's.
bool is_pixtral(const JsonObject& config);
// Of such a LLaVA.
Result<DecoderSpec> make_pixtral_spec(const JsonObject& config);
Result<DecoderSpec> make_pixtral_encoder(const JsonObject& config);

}  // namespace espalier
