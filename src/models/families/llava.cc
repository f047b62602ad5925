// LLaVA 1.5 (Liu et al. 2023): a decoder, a vision encoder of CLIP's shape, and an MLP of two
// layers that carries the encoder's rows to the decoder's. LLaVA-NeXT and LLaVA-OneVision read a
// picture in tiles besides, LLaVA-NeXT-Video (Zhang et al. 2024) videos as frames. Source:
// transformers, models/llava, llava_next, llava_next_video and llava_onevision.
#include <fmt/format.h>

#include <charconv>

#include "models/families/clip_vision.h"
#include "models/families/common.h"
#include "models/families/family.h"
#include "models/families/pixtral.h"
#include "models/families/seeing.h"
#include "seams/forward_batch.h"

namespace espalier {
namespace {

constexpr int32_t kTiledSideMax = 8192;  // pixels

// What a text_config that states a model's name alone leaves out: LlamaConfig's defaults.
constexpr std::string_view kLlamaDefaults = R"({
  "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
  "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 2048,
  "rms_norm_eps": 1e-6, "eos_token_id": 2})";

Result<JsonObject> read_text_config(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const JsonObject text, config.object("text_config"));
  if (text.has("hidden_size")) return text;
  ESP_ASSIGN_OR_RETURN(const JsonObject defaults, JsonObject::parse(kLlamaDefaults, text.name()));
  return defaults.merged(text);
}

Result<DecoderSpec> make_text_spec(const JsonObject& text) {
  ESP_ASSIGN_OR_RETURN(const std::string type, text.string_or("model_type", "llama"));
  if (type == "llama") return make_llama_spec(text);
  if (type == "mistral") return make_mistral_spec(text);
  if (type == "qwen2") return make_qwen2_spec(text);
  return fail(text.field_error("model_type",
                               "is '" + type + "'; known beside images are llama, mistral, qwen2"));
}

struct Features {
  int32_t layer = 0;
  bool with_class = false;  // its row is a result too
};

// What releases differ in, and what config.json need not state.
struct Release {
  int32_t layer = -2;              // vision_feature_layer
  const char* select = "default";  // vision_feature_select_strategy
  int64_t placeholder = 32000;
  bool tiles = false;
  const char* aspect = "";  // vision_aspect_ratio: "anyres_max_N" where it has such a field
  int64_t video_placeholder = -1;
};
constexpr Release kLlava;
constexpr Release kNext{.tiles = true};
constexpr Release kNextVideo{.placeholder = 32001, .tiles = true, .video_placeholder = 32000};
constexpr Release kOneVision{
    .layer = -1, .select = "full", .placeholder = 151646, .tiles = true, .aspect = "anyres_max_9"};

Result<Features> read_features(const JsonObject& config, const Release& release) {
  Features out;
  ESP_ASSIGN_OR_RETURN(const int64_t layer,
                       config.integer_or("vision_feature_layer", release.layer, -4096, 4096));
  out.layer = static_cast<int32_t>(layer);
  ESP_ASSIGN_OR_RETURN(const std::string select,
                       config.string_or("vision_feature_select_strategy", release.select));
  if (select != "default" && select != "full") {
    return fail(config.field_error("vision_feature_select_strategy",
                                   "is '" + select + "'; known are default and full"));
  }
  out.with_class = select == "full";
  return out;
}

// transformers has called the field by two names.
Result<ImagesSpec> read_images(const JsonObject& config, const Release& release,
                               int32_t vocab_size) {
  ESP_ASSIGN_OR_RETURN(const Features features, read_features(config, release));
  ESP_ASSIGN_OR_RETURN(const JsonObject vision, config.object("vision_config"));
  ESP_ASSIGN_OR_RETURN(const DecoderSpec encoder, read_clip_vision(vision, features.layer));
  ESP_ASSIGN_OR_RETURN(const int64_t named,
                       config.integer_or("image_token_index", release.placeholder, 0, 1 << 30));
  ESP_ASSIGN_OR_RETURN(const int64_t placeholder,
                       config.integer_or("image_token_id", named, 0, 1 << 30));
  if (placeholder >= vocab_size || vocab_size > kFirstSpanKey) {
    return fail(config.field_error(
        "image_token_index", fmt::format("is {}, which must be a token of a vocabulary of at most "
                                         "{}, and there are {}",
                                         placeholder, kFirstSpanKey, vocab_size)));
  }
  ImagesSpec images{.placeholder = static_cast<TokenId>(placeholder),
                    .num_rows = release.tiles ? 0 : encoder.patches->num_patches};
  if (release.video_placeholder >= 0) {
    ESP_ASSIGN_OR_RETURN(
        const int64_t before,
        config.integer_or("video_token_index", release.video_placeholder, 0, 1 << 30));
    ESP_ASSIGN_OR_RETURN(const int64_t video,
                         config.integer_or("video_token_id", before, 0, 1 << 30));
    if (video < vocab_size) images.video_placeholder = static_cast<TokenId>(video);
  }
  return images;
}

// side: of a tile, in pixels.
Result<TilesSpec> read_tiles(const JsonObject& config, const Release& release, int32_t side) {
  TilesSpec tiles{.line_end = "image_newline", .alone = *release.aspect != 0};
  ESP_ASSIGN_OR_RETURN(const auto sizes, config.pairs("image_grid_pinpoints"));
  for (const auto& [height, width] : sizes) {
    tiles.resolutions.push_back({width, height});
    if (height % side == 0 && width % side == 0 && height <= kTiledSideMax &&
        width <= kTiledSideMax) {
      continue;
    }
    return fail(config.field_error(
        "image_grid_pinpoints",
        fmt::format("has {} x {} pixels, which must be multiples of image_size {} up to {}", height,
                    width, side, kTiledSideMax)));
  }
  if (tiles.resolutions.empty()) {
    return fail(config.field_error("image_grid_pinpoints", "is empty"));
  }
  if (*release.aspect == 0) return tiles;
  constexpr std::string_view kAspect = "anyres_max_";
  ESP_ASSIGN_OR_RETURN(const std::string aspect,
                       config.string_or("vision_aspect_ratio", release.aspect));
  const char* const end = aspect.data() + aspect.size();
  if (aspect.starts_with(kAspect)) {
    const auto read = std::from_chars(aspect.data() + kAspect.size(), end, tiles.tiles_max);
    if (read.ec == std::errc() && read.ptr == end && tiles.tiles_max > 0) return tiles;
  }
  return fail(
      config.field_error("vision_aspect_ratio", "is '" + aspect + "'; known is anyres_max_N"));
}

Result<DecoderSpec> make_encoder(const JsonObject& config, const Release& release) {
  ESP_ASSIGN_OR_RETURN(const Features features, read_features(config, release));
  ESP_ASSIGN_OR_RETURN(const JsonObject vision, config.object("vision_config"));
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_clip_vision(vision, features.layer));
  if (features.with_class == spec.patches->class_token) {
    return fail(config.field_error(
        "vision_feature_select_strategy",
        "must be 'default' with a class token (CLIP) and 'full' without one (SigLIP)"));
  }
  ESP_ASSIGN_OR_RETURN(const JsonObject text, read_text_config(config));
  ESP_ASSIGN_OR_RETURN(const int32_t outputs, read_size(text, "hidden_size"));
  ESP_ASSIGN_OR_RETURN(const bool bias, config.boolean_or("multimodal_projector_bias", true));
  ProjectorSpec projector;
  ESP_ASSIGN_OR_RETURN(projector.gelu, read_gelu(config, "projector_hidden_act", "gelu"));
  const std::string name = "multi_modal_projector.";
  projector.layers = {{name + "linear_1", outputs, bias}, {name + "linear_2", outputs, bias}};
  spec.projector = std::move(projector);
  spec.names.other_prefixes.emplace_back(name, "model." + name);
  leave_text_unread(spec.names);
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  if (!release.tiles) return spec;
  // Of a tile; patches need not fill it.
  ESP_ASSIGN_OR_RETURN(const int32_t side, read_size(vision, "image_size"));
  ESP_ASSIGN_OR_RETURN(spec.tiles, read_tiles(config, release, side));
  spec.names.other_prefixes.emplace_back("image_newline", "model.image_newline");
  return spec;
}

// Of a video's frames, which are read whole: rows of squares of patches are averaged in front of
// the projector.
Result<DecoderSpec> make_frame_encoder(const JsonObject& config, const Release& release) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_encoder(config, release));
  ESP_ASSIGN_OR_RETURN(const std::string mode, config.string_or("spatial_pool_mode", "average"));
  if (mode != "average")
    return fail(config.field_error("spatial_pool_mode", "is '" + mode + "'; known is average"));
  ESP_ASSIGN_OR_RETURN(const int64_t stride, config.integer_or("spatial_pool_stride", 2, 1, 16));
  spec.tiles.reset();
  spec.names.unused_prefixes.insert(spec.names.unused_prefixes.end(),
                                    {"image_newline", "model.image_newline"});
  PatchesSpec& patches = *spec.patches;
  patches.merge = static_cast<int32_t>(stride);
  patches.videos = true;
  spec.projector->merge = patches.square();
  spec.projector->how = ProjectorSpec::Merge::kMean;
  return spec;
}

Result<DecoderSpec> make_spec(const JsonObject& config, const Release& release) {
  ESP_ASSIGN_OR_RETURN(const JsonObject text, read_text_config(config));
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_text_spec(text));
  ESP_ASSIGN_OR_RETURN(spec.model_type, config.string_or("model_type", "llava"));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  nest_text_names(spec.names);
  ESP_ASSIGN_OR_RETURN(spec.images, read_images(config, release, spec.vocab_size));
  return spec;
}

}  // namespace

Result<DecoderSpec> make_llava_spec(const JsonObject& config) {
  return is_pixtral(config) ? make_pixtral_spec(config) : make_spec(config, kLlava);
}
Result<DecoderSpec> make_llava_next_spec(const JsonObject& config) {
  return make_spec(config, kNext);
}
Result<DecoderSpec> make_llava_next_video_spec(const JsonObject& config) {
  return make_spec(config, kNextVideo);
}
Result<DecoderSpec> make_llava_onevision_spec(const JsonObject& config) {
  return make_spec(config, kOneVision);
}

Result<DecoderSpec> make_llava_encoder(const JsonObject& config) {
  return is_pixtral(config) ? make_pixtral_encoder(config) : make_encoder(config, kLlava);
}
Result<DecoderSpec> make_llava_next_encoder(const JsonObject& config) {
  return make_encoder(config, kNext);
}
Result<DecoderSpec> make_llava_next_video_encoder(const JsonObject& config) {
  return make_encoder(config, kNextVideo);
}
Result<DecoderSpec> make_llava_next_video_frames(const JsonObject& config) {
  return make_frame_encoder(config, kNextVideo);
}
Result<DecoderSpec> make_llava_onevision_encoder(const JsonObject& config) {
  return make_encoder(config, kOneVision);
}

}  // namespace espalier
