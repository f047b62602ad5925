#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "models/families/family.h"

namespace espalier {
namespace {

constexpr Family kFamilies[] = {
    {"DeepseekV2ForCausalLM", make_deepseek_v2_spec},
    {"DeepseekV3ForCausalLM", make_deepseek_v3_spec},
    {"GPT2LMHeadModel", make_gpt2_spec},
    {"Gemma2ForCausalLM", make_gemma2_spec},
    {"Gemma3ForCausalLM", make_gemma3_spec},
    {"GemmaForCausalLM", make_gemma_spec},
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

}  // namespace

std::span<const Family> families() { return kFamilies; }

Result<DecoderSpec> make_decoder_spec(const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const std::vector<std::string> names, config.strings("architectures"));
  for (const Family& family : kFamilies) {
    if (names.empty() || names[0] != family.architecture) continue;
    ESP_ASSIGN_OR_RETURN(DecoderSpec spec, family.make_spec(config));
    spec.architecture = family.architecture;
    if (Status status = validate(spec); !status.ok()) {
      return fail(status.with_context(config.name()));
    }
    return spec;
  }
  std::vector<std::string_view> known;
  for (const Family& family : kFamilies) known.push_back(family.architecture);
  return fail(error(StatusCode::kUnimplemented,
                    "{}: the architecture '{}' is not known; those that are: {}", config.name(),
                    names.empty() ? "" : names[0], fmt::join(known, ", ")));
}

}  // namespace espalier
