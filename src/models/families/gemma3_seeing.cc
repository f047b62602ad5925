// Gemma 3 with pictures (Gemma Team 2025): Gemma 3's decoder, in which a picture's rows see each
// other, and SigLIP, whose patches are averaged in squares to a fixed number of rows. Pan and scan
// is not supported. Source: transformers, models/gemma3.
#include <fmt/format.h>

#include <cmath>

#include "models/families/clip_vision.h"
#include "models/families/common.h"
#include "models/families/family.h"
#include "models/families/seeing.h"

namespace espalier {
namespace {

// Gemma3TextConfig's.
constexpr std::string_view kGemma3TextDefaults = R"({
  "model_type": "gemma3_text", "vocab_size": 262208, "hidden_size": 2304,
  "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
  "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
  "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6})";
constexpr int64_t kGemma3Placeholder = 262144;

Result<int32_t> read_gemma3_rows(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const int64_t rows,
                       config.integer_or("mm_tokens_per_image", 256, 1, 1 << 20));
  return static_cast<int32_t>(rows);
}

// Of the squares of patches that become a row each.
Result<int32_t> read_gemma3_square(const JsonObject& config, int32_t num_patches) {
  ESP_ASSIGN_OR_RETURN(const int32_t rows, read_gemma3_rows(config));
  const auto side = [](int32_t of) { return static_cast<int32_t>(std::lround(std::sqrt(of))); };
  const int32_t patches = side(num_patches), made = side(rows);
  if (made * made == rows && patches % made == 0) return patches / made;
  return fail(config.field_error(
      "mm_tokens_per_image",
      fmt::format("is {}, which must be a square whose side divides the encoder's {} patches a "
                  "side",
                  rows, patches)));
}

}  // namespace

Result<DecoderSpec> make_gemma3_seeing_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const JsonObject text, read_nested_text(config, kGemma3TextDefaults));
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_gemma3_spec(text));
  ESP_ASSIGN_OR_RETURN(spec.model_type, config.string_or("model_type", "gemma3"));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  nest_text_names(spec.names);
  ImagesSpec images{.mark = "<start_of_image>",
                    .marked = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n",
                    .bidirectional = true};
  ESP_ASSIGN_OR_RETURN(images.placeholder,
                       read_placeholder(config, kGemma3Placeholder, spec.vocab_size));
  ESP_ASSIGN_OR_RETURN(images.num_rows, read_gemma3_rows(config));
  spec.images = std::move(images);
  return spec;
}

Result<DecoderSpec> make_gemma3_encoder(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const JsonObject vision, config.object("vision_config"));
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, read_clip_vision(vision, -1));
  spec.final_norm = spec.layers[0].input_norm;
  spec.names.final_norm = "vision_tower.vision_model.post_layernorm";
  ESP_ASSIGN_OR_RETURN(const int32_t side, read_gemma3_square(config, spec.patches->num_patches));
  spec.patches->merge = side;
  ESP_ASSIGN_OR_RETURN(const JsonObject text, read_nested_text(config, kGemma3TextDefaults));
  ESP_ASSIGN_OR_RETURN(const int32_t outputs, read_size(text, "hidden_size"));
  const std::string name = "multi_modal_projector.";
  ProjectorSpec projector;
  projector.layers = {
      {.name = name + "mm_input_projection_weight", .outputs = outputs, .transposed = true}};
  projector.merge = side * side;
  projector.how = ProjectorSpec::Merge::kMean;
  projector.norm =
      NormSpec{.epsilon = spec.final_norm->epsilon, .kind = NormSpec::Kind::kRmsOneCentred};
  projector.norm_name = name + "mm_soft_emb_norm";
  spec.projector = std::move(projector);
  spec.names.other_prefixes.emplace_back(name, "model." + name);
  leave_text_unread(spec.names);
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  return spec;
}

}  // namespace espalier
