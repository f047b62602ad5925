// The families of models that Espalier knows. Each is one small file that turns a config.json into
// a DecoderSpec, and one line in the table of registry.cc.
#pragma once

#include <span>
#include <string_view>

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "models/decoder_spec.h"

namespace espalier {

struct Family {
  std::string_view architecture;  // config.json's architectures[0]
  Result<DecoderSpec> (*make_spec)(const JsonObject& config);
};

// All of them, in the table's order.
std::span<const Family> families();

// The spec of the family that config.json's `architectures` names, validated. kUnimplemented, with
// the list of those known, for another; kInvalidArgument with the field's name for a bad value.
Result<DecoderSpec> make_decoder_spec(const JsonObject& config);

Result<DecoderSpec> make_deepseek_v2_spec(const JsonObject& config);
Result<DecoderSpec> make_deepseek_v3_spec(const JsonObject& config);
Result<DecoderSpec> make_gemma_spec(const JsonObject& config);
Result<DecoderSpec> make_gemma2_spec(const JsonObject& config);
Result<DecoderSpec> make_gemma3_spec(const JsonObject& config);
Result<DecoderSpec> make_glm4_moe_spec(const JsonObject& config);
Result<DecoderSpec> make_gpt2_spec(const JsonObject& config);
Result<DecoderSpec> make_gpt_oss_spec(const JsonObject& config);
Result<DecoderSpec> make_granite_spec(const JsonObject& config);
Result<DecoderSpec> make_llama_spec(const JsonObject& config);
Result<DecoderSpec> make_mistral_spec(const JsonObject& config);
Result<DecoderSpec> make_mixtral_spec(const JsonObject& config);
Result<DecoderSpec> make_olmo2_spec(const JsonObject& config);
Result<DecoderSpec> make_phi3_spec(const JsonObject& config);
Result<DecoderSpec> make_qwen2_spec(const JsonObject& config);
Result<DecoderSpec> make_qwen2_moe_spec(const JsonObject& config);
Result<DecoderSpec> make_qwen3_spec(const JsonObject& config);
Result<DecoderSpec> make_qwen3_moe_spec(const JsonObject& config);
Result<DecoderSpec> make_smollm3_spec(const JsonObject& config);

}  // namespace espalier
