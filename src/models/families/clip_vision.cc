#include "models/families/clip_vision.h"

#include <cmath>

#include "models/families/common.h"

namespace espalier {
namespace {

// What config.json need not state: the defaults of CLIPVisionConfig and SiglipVisionConfig.
struct VisionDefaults {
  std::string_view model_type;
  int32_t patch_size;
  const char* activation;
  double epsilon;
  bool class_token;
};
constexpr VisionDefaults kVisionDefaults[] = {
    {"clip_vision_model", 32, "quick_gelu", 1e-5, true},
    {"siglip_vision_model", 16, "gelu_pytorch_tanh", 1e-6, false},
};

Result<const VisionDefaults*> find_defaults(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const std::string type, config.string("model_type"));
  for (const VisionDefaults& defaults : kVisionDefaults) {
    if (type == defaults.model_type) return &defaults;
  }
  return fail(config.field_error(
      "model_type", "is '" + type + "'; known are clip_vision_model and siglip_vision_model"));
}

WeightNames vision_names() {
  WeightNames names;
  const std::string top = "vision_tower.vision_model.", layer = top + "encoder.layers.{}.";
  names.patch_embedding = top + "embeddings.patch_embedding";
  names.class_embedding = top + "embeddings.class_embedding";
  names.position_embedding = top + "embeddings.position_embedding";
  names.embedding_norm = top + "pre_layrnorm";  // as transformers spells it
  names.input_norm = layer + "layer_norm1";
  names.post_attention_norm = layer + "layer_norm2";
  names.q = layer + "self_attn.q_proj";
  names.k = layer + "self_attn.k_proj";
  names.v = layer + "self_attn.v_proj";
  names.attention_output = layer + "self_attn.out_proj";
  names.up = layer + "mlp.fc1";
  names.down = layer + "mlp.fc2";
  for (const char* other : {"vision_tower.", "model.vision_tower."}) {
    names.other_prefixes.emplace_back(top, other);
  }
  return names;
}

// Layers behind the last one that is read, the norm behind them and the head are there unread.
void set_unused(int32_t num_read, int32_t num_layers, WeightNames& names) {
  for (const char* top : {"vision_tower.vision_model.", "vision_tower.", "model.vision_tower."}) {
    const std::string begin = top;
    for (int32_t i = num_read; i < num_layers; ++i) {
      names.unused_prefixes.push_back(begin + "encoder.layers." + std::to_string(i) + ".");
    }
    for (const char* part : {"post_layernorm.", "head.", "embeddings.position_ids"}) {
      names.unused_prefixes.push_back(begin + part);
    }
  }
}

Result<LayerSpec> read_layer(const JsonObject& config, const VisionDefaults& defaults,
                             int32_t hidden_size, const NormSpec& norm) {
  LayerSpec layer{.input_norm = norm, .post_attention_norm = norm};
  AttentionSpec& a = layer.attention;
  ESP_ASSIGN_OR_RETURN(a.num_heads, read_size_or(config, "num_attention_heads", 12));
  a.num_kv_heads = a.num_heads;
  a.head_dim = hidden_size / a.num_heads;
  if (a.head_dim * a.num_heads != hidden_size) {
    return fail(config.field_error("num_attention_heads", "must divide hidden_size"));
  }
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  a.qkv_bias = a.output_bias = true;
  a.causal = false;
  ESP_ASSIGN_OR_RETURN(layer.mlp.intermediate_size,
                       read_size_or(config, "intermediate_size", 3072));
  ESP_ASSIGN_OR_RETURN(const std::string act, config.string_or("hidden_act", defaults.activation));
  if (act == "gelu_pytorch_tanh" || act == "gelu_new") {
    layer.mlp.activation = kernels::Activation::kGeluTanh;
  } else {
    ESP_ASSIGN_OR_RETURN(layer.mlp.gelu, read_gelu(config, "hidden_act", defaults.activation));
  }
  layer.mlp.gated = false;
  layer.mlp.bias = true;
  return layer;
}

}  // namespace

Result<kernels::Gelu> read_gelu(const JsonObject& config, std::string_view field,
                                const char* otherwise) {
  ESP_ASSIGN_OR_RETURN(const std::string name, config.string_or(field, otherwise));
  if (name == "gelu") return kernels::Gelu::kErf;
  if (name == "quick_gelu") return kernels::Gelu::kQuick;
  return fail(config.field_error(field, "is '" + name + "'; known are gelu and quick_gelu"));
}

Result<DecoderSpec> read_clip_vision(const JsonObject& config, int32_t feature_layer) {
  ESP_ASSIGN_OR_RETURN(const VisionDefaults* defaults, find_defaults(config));
  DecoderSpec spec;
  spec.model_type = defaults->model_type;
  ESP_ASSIGN_OR_RETURN(spec.hidden_size, read_size_or(config, "hidden_size", 768));
  ESP_ASSIGN_OR_RETURN(const int32_t image_size, read_size_or(config, "image_size", 224));
  PatchesSpec patches;
  ESP_ASSIGN_OR_RETURN(patches.patch_size,
                       read_size_or(config, "patch_size", defaults->patch_size));
  ESP_ASSIGN_OR_RETURN(const int64_t channels, config.integer_or("num_channels", 3, 3, 3));
  patches.channels = static_cast<int32_t>(channels);
  const int32_t side = image_size / patches.patch_size;
  if (side < 1 || side > 1024 || patches.patch_size > 1024) {
    return fail(config.field_error("patch_size", "does not fit image_size"));
  }
  patches.num_patches = side * side;
  patches.class_token = defaults->class_token;
  patches.bias = !defaults->class_token;
  NormSpec norm{.kind = NormSpec::Kind::kLayer};
  ESP_ASSIGN_OR_RETURN(norm.epsilon, read_positive_or(config, "layer_norm_eps", defaults->epsilon));
  if (defaults->class_token) patches.norm = norm;
  spec.patches = patches;
  spec.context_length = spec.learned_positions = patches.num_rows();

  ESP_ASSIGN_OR_RETURN(const LayerSpec layer,
                       read_layer(config, *defaults, spec.hidden_size, norm));
  ESP_ASSIGN_OR_RETURN(const int64_t num_layers,
                       config.integer_or("num_hidden_layers", 12, 1, 4096));
  const int64_t num_read = feature_layer < 0 ? num_layers + 1 + feature_layer : feature_layer;
  if (num_read < 1 || num_read > num_layers) {
    return fail(config.field_error("num_hidden_layers", "is below vision_feature_layer"));
  }
  spec.layers.assign(static_cast<size_t>(num_read), layer);
  spec.names = vision_names();
  set_unused(static_cast<int32_t>(num_read), static_cast<int32_t>(num_layers), spec.names);
  return spec;
}

}  // namespace espalier
