#include "models/families/text_encoder.h"

#include <cmath>
#include <utility>

#include "models/families/clip_vision.h"
#include "models/families/common.h"
#include "models/pooling_config.h"

namespace espalier {
namespace {

// "torch.nn.modules.activation.Sigmoid" of sentence-transformers' CrossEncoder, which older
// releases name by another field; empty: it is not stated.
Result<std::string> read_score_activation(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(std::string name,
                       config.string_or("sbert_ce_default_activation_function", ""));
  if (!config.has("sentence_transformers")) return name;
  ESP_ASSIGN_OR_RETURN(const JsonObject own, config.object("sentence_transformers"));
  return own.string_or("activation_fn", name);
}

}  // namespace

Result<std::string> first_architecture(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const std::vector<std::string> names, config.strings("architectures"));
  return names.empty() ? std::string() : names[0];
}

bool is_classifier(std::string_view architecture) {
  return architecture.ends_with("ForSequenceClassification");
}

Result<AttentionSpec> read_text_attention(const JsonObject& config, int32_t hidden_size) {
  AttentionSpec a;
  ESP_ASSIGN_OR_RETURN(a.num_heads, read_size_or(config, "num_attention_heads", 12));
  a.num_kv_heads = a.num_heads;
  a.head_dim = hidden_size / a.num_heads;
  if (a.head_dim * a.num_heads != hidden_size)
    return fail(config.field_error("num_attention_heads", "must divide hidden_size"));
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  a.causal = false;
  return a;
}

Result<MlpSpec> read_text_mlp(const JsonObject& config, std::string_view field) {
  MlpSpec mlp;
  ESP_ASSIGN_OR_RETURN(mlp.intermediate_size, read_size(config, "intermediate_size"));
  ESP_ASSIGN_OR_RETURN(const std::string name, config.string_or(field, "gelu"));
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") {
    mlp.activation = kernels::Activation::kGeluTanh;
  } else if (name != "silu" && name != "swish") {
    ESP_ASSIGN_OR_RETURN(mlp.gelu, read_gelu(config, field, "gelu"));
  }
  return mlp;
}

Status set_classes(const JsonObject& config, std::vector<TextsSpec::HeadLayer> layers,
                   const std::string& last, DecoderSpec& spec) {
  spec.pooling->normalize = false;
  ESP_ASSIGN_OR_RETURN(spec.pooling->labels, read_labels(config, 2));
  layers.push_back({.name = last, .outputs = static_cast<int32_t>(spec.pooling->labels.size())});
  spec.texts->head = std::move(layers);
  spec.texts->pairs = true;
  ESP_ASSIGN_OR_RETURN(const std::string activation, read_score_activation(config));
  const bool sigmoid = activation.empty() || activation.ends_with("Sigmoid");
  if (!sigmoid && !activation.ends_with("Identity"))
    return error(StatusCode::kUnimplemented,
                 "{}: the activation of scores is '{}'; Sigmoid and Identity are supported",
                 config.name(), activation);
  spec.texts->sigmoid = sigmoid && spec.pooling->labels.size() == 1;
  for (const TextsSpec::HeadLayer& layer : spec.texts->head) {
    spec.names.unused_prefixes.push_back(layer.name + ".");
    if (layer.norm) spec.names.unused_prefixes.push_back(layer.norm_name + ".");
  }
  return Status();
}

}  // namespace espalier
