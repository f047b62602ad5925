#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/families/family.h"
#include "models/pooling_config.h"

namespace espalier {
namespace {

constexpr Family kEncoders[] = {
#define ESPALIER_ROW(architecture, make) {#architecture, make},
    ESPALIER_ENCODERS(ESPALIER_ROW)
#undef ESPALIER_ROW
};

constexpr Family kVideoEncoders[] = {
#define ESPALIER_ROW(architecture, make) {#architecture, make},
    ESPALIER_VIDEO_ENCODERS(ESPALIER_ROW)
#undef ESPALIER_ROW
};

constexpr Family kTextEncoders[] = {
#define ESPALIER_ROW(architecture, make) {#architecture, make},
    ESPALIER_TEXT_ENCODERS(ESPALIER_ROW)
#undef ESPALIER_ROW
};

constexpr Family kFamilies[] = {
#define ESPALIER_ROW(architecture, make) {#architecture, make},
    ESPALIER_FAMILIES(ESPALIER_ROW)
#undef ESPALIER_ROW
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

Result<std::optional<DecoderSpec>> make_one_of(std::span<const Family> encoders,
                                               const JsonObject& config) {
  ESP_ASSIGN_OR_RETURN(const std::vector<std::string> names, config.strings("architectures"));
  const auto found = std::ranges::find(encoders, names.empty() ? "" : std::string_view(names[0]),
                                       &Family::architecture);
  if (found == encoders.end()) return std::optional<DecoderSpec>();
  ESP_ASSIGN_OR_RETURN(DecoderSpec spec, found->make_spec(config));
  spec.architecture = names[0] + " (encoder)";
  if (Status status = validate(spec); !status.ok()) {
    return fail(status.with_context(config.name()));
  }
  return std::optional<DecoderSpec>(std::move(spec));
}

}  // namespace

Result<std::optional<DecoderSpec>> make_encoder_spec(const JsonObject& config) {
  return make_one_of(kEncoders, config);
}

Result<std::optional<DecoderSpec>> make_video_encoder_spec(const JsonObject& config) {
  return make_one_of(kVideoEncoders, config);
}

bool names_text_encoder(std::string_view architecture) {
  return std::ranges::find(kTextEncoders, architecture, &Family::architecture) !=
         std::end(kTextEncoders);
}

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
  for (const Family& family : kTextEncoders)
    if (name == family.architecture) return make_spec(family, config, name, PooledUse::kNone);
  std::vector<std::string_view> known;
  for (const Family& family : kTextEncoders) known.push_back(family.architecture);
  for (const Family& family : kFamilies) known.push_back(family.architecture);
  return fail(error(StatusCode::kUnimplemented,
                    "{}: the architecture '{}' is not known; those that are: {}; and each of these "
                    "families as XModel, XForSequenceClassification and XForRewardModel",
                    config.name(), name, fmt::join(known, ", ")));
}

}  // namespace espalier
