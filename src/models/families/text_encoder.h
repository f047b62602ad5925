// What the families of encoders of texts share when they read a config.json.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "models/decoder_spec.h"

namespace espalier {

// config.json's architectures[0].
Result<std::string> first_architecture(const JsonObject& config);
// "XForSequenceClassification".
bool is_classifier(std::string_view architecture);

// Heads, their size and their scale; rows see their whole text.
Result<AttentionSpec> read_text_attention(const JsonObject& config, int32_t hidden_size);

// intermediate_size and the activation that `field` names: gelu, gelu_new, gelu_pytorch_tanh or
// silu. Any other is refused by name.
Result<MlpSpec> read_text_mlp(const JsonObject& config, std::string_view field);

// A head of these layers and of one more, `last`, with an output for each label. Also what is made
// of a single output: a sigmoid, unless sentence-transformers' activation says otherwise.
Status set_classes(const JsonObject& config, std::vector<TextsSpec::HeadLayer> layers,
                   const std::string& last, DecoderSpec& spec);

}  // namespace espalier
