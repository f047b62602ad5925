// What the families that descend from Llama share when they read a config.json.
#pragma once

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "models/decoder_spec.h"
#include "tensor/dtype.h"

namespace espalier {

// What config.json need not say, by family.
struct FamilyDefaults {
  int32_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  const char* activation_field = "hidden_act";
  const char* activation = "silu";
  bool tied_embeddings = false;
  bool may_be_mxfp4 = false;  // quantization_config of that method is read
  const char* intermediate_field = "intermediate_size";
};

// Sizes, norms, rope, MLP and head of a Llama-like model, every layer alike; no biases, no qk-norm,
// no windows: a family adds its own. Fields that change the mathematics and are not honoured
// (an unknown activation, a quantisation, an unknown rope type) are refused by name.
Result<DecoderSpec> read_llama_like(const JsonObject& config, const FamilyDefaults& defaults = {});

// rope_parameters (transformers 5), or rope_theta and rope_scaling (before).
Result<RopeSpec> read_rope(const JsonObject& config, int32_t head_dim, int32_t context_length);
// The same from the object itself, with what holds for fields that it lacks.
Result<RopeSpec> read_rope_parameters(const JsonObject& config, const JsonObject& rope,
                                      const RopeSpec& otherwise, int32_t head_dim,
                                      int32_t context_length);

// layer_types: for each layer whether it is "sliding_attention"; an empty list where there is no
// such field.
Result<std::vector<bool>> read_layer_types(const JsonObject& config, size_t num_layers);

// Sliding windows as Qwen configures them: use_sliding_window, and layer_types or
// max_window_layers.
Status read_qwen_windows(const JsonObject& config, DecoderSpec& spec);

// A size in [1, 2^26].
Result<int32_t> read_size(const JsonObject& config, std::string_view field);
Result<int32_t> read_size_or(const JsonObject& config, std::string_view field, int32_t otherwise);
// A float above 0.
Result<float> read_positive_or(const JsonObject& config, std::string_view field, double otherwise);

// num_experts, num_local_experts or n_routed_experts: releases of one family differ.
Result<int32_t> read_num_experts(const JsonObject& config);

// Which layers have experts according to mlp_only_layers and decoder_sparse_step (Qwen), and makes
// them: the others keep their dense MLP.
Status set_qwen_experts(const JsonObject& config, const ExpertsSpec& experts, DecoderSpec& spec);

Result<DType> read_dtype(const JsonObject& config);
Result<kernels::Activation> read_activation(const JsonObject& config,
                                            const FamilyDefaults& defaults);

// For all layers.
void set_biases(DecoderSpec& spec, bool qkv, bool output, bool mlp);

}  // namespace espalier
