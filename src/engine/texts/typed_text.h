// From a request to what an encoder of texts reads: ids and types, with the marks of late
// interaction, no longer than the model takes.
#pragma once

#include "engine/requests/request.h"
#include "models/decoder_spec.h"
#include "models/model.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier {

// kInvalidArgument for ids that are not the vocabulary's, a text that is too long and may not be
// truncated, and one without a token; kFailedPrecondition for a text where there is no tokenizer
// (null).
Result<TypedIds> typed_text(const GenerateRequest& request, const DecoderSpec& spec,
                            const Tokenizer* tokenizer);

// What of a request an encoder of texts does not do, by name.
Status check_text_request(const GenerateRequest& request, const ModelInfo& info,
                          bool has_tokenizer);

}  // namespace espalier
