// Qwen2-VL (Wang et al. 2024) and Qwen2.5-VL (Bai et al. 2025): Qwen2's decoder with rotary
// positions of three components, and an encoder that reads pictures of any size, four patches to a
// row. Source: transformers, models/qwen2_vl and qwen2_5_vl.
#include <fmt/format.h>

#include <cmath>

#include "models/families/clip_vision.h"
#include "models/families/common.h"
#include "models/families/family.h"
#include "models/families/qwen_vision.h"
#include "seams/forward_batch.h"

namespace espalier {

Result<JsonObject> read_qwen_text(const JsonObject& config) {
  if (!config.has("text_config")) return config;
  return config.object("text_config");
}

Result<DType> read_qwen_dtype(const JsonObject& config, const JsonObject& text) {
  return read_dtype(config.has("dtype") || config.has("torch_dtype") ? config : text);
}

Status finish_qwen_vl_decoder(const JsonObject& config, const JsonObject& text,
                              const char* model_type, DecoderSpec& spec) {
  for (const RopeSpec& rope : spec.ropes) {
    if (rope.sections.empty()) return text.field_error("rope_scaling", "has no mrope_section");
  }
  ESP_ASSIGN_OR_RETURN(spec.tied_embeddings,
                       config.boolean_or("tie_word_embeddings", spec.tied_embeddings));
  ESP_ASSIGN_OR_RETURN(spec.model_type, config.string_or("model_type", model_type));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_qwen_dtype(config, text));
  spec.names.other_prefixes = {{"model.", "model.language_model."}};
  spec.names.unused_prefixes = {"visual.", "model.visual."};
  constexpr int64_t kQwenPlaceholder = 151655;
  ESP_ASSIGN_OR_RETURN(const int64_t placeholder,
                       config.integer_or("image_token_id", kQwenPlaceholder, 0, 1 << 30));
  if (placeholder >= spec.vocab_size || spec.vocab_size > kFirstSpanKey) {
    return config.field_error("image_token_id",
                              fmt::format("is {}, which must be a token of a vocabulary of at most "
                                          "{}, and there are {}",
                                          placeholder, kFirstSpanKey, spec.vocab_size));
  }
  spec.images = ImagesSpec{.placeholder = static_cast<TokenId>(placeholder), .num_rows = 0};
  return Status();
}

Status read_qwen_videos(const JsonObject& config, DecoderSpec& spec) {
  constexpr int64_t kVideoPlaceholder = 151656;
  ESP_ASSIGN_OR_RETURN(const int64_t video,
                       config.integer_or("video_token_id", kVideoPlaceholder, 0, 1 << 30));
  if (video < spec.vocab_size) spec.images->video_placeholder = static_cast<TokenId>(video);
  return Status();
}

Result<PatchesSpec> read_qwen_patches(const JsonObject& vision, int32_t patch_size) {
  PatchesSpec patches;
  ESP_ASSIGN_OR_RETURN(const int64_t side, vision.integer_or("patch_size", patch_size, 1, 1024));
  ESP_ASSIGN_OR_RETURN(const int64_t frames, vision.integer_or("temporal_patch_size", 2, 1, 16));
  ESP_ASSIGN_OR_RETURN(const int64_t merge, vision.integer_or("spatial_merge_size", 2, 1, 16));
  const char* channels = vision.has("in_chans") ? "in_chans" : "in_channels";
  ESP_ASSIGN_OR_RETURN(const int64_t num_channels, vision.integer_or(channels, 3, 3, 3));
  patches.channels = static_cast<int32_t>(num_channels);
  patches.patch_size = static_cast<int32_t>(side);
  patches.frames = static_cast<int32_t>(frames);
  patches.merge = static_cast<int32_t>(merge);
  return patches;
}

Result<LayerSpec> read_qwen_vision_layer(const JsonObject& vision, int32_t hidden_size,
                                         const NormSpec& norm) {
  LayerSpec layer{.input_norm = norm, .post_attention_norm = norm};
  AttentionSpec& a = layer.attention;
  ESP_ASSIGN_OR_RETURN(a.num_heads, read_size_or(vision, "num_heads", 16));
  a.num_kv_heads = a.num_heads;
  a.head_dim = hidden_size / a.num_heads;
  if (a.head_dim * a.num_heads != hidden_size || a.head_dim % 4 != 0) {
    return fail(vision.field_error("num_heads", "must divide the width into multiples of 4"));
  }
  a.qkv_bias = a.output_bias = true;
  a.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.head_dim)));
  a.rope = 0;
  a.causal = false;
  layer.mlp.bias = true;
  return layer;
}

Result<RopeSpec> read_qwen_vision_rope(const JsonObject& vision, int32_t head_dim) {
  RopeSpec rope{.rotary_dim = head_dim, .sections = {0, head_dim / 4, head_dim / 4}, .axial = true};
  if (vision.has("rope_parameters")) {
    ESP_ASSIGN_OR_RETURN(const JsonObject parameters, vision.object("rope_parameters"));
    ESP_ASSIGN_OR_RETURN(rope.theta, parameters.number_or("rope_theta", rope.theta));
  }
  return rope;
}

WeightNames qwen_vision_names() {
  WeightNames names;
  const std::string block = "visual.blocks.{}.";
  names.patch_embedding = "visual.patch_embed.proj";
  names.input_norm = block + "norm1";
  names.post_attention_norm = block + "norm2";
  names.qkv = block + "attn.qkv";
  names.attention_output = block + "attn.proj";
  names.other_prefixes = {{"visual.", "model.visual."}};
  for (const char* prefix : {"model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.",
                             "model.language_model."}) {
    names.unused_prefixes.emplace_back(prefix);
  }
  return names;
}

Result<ProjectorSpec> read_qwen_projector(const JsonObject& vision, const JsonObject& text,
                                          const char* stated, const DecoderSpec& spec,
                                          const std::string (&names)[2]) {
  ESP_ASSIGN_OR_RETURN(const int32_t outputs, read_size(text, "hidden_size"));
  const int32_t merge = spec.patches->merge * spec.patches->merge;
  if (spec.hidden_size > (1 << 26) / merge) {
    return fail(vision.field_error("spatial_merge_size", "makes rows too wide"));
  }
  ESP_ASSIGN_OR_RETURN(const int32_t made, read_size_or(vision, stated, outputs));
  if (made != outputs) {
    return fail(vision.field_error(
        stated, fmt::format("is {}, but the decoder's hidden_size is {}", made, outputs)));
  }
  return ProjectorSpec{
      .layers = {{names[0], merge * spec.hidden_size, true}, {names[1], outputs, true}},
      .merge = merge};
}

namespace {

Result<DecoderSpec> make_qwen_vl_decoder(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const JsonObject text, read_qwen_text(config));
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_qwen2_spec(text));
  ESP_RETURN_IF_ERROR(finish_qwen_vl_decoder(config, text, "qwen2_vl", spec));
  ESP_RETURN_IF_ERROR(read_qwen_videos(config, spec));
  return spec;
}

// Of the vision_config; `second`: of Qwen2.5-VL.
Result<PatchesSpec> read_vision_patches(const JsonObject& vision, bool second) {
  ESP_ASSIGN_OR_RETURN(PatchesSpec patches, read_qwen_patches(vision, 14));
  patches.videos = true;
  if (!second) return patches;
  ESP_ASSIGN_OR_RETURN(patches.positions_per_second, vision.number_or("tokens_per_second", 4));
  if (!(patches.positions_per_second > 0 && patches.positions_per_second <= 1e6)) {
    return fail(vision.field_error("tokens_per_second", "must be above 0"));
  }
  ESP_ASSIGN_OR_RETURN(const int64_t window, vision.integer_or("window_size", 112, 1, 1 << 20));
  patches.window = static_cast<int32_t>(window / patches.merge / patches.patch_size);
  if (patches.window > 0) return patches;
  return fail(vision.field_error("window_size", "is below a square of patches"));
}

Result<LayerSpec> read_vision_layer(const JsonObject& vision, int32_t hidden_size, bool second) {
  const NormSpec norm{.kind = second ? NormSpec::Kind::kRms : NormSpec::Kind::kLayer};
  ESP_ASSIGN_OR_RETURN(LayerSpec layer, read_qwen_vision_layer(vision, hidden_size, norm));
  if (second) {
    ESP_ASSIGN_OR_RETURN(layer.mlp.intermediate_size,
                         read_size_or(vision, "intermediate_size", 3420));
    ESP_ASSIGN_OR_RETURN(layer.mlp.activation, read_activation(vision, {}));
    return layer;
  }
  ESP_ASSIGN_OR_RETURN(const int64_t ratio, vision.integer_or("mlp_ratio", 4, 1, 64));
  layer.mlp.intermediate_size = static_cast<int32_t>(ratio * hidden_size);
  layer.mlp.gated = false;
  ESP_ASSIGN_OR_RETURN(layer.mlp.gelu, read_gelu(vision, "hidden_act", "quick_gelu"));
  return layer;
}

Status read_vision_layers(const JsonObject& vision, bool second, DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(LayerSpec layer, read_vision_layer(vision, spec.hidden_size, second));
  ESP_ASSIGN_OR_RETURN(RopeSpec rope, read_qwen_vision_rope(vision, layer.attention.head_dim));
  spec.ropes = {std::move(rope)};
  ESP_ASSIGN_OR_RETURN(const int64_t depth, vision.integer_or("depth", 32, 1, 4096));
  layer.attention.windowed = second;
  spec.layers.assign(static_cast<size_t>(depth), layer);
  if (!second) return Status();
  std::vector<int64_t> whole = {7, 15, 23, 31};
  if (vision.has("fullatt_block_indexes")) {
    ESP_ASSIGN_OR_RETURN(whole, vision.integers("fullatt_block_indexes"));
  }
  for (const int64_t index : whole) {
    if (index < 0 || index >= depth) {
      return vision.field_error("fullatt_block_indexes", "names a layer that there is not");
    }
    spec.layers[static_cast<size_t>(index)].attention.windowed = false;
  }
  return Status();
}

WeightNames vision_mlp_names(bool second) {
  WeightNames names = qwen_vision_names();
  const std::string mlp = "visual.blocks.{}.mlp.";
  names.gate = mlp + "gate_proj";
  names.up = mlp + (second ? "up_proj" : "fc1");
  names.down = mlp + (second ? "down_proj" : "fc2");
  names.final_norm = "visual.merger.ln_q";
  return names;
}

Result<DecoderSpec> make_qwen_vl_encoder(const JsonObject& config, bool second) {
  ESP_ASSIGN_OR_RETURN(const JsonObject vision, config.object("vision_config"));
  DecoderSpec spec;
  ESP_ASSIGN_OR_RETURN(spec.model_type,
                       vision.string_or("model_type", second ? "qwen2_5_vl" : "qwen2_vl"));
  ESP_ASSIGN_OR_RETURN(spec.hidden_size,
                       read_size_or(vision, second ? "hidden_size" : "embed_dim", 1280));
  ESP_ASSIGN_OR_RETURN(spec.patches, read_vision_patches(vision, second));
  ESP_RETURN_IF_ERROR(read_vision_layers(vision, second, spec));
  spec.context_length = 1;  // a picture's number of patches has no bound of the model's
  spec.final_norm = spec.layers[0].input_norm;
  spec.names = vision_mlp_names(second);
  ESP_ASSIGN_OR_RETURN(const JsonObject text, read_qwen_text(config));
  ESP_ASSIGN_OR_RETURN(spec.projector,
                       read_qwen_projector(vision, text, second ? "out_hidden_size" : "hidden_size",
                                           spec, {"visual.merger.mlp.0", "visual.merger.mlp.2"}));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_qwen_dtype(config, text));
  return spec;
}

}  // namespace

Result<DecoderSpec> make_qwen2_vl_spec(const JsonObject& config) {
  return make_qwen_vl_decoder(config);
}
Result<DecoderSpec> make_qwen2_5_vl_spec(const JsonObject& config) {
  return make_qwen_vl_decoder(config);
}
Result<DecoderSpec> make_qwen2_vl_encoder(const JsonObject& config) {
  return make_qwen_vl_encoder(config, false);
}
Result<DecoderSpec> make_qwen2_5_vl_encoder(const JsonObject& config) {
  return make_qwen_vl_encoder(config, true);
}

}  // namespace espalier
