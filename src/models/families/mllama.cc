// Llama 3.2 Vision (Mllama, Grattafiori et al. 2024, section 7): Llama's decoder with layers of
// gated cross attention between its own, and an encoder whose tiles see each other, in two stacks
// of layers. Source: transformers, models/mllama.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "media/tiles.h"
#include "models/families/clip_vision.h"
#include "models/families/common.h"
#include "models/families/family.h"
#include "models/families/seeing.h"

namespace espalier {
namespace {

constexpr int64_t kMllamaPlaceholder = 128256;
constexpr int32_t kExtraEmbeddings = 8;  // rows behind the vocabulary, the placeholder's among them
constexpr std::string_view kMllamaText = R"({"vocab_size": 128256, "hidden_size": 4096,
    "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072,
    "rope_theta": 500000})";
constexpr const char* kMllamaCross = "language_model.model.layers.{}.cross_attn.";

Result<std::vector<int64_t>> read_cross_layers(const JsonObject& text) {
  if (text.has("cross_attention_layers")) return text.integers("cross_attention_layers");
  return std::vector<int64_t>{3, 8, 13, 18, 23, 28, 33, 38};
}

// Rising, of the decoder's layers.
Result<std::vector<int64_t>> read_mllama_layers(const JsonObject& config, std::string_view field,
                                                std::vector<int64_t> layers, size_t num_layers) {
  const bool rising = std::ranges::adjacent_find(layers, std::greater_equal()) == layers.end();
  if (!layers.empty() && rising && layers.front() >= 0 &&
      layers.back() < static_cast<int64_t>(num_layers)) {
    return layers;
  }
  return fail(config.field_error(
      field, fmt::format("must name layers of the {} that there are, rising", num_layers)));
}

void make_mllama_cross(LayerSpec& layer) {
  const NormSpec gate{.kind = NormSpec::Kind::kGate};
  layer.attention.cross = true;
  layer.attention.rope.reset();
  layer.attention.qk_norm = layer.input_norm;
  layer.attention_output_norm = layer.mlp_output_norm = gate;
}

Result<PatchesSpec> read_mllama_patches(const JsonObject& vision) {
  PatchesSpec patches{.class_token = true};
  ESP_ASSIGN_OR_RETURN(const int32_t side, read_size_or(vision, "image_size", 448));
  ESP_ASSIGN_OR_RETURN(patches.patch_size, read_size_or(vision, "patch_size", 14));
  ESP_ASSIGN_OR_RETURN(const int64_t channels, vision.integer_or("num_channels", 3, 3, 3));
  patches.channels = static_cast<int32_t>(channels);
  const int32_t grid = side / patches.patch_size;
  if (grid < 1 || grid > 1024 || side % patches.patch_size != 0)
    return fail(vision.field_error("patch_size", "does not divide image_size"));
  patches.num_patches = grid * grid;
  // The name layernorm_pre has an epsilon of its own, torch's.
  patches.norm = NormSpec{.epsilon = 1e-5f, .kind = NormSpec::Kind::kLayer};
  return patches;
}

// Pictures' shapes are all grids of at most max_num_tiles tiles, in the processor's order.
Result<TilesSpec> read_joint_tiles(const JsonObject& vision) {
  ESP_ASSIGN_OR_RETURN(const int64_t most, vision.integer_or("max_num_tiles", 4, 1, 64));
  TilesSpec tiles{.in_sequence = true, .counts = {.min = 1, .max = static_cast<int32_t>(most)}};
  JointTilesSpec joint;
  for (int32_t rows = 1; rows <= most; ++rows)
    joint.num_shapes += static_cast<int32_t>(most) / rows;
  if (vision.has("supported_aspect_ratios")) {
    ESP_ASSIGN_OR_RETURN(const auto shapes, vision.pairs("supported_aspect_ratios"));
    bool same = std::ssize(shapes) == joint.num_shapes;
    for (size_t i = 0; i < shapes.size(); ++i) {
      same &= tile_shape_number({.width = shapes[i].second, .height = shapes[i].first},
                                tiles.counts.max) == static_cast<int32_t>(i) + 1;
    }
    if (!same) {
      return fail(vision.field_error("supported_aspect_ratios",
                                     "must have all grids of max_num_tiles tiles, by rows"));
    }
  }
  const std::string top = "vision_model.";
  joint.norm = {.epsilon = 1e-5f, .kind = NormSpec::Kind::kLayer};
  joint.norm_name = top + "layernorm_post";
  joint.positions = top + "gated_positional_embedding";
  joint.tiles_before = top + "pre_tile_positional_embedding";
  joint.tiles_after = top + "post_tile_positional_embedding";
  tiles.joint = std::move(joint);
  return tiles;
}

Result<LayerSpec> read_mllama_vision_layer(const JsonObject& vision, int32_t hidden_size) {
  NormSpec norm{.kind = NormSpec::Kind::kLayer};
  ESP_ASSIGN_OR_RETURN(norm.epsilon, read_positive_or(vision, "norm_eps", 1e-5));
  LayerSpec layer{.input_norm = norm, .post_attention_norm = norm};
  AttentionSpec& a = layer.attention;
  ESP_ASSIGN_OR_RETURN(a.num_heads, read_size_or(vision, "attention_heads", 16));
  a.num_kv_heads = a.num_heads;
  a.head_dim = hidden_size / a.num_heads;
  if (a.head_dim * a.num_heads != hidden_size)
    return fail(vision.field_error("attention_heads", "must divide hidden_size"));
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  a.causal = false;
  a.windowed = true;
  ESP_ASSIGN_OR_RETURN(layer.mlp.intermediate_size,
                       read_size_or(vision, "intermediate_size", 5120));
  ESP_ASSIGN_OR_RETURN(layer.mlp.gelu, read_gelu(vision, "hidden_act", "gelu"));
  layer.mlp.gated = false;
  layer.mlp.bias = true;
  return layer;
}

WeightNames mllama_vision_names(int32_t global_begin) {
  WeightNames names;
  const std::string top = "vision_model.", layer = top + "transformer.layers.{}.";
  names.patch_embedding = top + "patch_embedding";
  names.class_embedding = top + "class_embedding";
  names.embedding_norm = top + "layernorm_pre";
  names.input_norm = layer + "input_layernorm";
  names.post_attention_norm = layer + "post_attention_layernorm";
  names.q = layer + "self_attn.q_proj";
  names.k = layer + "self_attn.k_proj";
  names.v = layer + "self_attn.v_proj";
  names.attention_output = layer + "self_attn.o_proj";
  names.attention_output_norm = layer + "gate_attn";
  names.up = layer + "mlp.fc1";
  names.down = layer + "mlp.fc2";
  names.mlp_output_norm = layer + "gate_ffn";
  names.later = {
      .begin = global_begin, .prefix = top + "transformer.", .other = top + "global_transformer."};
  names.other_prefixes = {{top, "model." + top},
                          {"multi_modal_projector.", "model.multi_modal_projector."},
                          {"language_model.model.", "model.language_model."}};
  leave_text_unread(names);
  return names;
}

Status add_mllama_layers(const JsonObject& vision, DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(LayerSpec layer, read_mllama_vision_layer(vision, spec.hidden_size));
  ESP_ASSIGN_OR_RETURN(const int64_t first, vision.integer_or("num_hidden_layers", 32, 1, 4096));
  ESP_ASSIGN_OR_RETURN(const int64_t then, vision.integer_or("num_global_layers", 8, 1, 4096));
  spec.layers.assign(static_cast<size_t>(first), layer);
  layer.attention_output_norm = layer.mlp_output_norm = NormSpec{.kind = NormSpec::Kind::kGate};
  spec.layers.insert(spec.layers.end(), static_cast<size_t>(then), layer);
  spec.tiles->joint->global_begin = static_cast<int32_t>(first);
  return Status();
}

Result<ProjectorSpec> read_mllama_projector(const JsonObject& vision, const DecoderSpec& encoder,
                                            const DecoderSpec& text) {
  ProjectorSpec projector;
  std::vector<int64_t> beside = {3, 7, 15, 23, 30};
  constexpr const char* kField = "intermediate_layers_indices";
  if (vision.has(kField)) {
    ESP_ASSIGN_OR_RETURN(beside, vision.integers(kField));
  }
  const auto first = static_cast<size_t>(encoder.tiles->joint->global_begin);
  ESP_ASSIGN_OR_RETURN(beside, read_mllama_layers(vision, kField, std::move(beside), first));
  projector.beside.assign(beside.begin(), beside.end());
  const int64_t width = std::ssize(beside) * encoder.hidden_size + encoder.hidden_size;
  ESP_ASSIGN_OR_RETURN(const int64_t stated, vision.integer_or("vision_output_dim", width));
  if (stated != width) {
    return fail(vision.field_error(
        "vision_output_dim",
        fmt::format("is {}, and the states of the layers are {} wide", stated, width)));
  }
  projector.layers = {{.name = "multi_modal_projector", .outputs = text.hidden_size, .bias = true}};
  for (size_t i = 0; i < text.layers.size(); ++i) {
    const AttentionSpec& a = text.layers[i].attention;
    if (!a.cross) continue;
    const std::string top = layer_name(kMllamaCross, static_cast<int32_t>(i));
    projector.cross.push_back({.k = top + "k_proj",
                               .v = top + "v_proj",
                               .k_norm = top + "k_norm",
                               .num_kv_heads = a.num_kv_heads,
                               .head_dim = a.head_dim,
                               .norm = *a.qk_norm});
  }
  return projector;
}

}  // namespace

Result<DecoderSpec> make_mllama_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const JsonObject text, read_nested_text(config, kMllamaText));
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_llama_spec(text));
  if (spec.tied_embeddings) {
    return fail(text.field_error("tie_word_embeddings",
                                 "is true, but the embedding has rows that the head has not"));
  }
  ESP_ASSIGN_OR_RETURN(spec.model_type, config.string_or("model_type", "mllama"));
  if (config.has("dtype") || config.has("torch_dtype")) {
    ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  }
  ESP_ASSIGN_OR_RETURN(std::vector<int64_t> cross, read_cross_layers(text));
  ESP_ASSIGN_OR_RETURN(cross, read_mllama_layers(text, "cross_attention_layers", std::move(cross),
                                                 spec.layers.size()));
  for (const int64_t layer : cross) make_mllama_cross(spec.layers[static_cast<size_t>(layer)]);
  spec.vocab_size += kExtraEmbeddings;
  nest_text_names(spec.names);
  const std::string of_cross = kMllamaCross;
  spec.names.cross_q = of_cross + "q_proj";
  spec.names.cross_q_norm = of_cross + "q_norm";
  spec.names.cross_output = of_cross + "o_proj";
  spec.names.attention_output_norm = "language_model.model.layers.{}.cross_attn_attn_gate";
  spec.names.mlp_output_norm = "language_model.model.layers.{}.cross_attn_mlp_gate";
  for (const char* suffix : {"k_proj.weight", "v_proj.weight", "k_norm.weight"})
    spec.names.unused_suffixes.push_back(std::string(".cross_attn.") + suffix);
  spec.names.unused_prefixes.insert(spec.names.unused_prefixes.end(),
                                    {"vision_model.", "model.vision_model."});
  ImagesSpec images{.num_rows = 1,
                    .num_cross_layers = static_cast<int32_t>(cross.size()),
                    .num_without_logit = kExtraEmbeddings};
  ESP_ASSIGN_OR_RETURN(images.placeholder,
                       read_placeholder(config, kMllamaPlaceholder, spec.vocab_size));
  spec.images = std::move(images);
  return spec;
}

Result<DecoderSpec> make_mllama_encoder(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const DecoderSpec text, make_mllama_spec(config));
  ESP_ASSIGN_OR_RETURN(const JsonObject vision, config.object("vision_config"));
  DecoderSpec spec;
  spec.model_type = "mllama_vision_model";
  ESP_ASSIGN_OR_RETURN(spec.hidden_size, read_size_or(vision, "hidden_size", 1280));
  ESP_ASSIGN_OR_RETURN(spec.patches, read_mllama_patches(vision));
  ESP_ASSIGN_OR_RETURN(spec.tiles, read_joint_tiles(vision));
  ESP_RETURN_IF_ERROR(add_mllama_layers(vision, spec));
  spec.context_length = spec.learned_positions =
      spec.tiles->num_positions() * spec.patches->num_rows();
  spec.names = mllama_vision_names(spec.tiles->joint->global_begin);
  ESP_ASSIGN_OR_RETURN(spec.projector, read_mllama_projector(vision, spec, text));
  spec.checkpoint_dtype = text.checkpoint_dtype;
  return spec;
}

}  // namespace espalier
