// Layers for multi-token prediction (MTP) in the checkpoints of the models that they were trained
// with: a norm of each of the two inputs, a matrix that joins them, a layer like the model's last
// one, and a norm in front of the model's head. Embedding and head are the model's, also where the
// checkpoint repeats them.
// Sources: DeepSeek-V3's report, section 2.2; vLLM, models/mimo_mtp (states in front of the final
// norm, as the model's authors wrote it), models/glm4_moe_mtp and models/deepseek_mtp (behind it);
// SGLang, models/glm4_moe_nextn and models/deepseek_nextn. They differ in what a layer reads of
// itself: here it is the state behind its own norm, as vLLM has it for MiMo and SGLang for all.
#include <algorithm>
#include <string>
#include <utility>

#include "models/families/draft.h"
#include "models/families/family.h"

namespace espalier {
namespace {

constexpr std::string_view kMimo = "MiMoForCausalLM", kGlm4Moe = "Glm4MoeForCausalLM",
                           kDeepseekV3 = "DeepseekV3ForCausalLM";

std::string layer_prefix(int32_t index) { return layer_name("model.layers.{}.", index); }

void set_mimo(DecoderSpec& spec) {
  WeightNames& names = spec.names;
  move_layer(names, "model.mtp_layers.{}");
  names.draft_input = "model.mtp_layers.0.input_proj";
  names.embedding_norm = "model.mtp_layers.0.token_layernorm";
  names.hidden_norm = "model.mtp_layers.{}.hidden_layernorm";
  names.final_norm = "model.mtp_layers.0.final_layernorm";
  names.unused_prefixes = {"model.layers."};
  spec.draft->states_first = true;
}

// The layer stands behind the model's, and its tensors are named so: DeepSeek-V3, GLM-4.5.
void set_deepseek(int32_t num_layers, DecoderSpec& spec) {
  WeightNames& names = spec.names;
  const std::string own = layer_prefix(num_layers);
  spec.stage.first_layer = num_layers;
  names.draft_input = own + "eh_proj";
  names.embedding_norm = own + "enorm";
  names.hidden_norm = "model.layers.{}.hnorm";
  names.final_norm = own + "shared_head.norm";
  names.unused_prefixes = {own + "embed_tokens.", own + "shared_head.head."};
  for (int32_t i = 0; i < num_layers; ++i) names.unused_prefixes.push_back(layer_prefix(i));
  spec.draft->normed_states = true;
}

// What is beside the layer in the checkpoint, layers that predict further tokens included.
void leave_others(const DecoderSpec& target, int64_t num_mtp_layers, WeightNames& names) {
  for (const std::string* name :
       {&target.names.embedding, &target.names.final_norm, &target.names.head})
    names.unused_prefixes.push_back(*name + ".");
  const auto num_layers = static_cast<int32_t>(target.layers.size());
  for (int32_t i = 1; i < static_cast<int32_t>(num_mtp_layers); ++i) {
    names.unused_prefixes.push_back(layer_name("model.mtp_layers.{}.", i));
    names.unused_prefixes.push_back(layer_prefix(num_layers + i));
  }
}

}  // namespace

bool has_mtp_layers(std::string_view architecture) {
  return architecture == kMimo || architecture == kGlm4Moe || architecture == kDeepseekV3;
}

Result<DecoderSpec> make_mtp_spec(const JsonObject& config, const DecoderSpec& target) {
  ESP_ASSIGN_OR_RETURN(const std::vector<std::string> names, config.strings("architectures"));
  if (names[0] != target.architecture) {
    return fail(config.field_error(
        "architectures", fmt::format("is {}, and the model's is {}: the layers that predict "
                                     "further tokens are those of its own checkpoint",
                                     names[0], target.architecture)));
  }
  ESP_ASSIGN_OR_RETURN(const int64_t count,
                       config.integer_or("num_nextn_predict_layers", 0, 0, 1024));
  if (count == 0) {
    return fail(config.field_error(
        "num_nextn_predict_layers",
        "is 0 or absent, so the checkpoint has no layers that predict further tokens: set "
        "--speculative-algorithm to COMBINED"));
  }
  const auto num_layers = static_cast<int32_t>(target.layers.size());
  DecoderSpec spec = target;
  spec.layers = {target.layers.back()};
  if (spec.tied_embeddings) spec.names.head = spec.names.embedding;
  spec.tied_embeddings = false;
  spec.eos_ids.clear();
  const NormSpec norm = *target.final_norm;
  spec.draft = DraftSpec{.kind = DraftSpec::Kind::kMtp,
                         .target_layers = {num_layers},
                         .target_vocab_size = target.vocab_size,
                         .hidden_norm = norm,
                         .embedding_norm = norm};
  target.architecture == kMimo ? set_mimo(spec) : set_deepseek(num_layers, spec);
  leave_others(target, count, spec.names);
  spec.architecture += " (MTP)";
  if (Status status = validate(spec); !status.ok()) {
    return fail(status.with_context(config.name()));
  }
  return spec;
}

}  // namespace espalier
