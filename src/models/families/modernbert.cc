// ModernBERT: an encoder of texts with norms in front of blocks, none of which has biases, rotary
// positions, a gated MLP, and layers that see some rows on either side between those that see all.
// Source: Warner et al. 2024; transformers, models/modernbert.
#include "models/families/common.h"
#include "models/families/family.h"
#include "models/families/text_encoder.h"

namespace espalier {
namespace {

WeightNames modernbert_names() {
  WeightNames names;
  names.embedding = "model.embeddings.tok_embeddings";
  names.embedding_norm = "model.embeddings.norm";
  names.input_norm = "model.layers.{}.attn_norm";
  names.qkv = "model.layers.{}.attn.Wqkv";
  names.attention_output = "model.layers.{}.attn.Wo";
  names.post_attention_norm = "model.layers.{}.mlp_norm";
  names.gate_up = "model.layers.{}.mlp.Wi";
  names.down = "model.layers.{}.mlp.Wo";
  names.final_norm = "model.final_norm";
  names.unused_prefixes = {"decoder.", "head."};  // of pretraining, or read by the host
  return names;
}

struct Layers {
  std::vector<bool> local;
  RopeSpec of_all, of_local;
};

// Which layers see a window alone, and how far each kind's positions turn: two fields of one number
// each, or (transformers 5) a list and an object for each kind.
Result<Layers> read_kinds(const JsonObject& config, size_t count, const AttentionSpec& a,
                          int32_t context_length) {
  Layers out;
  ESP_ASSIGN_OR_RETURN(out.local, read_layer_types(config, count));
  if (out.local.empty()) {
    ESP_ASSIGN_OR_RETURN(const int64_t every,
                         config.integer_or("global_attn_every_n_layers", 3, 1, 4096));
    for (size_t i = 0; i < count; ++i) out.local.push_back(i % static_cast<size_t>(every) != 0);
  }
  out.of_all.rotary_dim = out.of_local.rotary_dim = a.head_dim;
  ESP_ASSIGN_OR_RETURN(out.of_all.theta, read_positive_or(config, "global_rope_theta", 160000.0));
  ESP_ASSIGN_OR_RETURN(out.of_local.theta, read_positive_or(config, "local_rope_theta", 10000.0));
  if (!config.has("rope_parameters")) return out;
  ESP_ASSIGN_OR_RETURN(const JsonObject ropes, config.object("rope_parameters"));
  for (const auto& [name, rope] :
       {std::pair{"full_attention", &out.of_all}, std::pair{"sliding_attention", &out.of_local}}) {
    if (!ropes.has(name)) continue;
    ESP_ASSIGN_OR_RETURN(const JsonObject own, ropes.object(name));
    ESP_ASSIGN_OR_RETURN(*rope,
                         read_rope_parameters(config, own, *rope, a.head_dim, context_length));
  }
  return out;
}

Status refuse_modernbert_variants(const JsonObject& config) {
  for (const char* field : {"attention_bias", "mlp_bias", "norm_bias"}) {
    ESP_ASSIGN_OR_RETURN(const bool bias, config.boolean_or(field, false));
    if (bias)
      return error(StatusCode::kUnimplemented, "{}: '{}' is true, which is not supported",
                   config.name(), field);
  }
  return Status();
}

Status set_modernbert_classes(const JsonObject& config, const NormSpec& norm, DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const std::string pooling, config.string_or("classifier_pooling", "cls"));
  if (pooling != "cls" && pooling != "mean")
    return config.field_error("classifier_pooling", "is '" + pooling + "'; known are cls and mean");
  spec.pooling->kind = pooling == "cls" ? PoolingSpec::Kind::kFirst : PoolingSpec::Kind::kMean;
  TextsSpec::HeadLayer layer{.name = "head.dense",
                             .outputs = spec.hidden_size,
                             .activation = TextsSpec::HeadLayer::Activation::kGelu,
                             .norm = norm,
                             .norm_name = "head.norm"};
  ESP_ASSIGN_OR_RETURN(layer.bias, config.boolean_or("classifier_bias", false));
  ESP_ASSIGN_OR_RETURN(const std::string activation,
                       config.string_or("classifier_activation", "gelu"));
  if (activation != "gelu")
    return config.field_error("classifier_activation", "is '" + activation + "'; known is gelu");
  return set_classes(config, {std::move(layer)}, "classifier", spec);
}

}  // namespace

Result<DecoderSpec> make_modernbert_spec(const JsonObject& config) {
  ESP_RETURN_IF_ERROR(refuse_modernbert_variants(config));
  DecoderSpec spec;
  ESP_ASSIGN_OR_RETURN(spec.model_type, config.string_or("model_type", "modernbert"));
  ESP_ASSIGN_OR_RETURN(spec.vocab_size, read_size(config, "vocab_size"));
  ESP_ASSIGN_OR_RETURN(spec.hidden_size, read_size(config, "hidden_size"));
  ESP_ASSIGN_OR_RETURN(spec.context_length, read_size_or(config, "max_position_embeddings", 8192));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  NormSpec norm{.kind = NormSpec::Kind::kLayer};
  ESP_ASSIGN_OR_RETURN(norm.epsilon, read_positive_or(config, "norm_eps", 1e-5));
  spec.texts = TextsSpec{.norm = norm};
  spec.final_norm = norm;
  LayerSpec layer{.input_norm = norm, .post_attention_norm = norm};
  ESP_ASSIGN_OR_RETURN(layer.attention, read_text_attention(config, spec.hidden_size));
  ESP_ASSIGN_OR_RETURN(layer.mlp, read_text_mlp(config, "hidden_activation"));
  ESP_ASSIGN_OR_RETURN(const int64_t count, config.integer_or("num_hidden_layers", 22, 1, 4096));
  ESP_ASSIGN_OR_RETURN(const int32_t window, read_size_or(config, "local_attention", 128));
  ESP_ASSIGN_OR_RETURN(const Layers kinds, read_kinds(config, static_cast<size_t>(count),
                                                      layer.attention, spec.context_length));
  spec.ropes = {kinds.of_all, kinds.of_local};
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    LayerSpec& own = spec.layers.emplace_back(layer);
    if (i == 0) own.input_norm.reset();  // the embedding's norm is in front of it
    own.attention.rope = kinds.local[i] ? 1 : 0;
    own.attention.reach = kinds.local[i] ? std::max(1, window / 2) : 0;
  }
  spec.names = modernbert_names();
  spec.names.absent_suffixes = {"norm.bias"};
  spec.pooling = PoolingSpec{.kind = PoolingSpec::Kind::kFirst, .normalize = true};
  ESP_ASSIGN_OR_RETURN(const std::string name, first_architecture(config));
  if (is_classifier(name)) ESP_RETURN_IF_ERROR(set_modernbert_classes(config, norm, spec));
  return spec;
}

}  // namespace espalier
