// Draft heads in the format of EAGLE-3's training (SpecForge) and of SGLang:
// LlamaForCausalLMEagle3. Source: Li et al. 2025 (EAGLE-3); SGLang, models/llama_eagle3.
#include <algorithm>

#include "models/families/common.h"
#include "models/families/draft.h"
#include "models/families/family.h"

namespace espalier {
namespace {

constexpr std::string_view kArchitecture = "LlamaForCausalLMEagle3";

// eagle_config's ids count the layers whose results are read, so states stand in front of the next.
Result<std::vector<int32_t>> read_target_layers(const JsonObject& config, int32_t num_layers) {
  std::vector<int64_t> layers = {2, num_layers / 2, num_layers - 3};
  if (config.has("eagle_config")) {
    ESP_ASSIGN_OR_RETURN(const JsonObject eagle, config.object("eagle_config"));
    if (eagle.has("eagle_aux_hidden_state_layer_ids")) {
      ESP_ASSIGN_OR_RETURN(layers, eagle.integers("eagle_aux_hidden_state_layer_ids"));
      for (int64_t& layer : layers) ++layer;
    }
  }
  std::ranges::sort(layers);
  const bool rising = std::ranges::adjacent_find(layers) == layers.end();
  if (layers.size() != 3 || !rising || layers.front() < 0 || layers.back() >= num_layers) {
    return fail(config.field_error(
        "eagle_config",
        fmt::format("must name three of the target's first {} layers that differ, as "
                    "eagle_aux_hidden_state_layer_ids",
                    num_layers - 1)));
  }
  return std::vector<int32_t>(layers.begin(), layers.end());
}

WeightNames head_names() {
  WeightNames names;
  names.embedding = "embed_tokens";
  names.final_norm = "norm";
  names.draft_input = "fc";
  names.hidden_norm = "midlayer.hidden_norm";
  move_layer(names, "midlayer");
  // The target's embedding is read, and the vocabularies apart from the matrices.
  names.unused_suffixes.insert(names.unused_suffixes.end(), {"embed_tokens.weight", "d2t", "t2d"});
  return names;
}

Result<std::string> architecture_of(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const std::vector<std::string> names, config.strings("architectures"));
  return names.empty() ? std::string() : names[0];
}

}  // namespace

void move_layer(WeightNames& names, std::string_view prefix) {
  for (std::string* name :
       {&names.input_norm, &names.post_attention_norm, &names.q, &names.k, &names.v,
        &names.attention_output, &names.gate, &names.up, &names.down}) {
    name->replace(0, std::string_view("model.layers.{}").size(), prefix);
  }
}

std::optional<DraftSpec::Kind> draft_kind(std::string_view architecture) {
  if (has_mtp_layers(architecture)) return DraftSpec::Kind::kMtp;
  if (architecture == kArchitecture) return DraftSpec::Kind::kEagle3;
  return std::nullopt;
}

Status check_draft_kind(const JsonObject& config, DraftSpec::Kind expected) {
  ESP_ASSIGN_OR_RETURN(const std::string name, architecture_of(config));
  const auto kind = draft_kind(name);
  if (!kind || *kind == expected) return {};
  const bool is_mtp = *kind == DraftSpec::Kind::kMtp;
  return invalid_argument(
      "{}: {} is {}, which --speculative-algorithm {} runs, and {} runs {}: set "
      "--speculative-algorithm to {}, or --speculative-draft-model-path to another folder",
      config.name(), name,
      is_mtp ? "a model with a layer for multi-token prediction" : "an EAGLE-3 head",
      is_mtp ? "NEXTN" : "EAGLE3", is_mtp ? "EAGLE3" : "NEXTN",
      is_mtp ? "EAGLE-3 heads" : "layers for multi-token prediction", is_mtp ? "NEXTN" : "EAGLE3");
}

Result<DecoderSpec> make_draft_spec(const JsonObject& config, const DecoderSpec& target) {
  ESP_ASSIGN_OR_RETURN(const std::string name, architecture_of(config));
  const auto kind = draft_kind(name);
  if (kind == DraftSpec::Kind::kMtp) return make_mtp_spec(config, target);
  if (kind == DraftSpec::Kind::kEagle3) return make_eagle3_spec(config, target);
  return fail(error(StatusCode::kUnimplemented,
                    "{}: the draft head's architecture '{}' is not known; {} is, and the layers "
                    "for multi-token prediction of MiMo, GLM-4.5 and DeepSeek-V3",
                    config.name(), name, kArchitecture));
}

Result<DecoderSpec> make_eagle3_spec(const JsonObject& config, const DecoderSpec& target) {
  if (target.layers[0].attention.latent) {
    return fail(error(StatusCode::kUnimplemented,
                      "{} keeps latents, and EAGLE-3 heads are for models that keep keys and "
                      "values: set --speculative-algorithm to COMBINED",
                      target.architecture));
  }
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, make_llama_spec(config));
  spec.architecture = kArchitecture;
  if (spec.vocab_size != target.vocab_size || spec.hidden_size != target.hidden_size) {
    return fail(invalid_argument(
        "{}: the draft head was made for a vocabulary of {} and a hidden size of {}, and the model "
        "has {} and {}: take the head of this model",
        config.name(), spec.vocab_size, spec.hidden_size, target.vocab_size, target.hidden_size));
  }
  if (spec.tied_embeddings) {
    return fail(config.field_error("tie_word_embeddings",
                                   "must be false: a draft head has an lm_head of its own"));
  }
  spec.draft.emplace();
  spec.draft->target_vocab_size = target.vocab_size;
  spec.draft->hidden_norm = *spec.layers[0].input_norm;
  ESP_ASSIGN_OR_RETURN(spec.vocab_size,
                       read_size_or(config, "draft_vocab_size", target.vocab_size));
  if (spec.vocab_size > target.vocab_size) {
    return fail(config.field_error("draft_vocab_size", "is above vocab_size"));
  }
  ESP_ASSIGN_OR_RETURN(spec.draft->target_layers,
                       read_target_layers(config, static_cast<int32_t>(target.layers.size())));
  spec.eos_ids.clear();
  spec.names = head_names();
  if (Status status = validate(spec); !status.ok()) {
    return fail(status.with_context(config.name()));
  }
  return spec;
}

}  // namespace espalier
