// The families of models that Espalier knows. Each is one small file that turns a config.json into
// a DecoderSpec, and one line in the table below, from which the declarations and the registry are
// made. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "models/decoder_spec.h"

// config.json's architectures[0], and the function of the family's file.
#define ESPALIER_FAMILIES(ROW)                                            \
  ROW(DeepseekV2ForCausalLM, make_deepseek_v2_spec)                       \
  ROW(DeepseekV3ForCausalLM, make_deepseek_v3_spec)                       \
  ROW(GPT2LMHeadModel, make_gpt2_spec)                                    \
  ROW(Gemma2ForCausalLM, make_gemma2_spec)                                \
  ROW(Gemma3ForCausalLM, make_gemma3_spec)                                \
  ROW(Gemma3ForConditionalGeneration, make_gemma3_seeing_spec)            \
  ROW(GemmaForCausalLM, make_gemma_spec)                                  \
  ROW(Glm4MoeForCausalLM, make_glm4_moe_spec)                             \
  ROW(GptOssForCausalLM, make_gpt_oss_spec)                               \
  ROW(GraniteForCausalLM, make_granite_spec)                              \
  ROW(InternVLChatModel, make_internvl_chat_spec)                         \
  ROW(InternVLForConditionalGeneration, make_internvl_spec)               \
  ROW(LlamaForCausalLM, make_llama_spec)                                  \
  ROW(LlavaForConditionalGeneration, make_llava_spec)                     \
  ROW(LlavaNextForConditionalGeneration, make_llava_next_spec)            \
  ROW(LlavaNextVideoForConditionalGeneration, make_llava_next_video_spec) \
  ROW(LlavaOnevisionForConditionalGeneration, make_llava_onevision_spec)  \
  ROW(MiMoForCausalLM, make_mimo_spec)                                    \
  ROW(Mistral3ForConditionalGeneration, make_mistral3_spec)               \
  ROW(MistralForCausalLM, make_mistral_spec)                              \
  ROW(MixtralForCausalLM, make_mixtral_spec)                              \
  ROW(MllamaForConditionalGeneration, make_mllama_spec)                   \
  ROW(Olmo2ForCausalLM, make_olmo2_spec)                                  \
  ROW(Phi3ForCausalLM, make_phi3_spec)                                    \
  ROW(Qwen2AudioForConditionalGeneration, make_qwen2_audio_spec)          \
  ROW(Qwen2ForCausalLM, make_qwen2_spec)                                  \
  ROW(Qwen2VLForConditionalGeneration, make_qwen2_vl_spec)                \
  ROW(Qwen2_5_VLForConditionalGeneration, make_qwen2_5_vl_spec)           \
  ROW(Qwen2MoeForCausalLM, make_qwen2_moe_spec)                           \
  ROW(Qwen3ForCausalLM, make_qwen3_spec)                                  \
  ROW(Qwen3MoeForCausalLM, make_qwen3_moe_spec)                           \
  ROW(Qwen3VLForConditionalGeneration, make_qwen3_vl_spec)                \
  ROW(SmolLM3ForCausalLM, make_smollm3_spec)

// Those of them that read pictures, and the functions of their encoders.
#define ESPALIER_ENCODERS(ROW)                                               \
  ROW(Gemma3ForConditionalGeneration, make_gemma3_encoder)                   \
  ROW(InternVLChatModel, make_internvl_chat_encoder)                         \
  ROW(InternVLForConditionalGeneration, make_internvl_encoder)               \
  ROW(LlavaForConditionalGeneration, make_llava_encoder)                     \
  ROW(LlavaNextForConditionalGeneration, make_llava_next_encoder)            \
  ROW(LlavaNextVideoForConditionalGeneration, make_llava_next_video_encoder) \
  ROW(LlavaOnevisionForConditionalGeneration, make_llava_onevision_encoder)  \
  ROW(Mistral3ForConditionalGeneration, make_mistral3_encoder)               \
  ROW(MllamaForConditionalGeneration, make_mllama_encoder)                   \
  ROW(Qwen2AudioForConditionalGeneration, make_qwen2_audio_encoder)          \
  ROW(Qwen2VLForConditionalGeneration, make_qwen2_vl_encoder)                \
  ROW(Qwen2_5_VLForConditionalGeneration, make_qwen2_5_vl_encoder)           \
  ROW(Qwen3VLForConditionalGeneration, make_qwen3_vl_encoder)

// Those whose videos have an encoder of their own.
#define ESPALIER_VIDEO_ENCODERS(ROW) \
  ROW(LlavaNextVideoForConditionalGeneration, make_llava_next_video_frames)

// Encoders of texts, each with the function that reads its config.json.
#define ESPALIER_TEXT_ENCODERS(ROW)                           \
  ROW(BertModel, make_bert_spec)                              \
  ROW(BertForSequenceClassification, make_bert_spec)          \
  ROW(HF_ColBERT, make_bert_spec)                             \
  ROW(RobertaModel, make_roberta_spec)                        \
  ROW(RobertaForSequenceClassification, make_roberta_spec)    \
  ROW(XLMRobertaModel, make_roberta_spec)                     \
  ROW(XLMRobertaForSequenceClassification, make_roberta_spec) \
  ROW(ModernBertModel, make_modernbert_spec)                  \
  ROW(ModernBertForSequenceClassification, make_modernbert_spec)

namespace espalier {

struct Family {
  std::string_view architecture;  // config.json's architectures[0]
  Result<DecoderSpec> (*make_spec)(const JsonObject& config);
};

// All of them, in the table's order.
std::span<const Family> families();

// Whether that is an encoder of texts (models/text_encoder.h).
bool names_text_encoder(std::string_view architecture);

// The spec of the family that config.json's `architectures` names, validated. kUnimplemented, with
// the list of those known, for another; kInvalidArgument with the field's name for a bad value.
Result<DecoderSpec> make_decoder_spec(const JsonObject& config);

// The encoder of the pictures that such a model reads, validated; nothing where it reads text
// alone.
Result<std::optional<DecoderSpec>> make_encoder_spec(const JsonObject& config);

// That of its videos, where another program makes their rows; nothing where there is none.
Result<std::optional<DecoderSpec>> make_video_encoder_spec(const JsonObject& config);

#define ESPALIER_DECLARE(architecture, make) Result<DecoderSpec> make(const JsonObject& config);
ESPALIER_FAMILIES(ESPALIER_DECLARE)
ESPALIER_ENCODERS(ESPALIER_DECLARE)
ESPALIER_VIDEO_ENCODERS(ESPALIER_DECLARE)
ESPALIER_TEXT_ENCODERS(ESPALIER_DECLARE)
#undef ESPALIER_DECLARE

}  // namespace espalier
