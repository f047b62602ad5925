// InternVL 3 (Zhu et al. 2025), as transformers has it and by its original names: InternViT, whose
// layers scale what they add, four patches to a row (pixel shuffle), and a decoder of Qwen's or
// Llama's. A picture is read in tiles and, where there are several, whole. Source: transformers,
// models/internvl.
#include <fmt/format.h>

#include <cmath>

#include "models/families/clip_vision.h"
#include "models/families/common.h"
#include "models/families/family.h"
#include "models/families/seeing.h"

namespace espalier {
namespace {

constexpr int64_t kInternPlaceholder = 151667;
constexpr int64_t kInternTilesMost = 64;

// What the two forms differ in.
struct InternForm {
  const char* text;       // config.json's field of the decoder
  bool released = false;  // OpenGVLab's own names
};
constexpr InternForm kInternTransformers{"text_config"};
constexpr InternForm kInternReleased{"llm_config", true};

Result<DecoderSpec> make_intern_text(const JsonObject& text) {
  ESP_ASSIGN_OR_RETURN(const std::string type, text.string_or("model_type", "qwen2"));
  if (type == "qwen2") return make_qwen2_spec(text);
  if (type == "qwen3") return make_qwen3_spec(text);
  if (type == "llama") return make_llama_spec(text);
  return fail(text.field_error(
      "model_type", "is '" + type + "'; known beside this encoder are qwen2, qwen3 and llama"));
}

// A number, or two equal ones.
Result<int32_t> read_intern_square(const JsonObject& config, std::string_view field,
                                   int32_t otherwise) {
  if (!config.has(field)) return otherwise;
  if (const auto number = read_size(config, field)) return *number;
  ESP_ASSIGN_OR_RETURN(const std::vector<int64_t> sides, config.integers(field));
  if (sides.size() == 2 && sides[0] == sides[1] && sides[0] > 0 && sides[0] <= 8192)
    return static_cast<int32_t>(sides[0]);
  return fail(config.field_error(field, "must be one side of a square, or two that are equal"));
}

WeightNames intern_transformers_names() {
  WeightNames names;
  const std::string top = "vision_tower.", layer = top + "encoder.layer.{}.";
  names.patch_embedding = top + "embeddings.patch_embeddings.projection";
  names.class_embedding = top + "embeddings.cls_token";
  names.position_embedding = top + "embeddings.position_embeddings";
  names.input_norm = layer + "layernorm_before";
  names.post_attention_norm = layer + "layernorm_after";
  names.q = layer + "attention.q_proj";
  names.k = layer + "attention.k_proj";
  names.v = layer + "attention.v_proj";
  names.q_norm = layer + "attention.q_norm";
  names.k_norm = layer + "attention.k_norm";
  names.attention_output = layer + "attention.projection_layer";
  names.attention_output_norm = layer + "lambda_1";
  names.mlp_output_norm = layer + "lambda_2";
  names.up = layer + "mlp.fc1";
  names.down = layer + "mlp.fc2";
  names.final_norm = top + "layernorm";
  for (const char* part : {"vision_tower.", "multi_modal_projector."}) {
    names.other_prefixes.emplace_back(part, std::string("model.") + part);
  }
  return names;
}

WeightNames intern_released_names() {
  WeightNames names;
  const std::string top = "vision_model.", layer = top + "encoder.layers.{}.";
  names.patch_embedding = top + "embeddings.patch_embedding";
  names.class_embedding = top + "embeddings.class_embedding";
  names.position_embedding = top + "embeddings.position_embedding";
  names.input_norm = layer + "norm1";
  names.post_attention_norm = layer + "norm2";
  names.qkv = layer + "attn.qkv";
  names.q_norm = layer + "attn.q_norm";
  names.k_norm = layer + "attn.k_norm";
  names.attention_output = layer + "attn.proj";
  names.attention_output_norm = layer + "ls1";
  names.mlp_output_norm = layer + "ls2";
  names.up = layer + "mlp.fc1";
  names.down = layer + "mlp.fc2";
  return names;
}

Result<NormSpec> read_intern_norm(const JsonObject& vision) {
  NormSpec norm{.kind = NormSpec::Kind::kLayer};
  ESP_ASSIGN_OR_RETURN(norm.epsilon, read_positive_or(vision, "layer_norm_eps", 1e-6));
  ESP_ASSIGN_OR_RETURN(const std::string type, vision.string_or("norm_type", "layer_norm"));
  if (type == "rms_norm") norm.kind = NormSpec::Kind::kRms;
  if (type == "rms_norm" || type == "layer_norm") return norm;
  return fail(
      vision.field_error("norm_type", "is '" + type + "'; known are layer_norm and rms_norm"));
}

Status read_intern_attention(const JsonObject& vision, const InternForm& form, int32_t hidden_size,
                             AttentionSpec& a) {
  ESP_ASSIGN_OR_RETURN(a.num_heads, read_size_or(vision, "num_attention_heads", 16));
  a.num_kv_heads = a.num_heads;
  a.head_dim = hidden_size / a.num_heads;
  if (a.head_dim * a.num_heads != hidden_size)
    return vision.field_error("num_attention_heads", "must divide hidden_size");
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  ESP_ASSIGN_OR_RETURN(a.qkv_bias,
                       vision.boolean_or(form.released ? "qkv_bias" : "attention_bias", false));
  a.output_bias = true;
  a.causal = false;
  const char* field = form.released ? "qk_normalization" : "use_qk_norm";
  ESP_ASSIGN_OR_RETURN(const bool qk_norm, vision.boolean_or(field, false));
  if (qk_norm) a.qk_norm = NormSpec{};
  a.qk_norm_scope = AttentionSpec::NormScope::kAll;
  return Status();
}

Result<LayerSpec> read_intern_layer(const JsonObject& vision, const InternForm& form,
                                    int32_t hidden_size) {
  ESP_ASSIGN_OR_RETURN(const NormSpec norm, read_intern_norm(vision));
  const NormSpec scale{.kind = NormSpec::Kind::kScale};
  LayerSpec layer{.input_norm = norm,
                  .attention_output_norm = scale,
                  .post_attention_norm = norm,
                  .mlp_output_norm = scale};
  ESP_RETURN_IF_ERROR(read_intern_attention(vision, form, hidden_size, layer.attention));
  ESP_ASSIGN_OR_RETURN(layer.mlp.intermediate_size,
                       read_size_or(vision, "intermediate_size", 4096));
  ESP_ASSIGN_OR_RETURN(layer.mlp.gelu, read_gelu(vision, "hidden_act", "gelu"));
  layer.mlp.gated = false;
  layer.mlp.bias = true;
  return layer;
}

// Of a tile.
Result<PatchesSpec> read_intern_patches(const JsonObject& config, const JsonObject& vision) {
  PatchesSpec patches{.bias = true, .class_token = true};
  ESP_ASSIGN_OR_RETURN(const int32_t side, read_intern_square(vision, "image_size", 448));
  ESP_ASSIGN_OR_RETURN(patches.patch_size, read_intern_square(vision, "patch_size", 14));
  ESP_ASSIGN_OR_RETURN(const int64_t channels, vision.integer_or("num_channels", 3, 3, 3));
  patches.channels = static_cast<int32_t>(channels);
  ESP_ASSIGN_OR_RETURN(const double ratio, config.number_or("downsample_ratio", 0.5));
  constexpr int32_t kSideMost = 8192;
  if (side > kSideMost || side % patches.patch_size != 0) {
    return fail(vision.field_error(
        "image_size", fmt::format("is {}, which must be a multiple of patch_size {} up to {}", side,
                                  patches.patch_size, kSideMost)));
  }
  const int32_t grid = side / patches.patch_size;
  patches.merge = static_cast<int32_t>(std::lround(1 / std::max(ratio, 1e-3)));
  if (patches.merge < 1 || patches.merge > 16 || std::abs(patches.merge * ratio - 1) > 1e-6 ||
      grid < 1 || grid > 1024 || grid % patches.merge != 0) {
    return fail(config.field_error(
        "downsample_ratio",
        fmt::format("is {}, which must be 1 over a whole number that divides the {} patches a side",
                    ratio, grid)));
  }
  patches.num_patches = grid * grid;
  return patches;
}

Result<TilesSpec> read_intern_tiles(const JsonObject& config) {
  TilesSpec tiles{.in_sequence = true};
  ESP_ASSIGN_OR_RETURN(const int64_t least,
                       config.integer_or("min_dynamic_patch", 1, 1, kInternTilesMost));
  ESP_ASSIGN_OR_RETURN(const int64_t most,
                       config.integer_or("max_dynamic_patch", 12, least, kInternTilesMost));
  tiles.counts = {static_cast<int32_t>(least), static_cast<int32_t>(most)};
  for (const char* field : {"dynamic_image_size", "use_thumbnail"}) {
    ESP_ASSIGN_OR_RETURN(const bool on, config.boolean_or(field, true));
    if (!on) return fail(config.field_error(field, "is false, which is not supported"));
  }
  return tiles;
}

Result<ProjectorSpec> read_intern_projector(const JsonObject& config, const InternForm& form,
                                            const PatchesSpec& patches) {
  ESP_ASSIGN_OR_RETURN(const JsonObject text, config.object(form.text));
  ESP_ASSIGN_OR_RETURN(const int32_t outputs, read_size(text, "hidden_size"));
  ProjectorSpec projector{.merge = patches.square()};
  ESP_ASSIGN_OR_RETURN(projector.gelu, read_gelu(config, "projector_hidden_act", "gelu"));
  projector.norm = NormSpec{.epsilon = 1e-5f, .kind = NormSpec::Kind::kLayer};
  const std::string top = form.released ? "mlp1." : "multi_modal_projector.";
  projector.norm_name = top + (form.released ? "0" : "layer_norm");
  for (const char* name : {form.released ? "1" : "linear_1", form.released ? "3" : "linear_2"}) {
    projector.layers.push_back({.name = top + name, .outputs = outputs, .bias = true});
  }
  return projector;
}

Status read_intern_final_norm(const JsonObject& vision, const InternForm& form, DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const bool mean, vision.boolean_or("use_mean_pooling", true));
  if (mean || form.released) return Status();
  spec.final_norm =
      NormSpec{.epsilon = spec.layers[0].input_norm->epsilon, .kind = NormSpec::Kind::kLayer};
  return Status();
}

Result<DecoderSpec> make_intern_encoder(const JsonObject& config, const InternForm& form) {
  ESP_ASSIGN_OR_RETURN(const JsonObject vision, config.object("vision_config"));
  DecoderSpec spec;
  spec.model_type = "internvl_vision";
  ESP_ASSIGN_OR_RETURN(spec.hidden_size, read_size_or(vision, "hidden_size", 1024));
  ESP_ASSIGN_OR_RETURN(spec.patches, read_intern_patches(config, vision));
  spec.context_length = spec.learned_positions = spec.patches->num_rows();
  ESP_ASSIGN_OR_RETURN(const LayerSpec layer, read_intern_layer(vision, form, spec.hidden_size));
  ESP_ASSIGN_OR_RETURN(const int64_t depth, vision.integer_or("num_hidden_layers", 24, 1, 4096));
  const char* field = form.released ? "select_layer" : "vision_feature_layer";
  ESP_ASSIGN_OR_RETURN(const int64_t read, config.integer_or(field, -1, -4096, 4096));
  if (read != -1) return fail(config.field_error(field, "must be -1, the last layer"));
  spec.layers.assign(static_cast<size_t>(depth), layer);
  spec.names = form.released ? intern_released_names() : intern_transformers_names();
  spec.names.whole_positions = true;
  ESP_RETURN_IF_ERROR(read_intern_final_norm(vision, form, spec));
  leave_text_unread(spec.names);
  ESP_ASSIGN_OR_RETURN(spec.projector, read_intern_projector(config, form, *spec.patches));
  ESP_ASSIGN_OR_RETURN(spec.tiles, read_intern_tiles(config));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  return spec;
}

Result<DecoderSpec> make_intern_decoder(const JsonObject& config, const InternForm& form) {
  ESP_ASSIGN_OR_RETURN(const JsonObject text, config.object(form.text));
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_intern_text(text));
  ESP_ASSIGN_OR_RETURN(spec.model_type, config.string_or("model_type", "internvl"));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  nest_text_names(spec.names);
  spec.names.unused_prefixes.insert(spec.names.unused_prefixes.end(), {"vision_model.", "mlp1."});
  ImagesSpec images{.mark = "<IMG_CONTEXT>", .marked = "<img><IMG_CONTEXT></img>"};
  ESP_ASSIGN_OR_RETURN(images.placeholder,
                       read_placeholder(config, kInternPlaceholder, spec.vocab_size));
  spec.images = std::move(images);
  return spec;
}

}  // namespace

Result<DecoderSpec> make_internvl_spec(const JsonObject& config) {
  return make_intern_decoder(config, kInternTransformers);
}
Result<DecoderSpec> make_internvl_encoder(const JsonObject& config) {
  return make_intern_encoder(config, kInternTransformers);
}
Result<DecoderSpec> make_internvl_chat_spec(const JsonObject& config) {
  return make_intern_decoder(config, kInternReleased);
}
Result<DecoderSpec> make_internvl_chat_encoder(const JsonObject& config) {
  return make_intern_encoder(config, kInternReleased);
}

}  // namespace espalier
