// The spec of a draft head beside a model. Pure function.
#pragma once

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "models/decoder_spec.h"

namespace espalier {

// config: of the head's folder. Validated; kUnimplemented for another kind of draft model,
// kInvalidArgument names a field that does not fit the target.
Result<DecoderSpec> make_draft_spec(const JsonObject& config, const DecoderSpec& target);

}  // namespace espalier
