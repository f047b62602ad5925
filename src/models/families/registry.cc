#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "models/families/family.h"
#include "models/pooling_config.h"

namespace espalier {
namespace {

constexpr Family kFamilies[] = {
    {"DeepseekV2ForCausalLM", make_deepseek_v2_spec},
    {"DeepseekV3ForCausalLM", make_deepseek_v3_spec},
    {"GPT2LMHeadModel", make_gpt2_spec},
    {"Gemma2ForCausalLM", make_gemma2_spec},
    {"Gemma3ForCausalLM", make_gemma3_spec},
    {"GemmaForCausalLM", make_gemma_spec},
    {"Glm4MoeForCausalLM", make_glm4_moe_spec},
    {"GptOssForCausalLM", make_gpt_oss_spec},
    {"GraniteForCausalLM", make_granite_spec},
    {"LlamaForCausalLM", make_llama_spec},
    {"MistralForCausalLM", make_mistral_spec},
    {"MixtralForCausalLM", make_mixtral_spec},
    {"Olmo2ForCausalLM", make_olmo2_spec},
    {"Phi3ForCausalLM", make_phi3_spec},
    {"Qwen2ForCausalLM", make_qwen2_spec},
    {"Qwen2MoeForCausalLM", make_qwen2_moe_spec},
    {"Qwen3ForCausalLM", make_qwen3_spec},
    {"Qwen3MoeForCausalLM", make_qwen3_moe_spec},
    {"SmolLM3ForCausalLM", make_smollm3_spec},
};

// "Llama" of "LlamaForCausalLM" and of "GPT2LMHeadModel".
bool is_of_family(const Family& family, std::string_view name) {
  return family.architecture.starts_with(name) &&
         (family.architecture.substr(name.size()) == "ForCausalLM" ||
          family.architecture.substr(name.size()) == "LMHeadModel");
}

Result<DecoderSpec> make_spec(const Family& family, const JsonObject& config,
                              const std::string& architecture, PooledUse use) {
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, family.make_spec(config));
  spec.architecture = architecture;
  if (use != PooledUse::kNone) ESP_RETURN_IF_ERROR(set_pooling(config, use, spec));
  if (Status status = validate(spec); !status.ok()) {
    return fail(status.with_context(config.name()));
  }
  return spec;
}

}  // namespace

std::span<const Family> families() { return kFamilies; }

Result<DecoderSpec> make_decoder_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const std::vector<std::string> names, config.strings("architectures"));
  const std::string name = names.empty() ? "" : names[0];
  const PooledArchitecture pooled = pooled_architecture(name);
  for (const Family& family : kFamilies) {
    if (name == family.architecture) return make_spec(family, config, name, PooledUse::kNone);
    if (pooled.use != PooledUse::kNone && is_of_family(family, pooled.family)) {
      return make_spec(family, config, name, pooled.use);
    }
  }
  std::vector<std::string_view> known;
  for (const Family& family : kFamilies) known.push_back(family.architecture);
  return fail(error(StatusCode::kUnimplemented,
                    "{}: the architecture '{}' is not known; those that are: {}; and each of these "
                    "families as XModel, XForSequenceClassification and XForRewardModel",
                    config.name(), name, fmt::join(known, ", ")));
}

}  // namespace espalier
