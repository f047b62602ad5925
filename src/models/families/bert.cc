// BERT, RoBERTa and XLM-R: encoders of texts with learned positions, types of tokens, norms behind
// sums and an MLP without a gate; RoBERTa counts positions from behind the padding's. ColBERT is
// BERT with a matrix behind it, which makes a vector of each token.
// Sources: Devlin et al. 2018; Liu et al. 2019; Khattab and Zaharia 2020; transformers, models/bert
// and models/roberta.
#include <cmath>

#include "models/families/common.h"
#include "models/families/family.h"
#include "models/families/text_encoder.h"
#include "models/pooling_config.h"

namespace espalier {
namespace {

WeightNames bert_names(const std::string& top) {
  WeightNames names;
  const std::string layer = top + "encoder.layer.{}.";
  names.embedding = top + "embeddings.word_embeddings";
  names.position_embedding = top + "embeddings.position_embeddings";
  names.type_embedding = top + "embeddings.token_type_embeddings";
  names.embedding_norm = top + "embeddings.LayerNorm";
  names.q = layer + "attention.self.query";
  names.k = layer + "attention.self.key";
  names.v = layer + "attention.self.value";
  names.attention_output = layer + "attention.output.dense";
  names.attention_output_norm = layer + "attention.output.LayerNorm";
  names.up = layer + "intermediate.dense";
  names.down = layer + "output.dense";
  names.mlp_output_norm = layer + "output.LayerNorm";
  // Of pretraining, and of BERT's pooler, which classification alone has.
  for (const std::string& unused :
       {std::string("cls."), std::string("lm_head."), top + "pooler.", std::string("pooler."),
        top + "embeddings.position_ids", std::string("embeddings.position_ids")})
    names.unused_prefixes.push_back(unused);
  return names;
}

Status refuse_bert_variants(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const std::string positions,
                       config.string_or("position_embedding_type", "absolute"));
  ESP_ASSIGN_OR_RETURN(const bool decoder, config.boolean_or("is_decoder", false));
  ESP_ASSIGN_OR_RETURN(const bool cross, config.boolean_or("add_cross_attention", false));
  if (positions == "absolute" && !decoder && !cross) return Status();
  return error(StatusCode::kUnimplemented,
               "{}: 'position_embedding_type' other than absolute, 'is_decoder' and "
               "'add_cross_attention' are not supported",
               config.name());
}

Result<LayerSpec> read_bert_layer(const JsonObject& config, int32_t hidden_size,
                                  const NormSpec& norm) {
  LayerSpec layer{.attention_output_norm = norm, .mlp_output_norm = norm};
  ESP_ASSIGN_OR_RETURN(layer.attention, read_text_attention(config, hidden_size));
  layer.attention.qkv_bias = layer.attention.output_bias = true;
  ESP_ASSIGN_OR_RETURN(layer.mlp, read_text_mlp(config, "hidden_act"));
  layer.mlp.bias = true;
  layer.mlp.gated = false;
  return layer;
}

// What BERT and RoBERTa have in common; `top` stands before the names of the encoder's tensors.
Result<DecoderSpec> read_encoder(const JsonObject& config, const std::string& top) {
  ESP_RETURN_IF_ERROR(refuse_bert_variants(config));
  DecoderSpec spec;
  ESP_ASSIGN_OR_RETURN(spec.model_type, config.string_or("model_type", "bert"));
  ESP_ASSIGN_OR_RETURN(spec.vocab_size, read_size(config, "vocab_size"));
  ESP_ASSIGN_OR_RETURN(spec.hidden_size, read_size(config, "hidden_size"));
  ESP_ASSIGN_OR_RETURN(spec.learned_positions,
                       read_size_or(config, "max_position_embeddings", 512));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  spec.context_length = spec.learned_positions;
  NormSpec norm{.kind = NormSpec::Kind::kLayer};
  ESP_ASSIGN_OR_RETURN(norm.epsilon, read_positive_or(config, "layer_norm_eps", 1e-12));
  TextsSpec texts{.norm = norm, .norms_of_sums = true};
  ESP_ASSIGN_OR_RETURN(texts.token_types, read_size_or(config, "type_vocab_size", 2));
  spec.texts = std::move(texts);
  ESP_ASSIGN_OR_RETURN(const LayerSpec layer, read_bert_layer(config, spec.hidden_size, norm));
  ESP_ASSIGN_OR_RETURN(const int64_t layers, config.integer_or("num_hidden_layers", 12, 1, 4096));
  spec.layers.assign(static_cast<size_t>(layers), layer);
  spec.names = bert_names(top);
  spec.pooling = PoolingSpec{.kind = PoolingSpec::Kind::kFirst, .normalize = true};
  return spec;
}

// Its tensors: bert.*, and linear.weight.
Status set_late_interaction(const JsonObject& config, DecoderSpec& spec) {
  int32_t width = 128;
  for (const char* field : {"dim", "colbert_dim", "embedding_dim"}) {
    ESP_ASSIGN_OR_RETURN(width, read_size_or(config, field, width));
  }
  spec.projector = ProjectorSpec{.layers = {{.name = "linear", .outputs = width, .linear = true}}};
  spec.pooling->kind = PoolingSpec::Kind::kEach;
  return Status();
}

}  // namespace

Result<DecoderSpec> make_bert_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_encoder(config, "bert."));
  ESP_ASSIGN_OR_RETURN(const std::string name, first_architecture(config));
  if (name == "HF_ColBERT") ESP_RETURN_IF_ERROR(set_late_interaction(config, spec));
  if (!is_classifier(name)) return spec;
  using Activation = TextsSpec::HeadLayer::Activation;
  ESP_RETURN_IF_ERROR(set_classes(
      config,
      {{.name = "bert.pooler.dense", .outputs = spec.hidden_size, .activation = Activation::kTanh}},
      "classifier", spec));
  return spec;
}

Result<DecoderSpec> make_roberta_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_encoder(config, "roberta."));
  ESP_ASSIGN_OR_RETURN(const int64_t padding, config.integer_or("pad_token_id", 1, 0, 1 << 26));
  spec.texts->first_position = static_cast<int32_t>(padding) + 1;
  spec.context_length = spec.learned_positions - spec.texts->first_position;
  if (spec.context_length < 1)
    return fail(config.field_error("max_position_embeddings", "must be above pad_token_id + 1"));
  ESP_ASSIGN_OR_RETURN(const std::string name, first_architecture(config));
  if (!is_classifier(name)) return spec;
  using Activation = TextsSpec::HeadLayer::Activation;
  ESP_RETURN_IF_ERROR(set_classes(
      config,
      {{.name = "classifier.dense", .outputs = spec.hidden_size, .activation = Activation::kTanh}},
      "classifier.out_proj", spec));
  return spec;
}

}  // namespace espalier
