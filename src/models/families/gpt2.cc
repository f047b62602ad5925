// GPT-2: learned positions, layer norms with biases, one tensor for q, k and v, an MLP without a
// gate, and matrices that lie [in, out].
// Source: Radford et al. 2019; transformers, models/gpt2.
#include <cmath>

#include "checkpoint/generation_config.h"
#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {
namespace {

Status refuse_variants(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const bool scaled, config.boolean_or("scale_attn_weights", true));
  ESP_ASSIGN_OR_RETURN(const bool by_layer,
                       config.boolean_or("scale_attn_by_inverse_layer_idx", false));
  ESP_ASSIGN_OR_RETURN(const bool cross, config.boolean_or("add_cross_attention", false));
  if (scaled && !by_layer && !cross) return Status();
  return error(StatusCode::kUnimplemented,
               "{}: 'scale_attn_weights' false, 'scale_attn_by_inverse_layer_idx' and "
               "'add_cross_attention' are not supported",
               config.name());
}

WeightNames gpt2_names() {
  WeightNames names;
  names.embedding = "transformer.wte";
  names.position_embedding = "transformer.wpe";
  names.final_norm = "transformer.ln_f";
  names.input_norm = "transformer.h.{}.ln_1";
  names.post_attention_norm = "transformer.h.{}.ln_2";
  names.qkv = "transformer.h.{}.attn.c_attn";
  names.attention_output = "transformer.h.{}.attn.c_proj";
  names.up = "transformer.h.{}.mlp.c_fc";
  names.down = "transformer.h.{}.mlp.c_proj";
  names.transposed = true;
  names.unused_suffixes = {".attn.bias", ".attn.masked_bias"};
  return names;
}

}  // namespace

Result<DecoderSpec> make_gpt2_spec(const JsonObject& config) {
  ESP_RETURN_IF_ERROR(refuse_variants(config));
  DecoderSpec spec;
  ESP_ASSIGN_OR_RETURN(spec.model_type, config.string_or("model_type", "gpt2"));
  ESP_ASSIGN_OR_RETURN(spec.vocab_size, read_size(config, "vocab_size"));
  ESP_ASSIGN_OR_RETURN(spec.hidden_size, read_size(config, "n_embd"));
  ESP_ASSIGN_OR_RETURN(spec.context_length, read_size_or(config, "n_positions", 1024));
  ESP_ASSIGN_OR_RETURN(spec.tied_embeddings, config.boolean_or("tie_word_embeddings", true));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  ESP_ASSIGN_OR_RETURN(spec.eos_ids, read_eos_token_ids(config));
  spec.learned_positions = spec.context_length;
  spec.names = gpt2_names();
  // Of a GGUF, which holds them as everybody else's.
  ESP_ASSIGN_OR_RETURN(spec.names.transposed, config.boolean_or("transposed_weights", true));

  NormSpec norm{.kind = NormSpec::Kind::kLayer};
  ESP_ASSIGN_OR_RETURN(norm.epsilon, read_positive_or(config, "layer_norm_epsilon", 1e-5));
  spec.final_norm = norm;
  LayerSpec layer{.input_norm = norm, .post_attention_norm = norm};
  AttentionSpec& a = layer.attention;
  ESP_ASSIGN_OR_RETURN(a.num_heads, read_size(config, "n_head"));
  a.num_kv_heads = a.num_heads;
  a.head_dim = spec.hidden_size / a.num_heads;
  if (a.head_dim * a.num_heads != spec.hidden_size) {
    return fail(config.field_error("n_head", "must divide n_embd"));
  }
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  a.qkv_bias = a.output_bias = true;
  ESP_ASSIGN_OR_RETURN(layer.mlp.intermediate_size,
                       read_size_or(config, "n_inner", 4 * spec.hidden_size));
  ESP_ASSIGN_OR_RETURN(layer.mlp.activation,
                       read_activation(config, {.activation_field = "activation_function",
                                                .activation = "gelu_new"}));
  layer.mlp.gated = false;
  layer.mlp.bias = true;
  ESP_ASSIGN_OR_RETURN(const int32_t num_layers, read_size(config, "n_layer"));
  spec.layers.assign(static_cast<size_t>(num_layers), layer);
  return spec;
}

}  // namespace espalier
