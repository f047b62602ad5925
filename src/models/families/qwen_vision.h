// What Qwen's models that read pictures share (Qwen2-VL, 2.5-VL, 3-VL): pictures of any size, whose
// patches turn by their places and become a row for each square, in a prompt with positions of
// three components. Pure functions.
#pragma once

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "models/decoder_spec.h"

namespace espalier {

// text_config; old files have the text's fields beside the vision's.
Result<JsonObject> read_qwen_text(const JsonObject& config);

// The dtype that the whole file states, else the text's.
Result<DType> read_qwen_dtype(const JsonObject& config, const JsonObject& text);

// What config.json states beside text_config, of which `spec` has been made; the placeholder, the
// names of tensors. Fails where a rope has no sections.
Status finish_qwen_vl_decoder(const JsonObject& config, const JsonObject& text,
                              const char* model_type, DecoderSpec& spec);

// The videos' placeholder, where the vocabulary has it.
Status read_qwen_videos(const JsonObject& config, DecoderSpec& spec);

// Of the vision_config; without windows and biases.
Result<PatchesSpec> read_qwen_patches(const JsonObject& vision, int32_t patch_size);

// Norms, attention and its rope 0 of an encoder's layer; without an MLP.
Result<LayerSpec> read_qwen_vision_layer(const JsonObject& vision, int32_t hidden_size,
                                         const NormSpec& norm);
// Turns heads by row and column.
Result<RopeSpec> read_qwen_vision_rope(const JsonObject& vision, int32_t head_dim);

// Of an encoder's layers all but the MLP, and what a decoder's file has besides.
WeightNames qwen_vision_names();

// The projector, whose matrices are `names`: a square's patches side by side to the decoder's
// width, which the field `stated` of vision_config repeats.
Result<ProjectorSpec> read_qwen_projector(const JsonObject& vision, const JsonObject& text,
                                          const char* stated, const DecoderSpec& spec,
                                          const std::string (&names)[2]);

}  // namespace espalier
