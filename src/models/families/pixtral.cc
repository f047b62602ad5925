// Pixtral and Mistral Small 3.1: Mistral's decoder, and an encoder of pictures of any size, whose
// rows stand in a prompt line by line, a token behind each line. Source: transformers,
// models/pixtral and mistral3.
#include "models/families/pixtral.h"

#include <cmath>

#include "models/families/clip_vision.h"
#include "models/families/common.h"
#include "models/families/family.h"
#include "models/families/seeing.h"

namespace espalier {
namespace {

// Mistral3Config's.
constexpr std::string_view kMistral3TextDefaults = R"({
  "model_type": "mistral", "vocab_size": 131072, "hidden_size": 5120, "intermediate_size": 32768,
  "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
  "max_position_embeddings": 131072, "hidden_act": "silu", "rms_norm_eps": 1e-5})";
// In every vocabulary of Mistral's that has them: [IMG], [IMG_BREAK], [IMG_END].
constexpr TokenId kPixtralPlaceholder = 10, kLineEnd = 12, kPictureEnd = 13;
constexpr float kPixtralEpsilon = 1e-5f;

Result<DecoderSpec> make_pixtral_decoder(const JsonObject& config, const JsonObject& text) {
  ESP_ASSIGN_OR_RETURN(const std::string type, text.string_or("model_type", "mistral"));
  if (type != "mistral") {
    return fail(
        text.field_error("model_type", "is '" + type + "'; known beside this encoder is mistral"));
  }
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_mistral_spec(text));
  ESP_ASSIGN_OR_RETURN(spec.model_type, config.string_or("model_type", "mistral3"));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  nest_text_names(spec.names);
  ImagesSpec images{.line_end = kLineEnd, .picture_end = kPictureEnd};
  ESP_ASSIGN_OR_RETURN(images.placeholder,
                       read_placeholder(config, kPixtralPlaceholder, spec.vocab_size));
  spec.images = std::move(images);
  return spec;
}

Result<RopeSpec> read_pixtral_rope(const JsonObject& vision, int32_t head_dim) {
  RopeSpec rope{.rotary_dim = head_dim,
                .sections = {0, head_dim / 4, head_dim / 4},
                .axial = true,
                .axial_in_turns = true};
  ESP_ASSIGN_OR_RETURN(rope.theta, vision.number_or("rope_theta", rope.theta));
  if (!vision.has("rope_parameters")) return rope;
  ESP_ASSIGN_OR_RETURN(const JsonObject parameters, vision.object("rope_parameters"));
  ESP_ASSIGN_OR_RETURN(rope.theta, parameters.number_or("rope_theta", rope.theta));
  return rope;
}

Result<LayerSpec> read_pixtral_layer(const JsonObject& vision, int32_t hidden_size) {
  const NormSpec norm{.epsilon = kPixtralEpsilon};
  LayerSpec layer{.input_norm = norm, .post_attention_norm = norm};
  AttentionSpec& a = layer.attention;
  ESP_ASSIGN_OR_RETURN(a.num_heads, read_size_or(vision, "num_attention_heads", 16));
  a.num_kv_heads = a.num_heads;
  a.head_dim = hidden_size / a.num_heads;
  if (a.head_dim * a.num_heads != hidden_size || a.head_dim % 4 != 0) {
    return fail(
        vision.field_error("num_attention_heads", "must divide the width into multiples of 4"));
  }
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  a.rope = 0;
  a.causal = false;
  ESP_ASSIGN_OR_RETURN(layer.mlp.intermediate_size,
                       read_size_or(vision, "intermediate_size", 4096));
  ESP_ASSIGN_OR_RETURN(layer.mlp.activation, read_activation(vision, {.activation = "gelu"}));
  return layer;
}

WeightNames pixtral_names() {
  WeightNames names;
  const std::string top = "vision_tower.", layer = top + "transformer.layers.{}.";
  names.patch_embedding = top + "patch_conv";
  names.embedding_norm = top + "ln_pre";
  names.input_norm = layer + "attention_norm";
  names.post_attention_norm = layer + "ffn_norm";
  names.q = layer + "attention.q_proj";
  names.k = layer + "attention.k_proj";
  names.v = layer + "attention.v_proj";
  names.attention_output = layer + "attention.o_proj";
  names.gate = layer + "feed_forward.gate_proj";
  names.up = layer + "feed_forward.up_proj";
  names.down = layer + "feed_forward.down_proj";
  for (const char* part : {"vision_tower.", "multi_modal_projector."}) {
    names.other_prefixes.emplace_back(part, std::string("model.") + part);
  }
  leave_text_unread(names);
  return names;
}

void leave_pixtral_layers_unread(int64_t num_read, int64_t num_layers, WeightNames& names) {
  for (int64_t i = num_read; i < num_layers; ++i) {
    const std::string layer = "vision_tower.transformer.layers." + std::to_string(i) + ".";
    names.unused_prefixes.push_back(layer);
    names.unused_prefixes.push_back("model." + layer);
  }
}

// Without a projector. merge: side of the squares of patches that become a row each.
Result<DecoderSpec> read_pixtral_vision(const JsonObject& config, int32_t merge) {
  ESP_ASSIGN_OR_RETURN(const JsonObject vision, config.object("vision_config"));
  DecoderSpec spec;
  spec.model_type = "pixtral";
  ESP_ASSIGN_OR_RETURN(spec.hidden_size, read_size_or(vision, "hidden_size", 1024));
  PatchesSpec patches{.merge = merge, .lines = true, .norm = NormSpec{.epsilon = kPixtralEpsilon}};
  ESP_ASSIGN_OR_RETURN(const int64_t side, vision.integer_or("patch_size", 16, 1, 1024));
  patches.patch_size = static_cast<int32_t>(side);
  ESP_ASSIGN_OR_RETURN(const int64_t channels, vision.integer_or("num_channels", 3, 3, 3));
  patches.channels = static_cast<int32_t>(channels);
  spec.patches = patches;
  spec.context_length = 1;  // a picture's number of patches has no bound of the model's
  ESP_ASSIGN_OR_RETURN(const LayerSpec layer, read_pixtral_layer(vision, spec.hidden_size));
  ESP_ASSIGN_OR_RETURN(RopeSpec rope, read_pixtral_rope(vision, layer.attention.head_dim));
  spec.ropes = {std::move(rope)};
  ESP_ASSIGN_OR_RETURN(const int64_t depth, vision.integer_or("num_hidden_layers", 24, 1, 4096));
  ESP_ASSIGN_OR_RETURN(const int64_t num_read, count_read_layers(config, depth));
  spec.layers.assign(static_cast<size_t>(num_read), layer);
  spec.names = pixtral_names();
  leave_pixtral_layers_unread(num_read, depth, spec.names);
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  return spec;
}

// The two matrices that all of these projectors end with.
Result<ProjectorSpec> read_pixtral_projector(const JsonObject& config, int32_t outputs, bool bias) {
  ProjectorSpec projector;
  ESP_ASSIGN_OR_RETURN(projector.gelu, read_gelu(config, "projector_hidden_act", "gelu"));
  ESP_ASSIGN_OR_RETURN(bias, config.boolean_or("multimodal_projector_bias", bias));
  for (const char* name : {"linear_1", "linear_2"}) {
    projector.layers.push_back(
        {.name = std::string("multi_modal_projector.") + name, .outputs = outputs, .bias = bias});
  }
  return projector;
}

}  // namespace

bool is_pixtral(const JsonObject& config) {
  const auto vision = config.object("vision_config");
  if (!vision) return false;
  const auto type = vision->string_or("model_type", "");
  return type && *type == "pixtral";
}

Result<DecoderSpec> make_pixtral_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const JsonObject text, config.object("text_config"));
  return make_pixtral_decoder(config, text);
}

Result<DecoderSpec> make_pixtral_encoder(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_pixtral_vision(config, 1));
  ESP_ASSIGN_OR_RETURN(const JsonObject text, config.object("text_config"));
  ESP_ASSIGN_OR_RETURN(const int32_t outputs, read_size(text, "hidden_size"));
  ESP_ASSIGN_OR_RETURN(spec.projector, read_pixtral_projector(config, outputs, true));
  return spec;
}

Result<DecoderSpec> make_mistral3_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const JsonObject text, read_nested_text(config, kMistral3TextDefaults));
  return make_pixtral_decoder(config, text);
}

Result<DecoderSpec> make_mistral3_encoder(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const int64_t merge, config.integer_or("spatial_merge_size", 2, 1, 16));
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_pixtral_vision(config, static_cast<int32_t>(merge)));
  ESP_ASSIGN_OR_RETURN(const JsonObject text, read_nested_text(config, kMistral3TextDefaults));
  ESP_ASSIGN_OR_RETURN(const int32_t outputs, read_size(text, "hidden_size"));
  ESP_ASSIGN_OR_RETURN(spec.projector, read_pixtral_projector(config, outputs, false));
  spec.final_norm.emplace();
  ESP_ASSIGN_OR_RETURN(spec.final_norm->epsilon, read_positive_or(text, "rms_norm_eps", 1e-5));
  spec.names.final_norm = "multi_modal_projector.norm";
  ProjectorSpec& projector = *spec.projector;
  projector.merge = spec.patches->square();
  projector.how = ProjectorSpec::Merge::kByFeature;
  projector.layers.insert(projector.layers.begin(),
                          {.name = "multi_modal_projector.patch_merger.merging_layer",
                           .outputs = spec.hidden_size,
                           .linear = true});
  return spec;
}

}  // namespace espalier
