// What families that read pictures share: a decoder whose config.json and tensors lie within a
// larger model's, beside an encoder's. Pure functions.
#pragma once

#include <string_view>

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "models/decoder_spec.h"

namespace espalier {

// text_config, with the fields of `defaults`, a JSON object, where it leaves them out: releases
// state what differs from their family's defaults alone.
Result<JsonObject> read_nested_text(const JsonObject& config, std::string_view defaults);

// The decoder's tensors under "language_model." or as other releases name them, and the encoder's
// as unread. names: as a text model's.
void nest_text_names(WeightNames& names);

// Of an encoder: the decoder's tensors are there unread.
void leave_text_unread(WeightNames& names);

// image_token_id, or image_token_index as it was called before. Fails by the field's name where it
// is no token of the vocabulary.
Result<TokenId> read_placeholder(const JsonObject& config, int64_t otherwise, int32_t vocab_size);

// Layers of an encoder up to vision_feature_layer, an index into transformers' hidden states: -1
// all of them, 0 the embeddings.
Result<int64_t> count_read_layers(const JsonObject& config, int64_t num_layers);

}  // namespace espalier
