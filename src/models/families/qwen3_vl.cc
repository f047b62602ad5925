// Qwen3-VL, the dense sizes: Qwen3's decoder, whose rotary positions' three components take turns
// and whose first layers add states of several of the encoder's layers (DeepStack, Meng et al.
// 2024); the encoder has learned positions besides the rotary ones. Source: transformers,
// models/qwen3_vl.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/families/clip_vision.h"
#include "models/families/common.h"
#include "models/families/family.h"
#include "models/families/qwen_vision.h"

namespace espalier {
namespace {

constexpr NormSpec kVisionNorm{.kind = NormSpec::Kind::kLayer};

Result<std::vector<int64_t>> read_deepstack(const JsonObject& vision) {
  if (vision.has("deepstack_visual_indexes")) return vision.integers("deepstack_visual_indexes");
  return std::vector<int64_t>{8, 16, 24};
}

Status read_deepstack_specs(const JsonObject& vision, ProjectorSpec& projector) {
  ESP_ASSIGN_OR_RETURN(const std::vector<int64_t> layers, read_deepstack(vision));
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] < 0 || layers[i] > 4096) {
      return vision.field_error("deepstack_visual_indexes", "names a layer that there is not");
    }
    const std::string top = fmt::format("visual.deepstack_merger_list.{}.", i);
    DeepstackSpec& deep =
        projector.deepstack.emplace_back(DeepstackSpec{.layer = static_cast<int32_t>(layers[i]),
                                                       .norm = kVisionNorm,
                                                       .norm_name = top + "norm",
                                                       .layers = projector.layers});
    deep.layers[0].name = top + "linear_fc1";
    deep.layers[1].name = top + "linear_fc2";
  }
  return Status();
}

// The side of the square of learned positions.
Result<int32_t> read_position_side(const JsonObject& vision) {
  constexpr int64_t kSideMost = 1024;
  ESP_ASSIGN_OR_RETURN(const int64_t count, vision.integer_or("num_position_embeddings", 2304, 1,
                                                              kSideMost * kSideMost));
  const auto side = static_cast<int32_t>(std::lround(std::sqrt(static_cast<double>(count))));
  if (int64_t{side} * side == count) return side;
  return fail(vision.field_error("num_position_embeddings",
                                 fmt::format("is {}, which is no square", count)));
}

Status read_vision_mlp(const JsonObject& vision, MlpSpec& mlp) {
  mlp.gated = false;
  ESP_ASSIGN_OR_RETURN(mlp.intermediate_size, read_size_or(vision, "intermediate_size", 4304));
  ESP_ASSIGN_OR_RETURN(const std::string act, vision.string_or("hidden_act", "gelu_pytorch_tanh"));
  if (act == "gelu_pytorch_tanh") {
    mlp.activation = kernels::Activation::kGeluTanh;
    return Status();
  }
  ESP_ASSIGN_OR_RETURN(mlp.gelu, read_gelu(vision, "hidden_act", ""));
  return Status();
}

// The tokens around a grid of a video. A file without them reads no videos.
Status read_grid_tokens(const JsonObject& config, ImagesSpec& images, int32_t vocab_size) {
  constexpr int64_t kGridBegin = 151652, kGridEnd = 151653;
  ESP_ASSIGN_OR_RETURN(const int64_t begin,
                       config.integer_or("vision_start_token_id", kGridBegin, 0, 1 << 30));
  ESP_ASSIGN_OR_RETURN(const int64_t end,
                       config.integer_or("vision_end_token_id", kGridEnd, 0, 1 << 30));
  if (std::max(begin, end) >= vocab_size) {
    images.video_placeholder = -1;
    return Status();
  }
  images.grid_begin = static_cast<TokenId>(begin);
  images.grid_end = static_cast<TokenId>(end);
  return Status();
}

WeightNames qwen3_vision_names() {
  WeightNames names = qwen_vision_names();
  names.position_embedding = "visual.pos_embed";
  names.up = "visual.blocks.{}.mlp.linear_fc1";
  names.down = "visual.blocks.{}.mlp.linear_fc2";
  names.final_norm = "visual.merger.norm";
  return names;
}

}  // namespace

Result<DecoderSpec> make_qwen3_vl_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const JsonObject text, read_qwen_text(config));
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_qwen3_spec(text));
  ESP_RETURN_IF_ERROR(finish_qwen_vl_decoder(config, text, "qwen3_vl", spec));
  for (RopeSpec& rope : spec.ropes) rope.interleaved_sections = true;
  ESP_ASSIGN_OR_RETURN(const JsonObject vision, config.object("vision_config"));
  ESP_ASSIGN_OR_RETURN(const std::vector<int64_t> deepstack, read_deepstack(vision));
  spec.images->num_deep_parts = static_cast<int32_t>(deepstack.size());
  ESP_RETURN_IF_ERROR(read_qwen_videos(config, spec));
  ESP_RETURN_IF_ERROR(read_grid_tokens(config, *spec.images, spec.vocab_size));
  return spec;
}

Result<DecoderSpec> make_qwen3_vl_encoder(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const JsonObject vision, config.object("vision_config"));
  ESP_ASSIGN_OR_RETURN(const JsonObject text, read_qwen_text(config));
  DecoderSpec spec;
  ESP_ASSIGN_OR_RETURN(spec.model_type, vision.string_or("model_type", "qwen3_vl"));
  ESP_ASSIGN_OR_RETURN(spec.hidden_size, read_size_or(vision, "hidden_size", 1152));
  ESP_ASSIGN_OR_RETURN(PatchesSpec patches, read_qwen_patches(vision, 16));
  patches.bias = patches.videos = patches.grids_apart = true;
  ESP_ASSIGN_OR_RETURN(patches.position_side, read_position_side(vision));
  spec.learned_positions = patches.position_side * patches.position_side;
  spec.patches = patches;
  spec.context_length = 1;  // a picture's number of patches has no bound of the model's
  ESP_ASSIGN_OR_RETURN(LayerSpec layer,
                       read_qwen_vision_layer(vision, spec.hidden_size, kVisionNorm));
  ESP_RETURN_IF_ERROR(read_vision_mlp(vision, layer.mlp));
  ESP_ASSIGN_OR_RETURN(RopeSpec rope, read_qwen_vision_rope(vision, layer.attention.head_dim));
  spec.ropes = {std::move(rope)};
  ESP_ASSIGN_OR_RETURN(const int64_t depth, vision.integer_or("depth", 27, 1, 4096));
  spec.layers.assign(static_cast<size_t>(depth), layer);
  spec.final_norm = kVisionNorm;
  spec.names = qwen3_vision_names();
  ESP_ASSIGN_OR_RETURN(spec.projector, read_qwen_projector(vision, text, "out_hidden_size", spec,
                                                           {"visual.merger.linear_fc1",
                                                            "visual.merger.linear_fc2"}));
  ESP_RETURN_IF_ERROR(read_deepstack_specs(vision, *spec.projector));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_qwen_dtype(config, text));
  return spec;
}

}  // namespace espalier
