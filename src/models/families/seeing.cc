#include "models/families/seeing.h"

#include <fmt/format.h>

#include "seams/forward_batch.h"

namespace espalier {

Result<JsonObject> read_nested_text(const JsonObject& config, std::string_view defaults) {
  ESP_ASSIGN_OR_RETURN(const JsonObject text, config.object("text_config"));
  ESP_ASSIGN_OR_RETURN(const JsonObject otherwise, JsonObject::parse(defaults, text.name()));
  return otherwise.merged(text);
}

void nest_text_names(WeightNames& names) {
  const std::string model = "model.", text = "language_model.model.";
  for (std::string* name :
       {&names.embedding, &names.final_norm, &names.input_norm, &names.post_attention_norm,
        &names.q, &names.k, &names.v, &names.attention_output, &names.q_norm, &names.k_norm,
        &names.gate, &names.up, &names.down, &names.attention_output_norm,
        &names.mlp_output_norm}) {
    if (name->starts_with(model)) name->replace(0, model.size(), text);
  }
  names.head = "language_model." + names.head;
  names.other_prefixes = {{text, "model.language_model."}, {"language_model.lm_head", "lm_head"}};
  names.unused_prefixes = {"vision_tower.",          "model.vision_tower.",
                           "multi_modal_projector.", "model.multi_modal_projector.",
                           "image_newline",          "model.image_newline"};
}

void leave_text_unread(WeightNames& names) {
  for (const char* prefix : {"language_model.", "model.language_model.", "lm_head."}) {
    names.unused_prefixes.emplace_back(prefix);
  }
}

Result<TokenId> read_placeholder(const JsonObject& config, int64_t otherwise, int32_t vocab_size) {
  ESP_ASSIGN_OR_RETURN(const int64_t before,
                       config.integer_or("image_token_index", otherwise, 0, 1 << 30));
  ESP_ASSIGN_OR_RETURN(const int64_t id, config.integer_or("image_token_id", before, 0, 1 << 30));
  if (id < vocab_size && vocab_size <= kFirstSpanKey) return static_cast<TokenId>(id);
  return fail(config.field_error(
      config.has("image_token_id") ? "image_token_id" : "image_token_index",
      fmt::format("is {}, which must be a token of a vocabulary of at most {}, and there are {}",
                  id, kFirstSpanKey, vocab_size)));
}

Result<int64_t> count_read_layers(const JsonObject& config, int64_t num_layers) {
  ESP_ASSIGN_OR_RETURN(const int64_t layer,
                       config.integer_or("vision_feature_layer", -1, -4096, 4096));
  const int64_t count = layer < 0 ? num_layers + 1 + layer : layer;
  if (count >= 1 && count <= num_layers) return count;
  return fail(config.field_error("vision_feature_layer",
                                 fmt::format("is {}, and the encoder has {} layers: it must be one "
                                             "behind the first",
                                             layer, num_layers)));
}

}  // namespace espalier
