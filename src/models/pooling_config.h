// Which models make a vector of a text instead of generating, and how: by their architecture's
// name, by the modules of a sentence-transformers folder, or because the user requests it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "models/decoder_spec.h"

namespace espalier {

// What follows a family's name in an architecture's: "LlamaForSequenceClassification" is Llama with
// a head for classes.
enum class PooledUse {
  kNone,
  kModel,    // "XModel": no head at all; embeddings
  kClasses,  // "XForSequenceClassification": one layer, "score"
  kReward,   // "XForRewardModel": two layers, "score.0" and "score.2"
};
struct PooledArchitecture {
  PooledUse use = PooledUse::kNone;
  std::string_view family;  // what stands before
};
PooledArchitecture pooled_architecture(std::string_view architecture);

// id2label's names, or LABEL_0 ...; their number is num_labels, else id2label's, else `otherwise`.
Result<std::vector<std::string>> read_labels(const JsonObject& config, int64_t otherwise);

// Makes `spec`, that of the family's generating model, one that makes vectors. Refuses attention
// to both sides by name.
Status set_pooling(const JsonObject& config, PooledUse use, DecoderSpec& spec);

// Follows the folder's modules.json, where there is one, in a model that has no head for scores:
// its Pooling, whether it normalises, of encoders of texts its Dense layers. Refuses by name what
// is not done (other poolings and modules). Of encoders of texts also sentence_bert_config.json's
// longest text, and ColBERT's artifact.metadata. `forced`: also a generating architecture without
// modules.json makes embeddings.
Status set_pooling_modules(const std::filesystem::path& folder, const JsonObject& config,
                           bool forced, DecoderSpec& spec);

}  // namespace espalier
