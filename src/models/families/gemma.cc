// Gemma 1, 2 and 3 (text): norms whose weight lies around zero, an embedding scaled by the root of
// its width, GELU. The second adds caps on scores and logits, windows in every other layer, and
// norms behind the blocks too; the third has qk-norm instead of caps, and a rope of its own for the
// layers with windows.
// Source: transformers, models/gemma, models/gemma2, models/gemma3.
#include <cmath>

#include "models/families/common.h"
#include "models/families/family.h"

namespace espalier {
namespace {

Result<DecoderSpec> read_gemma_like(const JsonObject& config) {
  const bool renamed = config.has("hidden_activation");
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec,
                       read_llama_like(config, {.head_dim = 256,
                                                .activation_field = "hidden_activation",
                                                .activation = "gelu_pytorch_tanh",
                                                .tied_embeddings = true}));
  if (!renamed && config.has("hidden_act")) {  // "gelu" there has always meant the tanh form
    ESP_ASSIGN_OR_RETURN(const std::string old, config.string("hidden_act"));
    if (old != "gelu" && old != "gelu_pytorch_tanh") {
      return fail(error(StatusCode::kUnimplemented,
                        "{}: 'hidden_act' is '{}'; this family is known with gelu only",
                        config.name(), old));
    }
  }
  ESP_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("attention_bias", false));
  set_biases(spec, bias, bias, false);
  spec.final_norm->kind = NormSpec::Kind::kRmsOneCentred;
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.hidden_size));
  for (LayerSpec& layer : spec.layers) {
    layer.input_norm = layer.post_attention_norm = spec.final_norm;
  }
  return spec;
}

// Four norms a layer, scores by query_pre_attn_scalar, caps.
Status read_gemma2_parts(const JsonObject& config, DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const float scalar, read_positive_or(config, "query_pre_attn_scalar", 256));
  ESP_ASSIGN_OR_RETURN(const double score_cap, config.number_or("attn_logit_softcapping", 0));
  ESP_ASSIGN_OR_RETURN(const double logit_cap, config.number_or("final_logit_softcapping", 0));
  spec.logits_softcap = static_cast<float>(logit_cap);
  for (LayerSpec& layer : spec.layers) {
    layer.attention_output_norm = layer.mlp_output_norm = spec.final_norm;
    layer.attention.scale = 1 / std::sqrt(scalar);
    layer.attention.softcap = static_cast<float>(score_cap);
  }
  spec.names.attention_output_norm = "model.layers.{}.post_attention_layernorm";
  spec.names.post_attention_norm = "model.layers.{}.pre_feedforward_layernorm";
  spec.names.mlp_output_norm = "model.layers.{}.post_feedforward_layernorm";
  return Status();
}

// layer_types, or where it is absent: every `pattern`-th layer sees everything.
Status read_gemma_windows(const JsonObject& config, int64_t pattern, DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const int64_t window, config.integer_or("sliding_window", 4096, 1, 1 << 30));
  ESP_ASSIGN_OR_RETURN(std::vector<bool> sliding, read_layer_types(config, spec.layers.size()));
  for (size_t i = sliding.size(); i < spec.layers.size(); ++i) {
    sliding.push_back((static_cast<int64_t>(i) + 1) % pattern != 0);
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (sliding[i]) spec.layers[i].attention.sliding_window = static_cast<int32_t>(window);
  }
  return Status();
}

// ropes[0] for the layers that see everything, ropes[1] for those with windows.
Status read_gemma3_ropes(const JsonObject& config, DecoderSpec& spec) {
  const int32_t head_dim = spec.layers[0].attention.head_dim;
  const RopeSpec far{.rotary_dim = head_dim, .theta = 1e6};
  const RopeSpec near{.rotary_dim = head_dim, .theta = 1e4};
  spec.ropes = {far, near};
  if (config.has("rope_parameters")) {
    ESP_ASSIGN_OR_RETURN(const JsonObject ropes, config.object("rope_parameters"));
    const char* names[] = {"full_attention", "sliding_attention"};
    for (size_t i = 0; i < 2; ++i) {
      ESP_ASSIGN_OR_RETURN(const JsonObject rope, ropes.object(names[i]));
      ESP_ASSIGN_OR_RETURN(spec.ropes[i], read_rope_parameters(config, rope, spec.ropes[i],
                                                               head_dim, spec.context_length));
    }
  } else {
    ESP_ASSIGN_OR_RETURN(spec.ropes[0].theta, config.number_or("rope_theta", far.theta));
    ESP_ASSIGN_OR_RETURN(spec.ropes[1].theta, config.number_or("rope_local_base_freq", near.theta));
    if (config.has("rope_scaling")) {
      ESP_ASSIGN_OR_RETURN(const JsonObject rope, config.object("rope_scaling"));
      ESP_ASSIGN_OR_RETURN(spec.ropes[0], read_rope_parameters(config, rope, spec.ropes[0],
                                                               head_dim, spec.context_length));
    }
  }
  for (LayerSpec& layer : spec.layers) layer.attention.rope = layer.attention.sliding_window > 0;
  return Status();
}

}  // namespace

Result<DecoderSpec> make_gemma_spec(const JsonObject& config) { return read_gemma_like(config); }

Result<DecoderSpec> make_gemma2_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_gemma_like(config));
  ESP_RETURN_IF_ERROR(read_gemma2_parts(config, spec));
  ESP_RETURN_IF_ERROR(read_gemma_windows(config, 2, spec));
  return spec;
}

Result<DecoderSpec> make_gemma3_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_gemma_like(config));
  ESP_RETURN_IF_ERROR(read_gemma2_parts(config, spec));
  ESP_ASSIGN_OR_RETURN(const int64_t pattern, config.integer_or("sliding_window_pattern", 6, 1));
  ESP_RETURN_IF_ERROR(read_gemma_windows(config, pattern, spec));
  for (LayerSpec& layer : spec.layers) layer.attention.qk_norm = spec.final_norm;
  ESP_RETURN_IF_ERROR(read_gemma3_ropes(config, spec));
  return spec;
}

}  // namespace espalier
