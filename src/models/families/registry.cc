#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "models/families/family.h"

namespace espalier {
namespace {

constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", make_llama_spec},
    {"MistralForCausalLM", make_mistral_spec},
    {"Qwen2ForCausalLM", make_qwen2_spec},
    {"Qwen3ForCausalLM", make_qwen3_spec},
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
