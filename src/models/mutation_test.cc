// A golden that cannot fail is worse than none: each part of the forward pass broken on purpose
// must move the logits far beyond the tolerance.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "models/golden.h"
#include "models/program/cpu_model.h"
#include "models/program/fault_injection.h"

namespace espalier {
namespace {

// A checkpoint some of whose tensors come out changed, and which does not mind left-over tensors.
class ChangedSource final : public WeightSource {
 public:
  using Change = std::function<void(const std::string& name, std::span<float> values)>;
  using ByteChange = std::function<void(const std::string& name, std::span<std::byte> values)>;
  ChangedSource(const Checkpoint& checkpoint, Change change, ByteChange byte_change)
      : checkpoint_(checkpoint), change_(std::move(change)), byte_change_(std::move(byte_change)) {}

  Result<LentTensor> lend(const std::string& name, std::span<const int64_t> shape) override {
    std::vector<float>& values = made_[name];
    const CheckpointTensor* tensor = checkpoint_.find(name);
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    values.assign(static_cast<size_t>(count), 0.0f);
    if (tensor != nullptr) {
      copy_as_float(*tensor, 0, values);
    } else {  // an untied head for a tied model
      Rng rng(11);
      for (float& value : values) value = 0.3f * static_cast<float>(rng.normal());
    }
    if (change_) change_(name, values);
    return LentTensor{values.data(), DType::kFloat32};
  }
  Result<std::span<const std::byte>> lend_bytes(const std::string& name,
                                                std::span<const int64_t> shape) override {
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, checkpoint_.require(name, shape));
    std::vector<std::byte>& values = bytes_[name];
    values.assign(tensor->bytes.begin(), tensor->bytes.end());
    if (byte_change_) byte_change_(name, values);
    return values;
  }
  void give_back(const std::string& name) override {
    made_.erase(name);
    bytes_.erase(name);
  }
  Status finish() override { return Status(); }

 private:
  const Checkpoint& checkpoint_;
  const Change change_;
  const ByteChange byte_change_;
  std::map<std::string, std::vector<float>> made_;
  std::map<std::string, std::vector<std::byte>> bytes_;
};

struct Mutation {
  const char* name;
  const char* golden;
  std::function<void(DecoderSpec&)> spec;
  ChangedSource::Change weights;
  ChangedSource::ByteChange bytes = {};
  std::optional<program::Fault> fault = std::nullopt;
};

void each_layer(DecoderSpec& spec, const std::function<void(LayerSpec&)>& change) {
  for (LayerSpec& layer : spec.layers) change(layer);
}
void each_router(DecoderSpec& spec, const std::function<void(kernels::RouterSpec&)>& change) {
  for (LayerSpec& layer : spec.layers) {
    if (layer.experts) change(layer.experts->router);
  }
}
void each_norm(DecoderSpec& spec, NormSpec::Kind kind) {
  spec.final_norm->kind = kind;
  each_layer(spec, [&](LayerSpec& layer) {
    for (auto* norm : {&layer.input_norm, &layer.post_attention_norm, &layer.attention_output_norm,
                       &layer.mlp_output_norm}) {
      if (*norm) (*norm)->kind = kind;
    }
  });
}
ChangedSource::Change zero_tensors(const char* part) {
  return [part](const std::string& name, std::span<float> values) {
    if (name.find(part) != std::string::npos) std::ranges::fill(values, 0.0f);
  };
}
ChangedSource::Change swap_halves(const char* part) {
  return [part](const std::string& name, std::span<float> values) {
    if (name.find(part) == std::string::npos) return;
    const auto half = static_cast<std::ptrdiff_t>(values.size() / 2);
    std::rotate(values.begin(), values.begin() + half, values.end());
  };
}

const std::vector<Mutation>& mutations() {
  static const auto* const kAll = new std::vector<Mutation>{
      {"no_rope",
       "llama_tied_llama3",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.rope.reset(); }); },
       {}},
      {"no_rope_in_one_layer",
       "qwen3_head_dim",
       [](DecoderSpec& s) { s.layers[2].attention.rope.reset(); },
       {}},
      {"wrong_theta", "qwen2_sharded", [](DecoderSpec& s) { s.ropes[0].theta = 20000; }, {}},
      {"interleaved_pairs",
       "llama_tied_llama3",
       [](DecoderSpec& s) { s.ropes[0].pairing = RopeSpec::Pairing::kInterleaved; },
       {}},
      {"half_rotated", "qwen3_head_dim", [](DecoderSpec& s) { s.ropes[0].rotary_dim /= 2; }, {}},
      {"llama3_scaling_ignored",
       "llama_tied_llama3",
       [](DecoderSpec& s) { s.ropes[0].scaling = RopeSpec::Scaling::kNone; },
       {}},
      {"llama3_scaling_taken_for_linear",
       "llama_tied_llama3",
       [](DecoderSpec& s) { s.ropes[0].scaling = RopeSpec::Scaling::kLinear; },
       {}},
      {"linear_scaling_ignored",
       "llama_untied_bias",
       [](DecoderSpec& s) { s.ropes[0].scaling = RopeSpec::Scaling::kNone; },
       {}},
      {"yarn_scaling_ignored",
       "qwen2_f32",
       [](DecoderSpec& s) { s.ropes[0].scaling = RopeSpec::Scaling::kNone; },
       {}},
      {"yarn_attention_factor_ignored",
       "qwen2_f32",
       [](DecoderSpec& s) { s.ropes[0].attention_factor = 1; },
       {}},
      {"uniform_attention",
       "llama_tied_llama3",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.scale = 0; }); },
       {}},
      {"scores_not_scaled",
       "qwen2_sharded",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.scale = 1; }); },
       {}},
      {"window_ignored",
       "mistral_f16",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.sliding_window = 0; }); },
       {}},
      {"window_of_one_less",
       "mistral_f16",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { --l.attention.sliding_window; }); },
       {}},
      {"window_in_the_wrong_layers",
       "qwen2_f32",
       [](DecoderSpec& s) { std::swap(s.layers[0].attention, s.layers[2].attention); },
       {}},
      {"input_norm_left_out",
       "llama_tied_llama3",
       [](DecoderSpec& s) { s.layers[1].input_norm.reset(); },
       {}},
      {"post_attention_norm_left_out",
       "qwen3_head_dim",
       [](DecoderSpec& s) { s.layers[1].post_attention_norm.reset(); },
       {}},
      {"final_norm_left_out", "qwen2_sharded", [](DecoderSpec& s) { s.final_norm.reset(); }, {}},
      {"norm_weight_left_out",
       "mistral_f16",
       {},
       [](const std::string& name, std::span<float> values) {
         if (name == "model.layers.2.input_layernorm.weight") std::ranges::fill(values, 1.0f);
       }},
      {"norms_swapped",
       "llama_tied_llama3",
       [](DecoderSpec& s) { std::swap(s.names.input_norm, s.names.post_attention_norm); },
       {}},
      {"epsilon_far_too_large",
       "llama_tied_llama3",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.input_norm->epsilon = 0.1f; }); },
       {}},
      {"qk_norm_dropped",
       "qwen3_head_dim",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.qk_norm.reset(); }); },
       {}},
      {"q_norm_taken_for_k_norm",
       "qwen3_head_dim",
       [](DecoderSpec& s) { s.names.k_norm = s.names.q_norm; },
       {}},
      {"q_bias_dropped", "qwen2_sharded", {}, zero_tensors("q_proj.bias")},
      {"k_bias_dropped", "qwen2_sharded", {}, zero_tensors("k_proj.bias")},
      {"v_bias_dropped", "qwen2_sharded", {}, zero_tensors("v_proj.bias")},
      {"qkv_bias_not_read",
       "qwen2_f32",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.qkv_bias = false; }); },
       {}},
      {"output_bias_not_read",
       "llama_untied_bias",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.output_bias = false; }); },
       {}},
      {"mlp_bias_not_read",
       "llama_untied_bias",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.mlp.bias = false; }); },
       {}},
      {"gate_bias_dropped", "llama_untied_bias", {}, zero_tensors("gate_proj.bias")},
      {"down_bias_dropped", "llama_untied_bias", {}, zero_tensors("down_proj.bias")},
      {"key_heads_swapped", "llama_tied_llama3", {}, swap_halves("k_proj.weight")},
      {"value_heads_swapped", "llama_tied_llama3", {}, swap_halves("v_proj.weight")},
      {"query_groups_swapped", "qwen3_head_dim", {}, swap_halves("q_proj.weight")},
      {"gate_and_up_swapped",
       "llama_tied_llama3",
       [](DecoderSpec& s) { std::swap(s.names.gate, s.names.up); },
       {}},
      {"silu_replaced", "llama_tied_llama3", {}, {}, {}, program::Fault::kReplaceActivation},
      {"silu_replaced_beside_biases",
       "llama_untied_bias",
       {},
       {},
       {},
       program::Fault::kReplaceActivation},
      {"attention_residual_dropped",
       "llama_tied_llama3",
       {},
       {},
       {},
       program::Fault::kDropAttentionResidual},
      {"mlp_residual_dropped", "qwen3_head_dim", {}, {}, {}, program::Fault::kDropMlpResidual},
      {"tied_taken_for_untied",
       "llama_tied_llama3",
       [](DecoderSpec& s) { s.tied_embeddings = false; },
       {}},
      {"untied_taken_for_tied",
       "qwen2_sharded",
       [](DecoderSpec& s) { s.tied_embeddings = true; },
       {}},
      {"a_layer_left_out", "qwen3_head_dim", [](DecoderSpec& s) { s.layers.pop_back(); }, {}},
      // What other families add.
      {"experts_dropped", "mixtral", {}, {}, {}, program::Fault::kDropExperts},
      {"experts_swapped",
       "mixtral",
       {},
       [](const std::string& name, std::span<float> values) {  // seen from the router
         if (name.find("block_sparse_moe.gate.weight") == std::string::npos) return;
         std::rotate(values.begin(), values.begin() + 32, values.end());
       }},
      {"expert_weights_not_normalised",
       "mixtral",
       [](DecoderSpec& s) { each_router(s, [](auto& r) { r.normalise = false; }); },
       {}},
      {"an_expert_too_few",
       "qwen3_moe",
       [](DecoderSpec& s) { each_router(s, [](auto& r) { --r.top_k; }); },
       {}},
      {"expert_weights_normalised",
       "qwen2_moe",
       [](DecoderSpec& s) { each_router(s, [](auto& r) { r.normalise = true; }); },
       {}},
      {"shared_expert_dropped", "qwen2_moe", {}, {}, {}, program::Fault::kDropSharedExpert},
      {"shared_expert_not_gated", "qwen2_moe", {}, zero_tensors("shared_expert_gate")},
      {"experts_in_a_dense_layer",
       "qwen2_moe",
       [](DecoderSpec& s) { std::swap(s.layers[1], s.layers[2]); },
       {}},
      {"norm_around_one", "gemma", [](DecoderSpec& s) { each_norm(s, NormSpec::Kind::kRms); }, {}},
      {"embedding_not_scaled", "gemma", [](DecoderSpec& s) { s.embedding_scale = 1; }, {}},
      {"gelu_taken_for_silu",
       "gemma",
       [](DecoderSpec& s) {
         each_layer(s, [](LayerSpec& l) { l.mlp.activation = kernels::Activation::kSilu; });
       },
       {}},
      {"score_cap_ignored",
       "gemma2",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.softcap = 0; }); },
       {}},
      {"logit_cap_ignored", "gemma2", [](DecoderSpec& s) { s.logits_softcap = 0; }, {}},
      {"norm_behind_attention_left_out",
       "gemma2",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention_output_norm.reset(); }); },
       {}},
      {"norm_behind_the_mlp_left_out",
       "gemma2",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.mlp_output_norm.reset(); }); },
       {}},
      {"window_in_the_other_layers",
       "gemma2",
       [](DecoderSpec& s) { std::swap(s.layers[0].attention, s.layers[1].attention); },
       {}},
      {"ropes_swapped", "gemma3", [](DecoderSpec& s) { std::swap(s.ropes[0], s.ropes[1]); }, {}},
      {"gemma_qk_norm_dropped",
       "gemma3",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.qk_norm.reset(); }); },
       {}},
      {"short_factors_taken",
       "phi3_longrope",
       [](DecoderSpec& s) { s.ropes[0].long_factors = s.ropes[0].short_factors; },
       {}},
      {"longrope_attention_factor_ignored",
       "phi3_longrope",
       [](DecoderSpec& s) { s.ropes[0].attention_factor = 1; },
       {}},
      {"qk_norm_by_head",
       "olmo2",
       [](DecoderSpec& s) {
         each_layer(
             s, [](LayerSpec& l) { l.attention.qk_norm_scope = AttentionSpec::NormScope::kHead; });
       },
       {}},
      {"norms_before_the_blocks",
       "olmo2",
       [](DecoderSpec& s) {
         each_layer(s, [](LayerSpec& l) {
           std::swap(l.input_norm, l.attention_output_norm);
           std::swap(l.post_attention_norm, l.mlp_output_norm);
         });
         s.names.input_norm = s.names.attention_output_norm;
         s.names.post_attention_norm = s.names.mlp_output_norm;
       },
       {}},
      {"residual_not_scaled", "granite", [](DecoderSpec& s) { s.residual_scale = 1; }, {}},
      {"logits_not_scaled", "granite", [](DecoderSpec& s) { s.logits_scale = 1; }, {}},
      {"multiplier_on_the_embedding_ignored",
       "granite",
       [](DecoderSpec& s) { s.embedding_scale = 1; },
       {}},
      {"rope_in_every_layer",
       "smollm3",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.rope = 0; }); },
       {}},
      {"no_learned_positions", "gpt2", {}, zero_tensors("wpe.weight")},
      {"layer_norm_bias_dropped", "gpt2", {}, zero_tensors("ln_1.bias")},
      {"layer_norm_taken_for_rms",
       "gpt2",
       [](DecoderSpec& s) { each_norm(s, NormSpec::Kind::kRms); },
       {}},
      {"fused_bias_dropped", "gpt2", {}, zero_tensors("c_attn.bias")},
      {"matrices_not_transposed",
       "gpt2",
       {},
       [](const std::string& name, std::span<float> values) {
         if (name.find("attn.c_proj.weight") == std::string::npos) return;
         for (size_t i = 0; i < 32; ++i) {  // square: a wrong order has the same shape
           for (size_t j = 0; j < i; ++j) std::swap(values[i * 32 + j], values[j * 32 + i]);
         }
       }},
      {"sinks_left_out",
       "gpt_oss",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.sinks = false; }); },
       {}},
      {"router_bias_dropped", "gpt_oss", {}, zero_tensors("router.bias")},
      {"expert_biases_dropped", "gpt_oss", {}, zero_tensors("proj_bias")},
      {"clamped_swiglu_taken_for_silu",
       "gpt_oss",
       [](DecoderSpec& s) {
         each_layer(
             s, [](LayerSpec& l) { l.experts->expert.activation = kernels::Activation::kSilu; });
       },
       {}},
      {"yarn_bounds_truncated", "gpt_oss", [](DecoderSpec& s) { s.ropes[0].truncate = true; }, {}},
      {"pairs_of_fp4_swapped",
       "gpt_oss_mxfp4",
       {},
       {},
       [](const std::string& name, std::span<std::byte> values) {
         if (!name.ends_with("_blocks")) return;
         for (std::byte& pair : values) pair = pair << 4 | pair >> 4;
       }},
      {"block_scales_shifted",
       "gpt_oss_mxfp4",
       {},
       {},
       [](const std::string& name, std::span<std::byte> values) {
         if (name.ends_with("_scales"))
           std::rotate(values.begin(), values.begin() + 1, values.end());
       }},
      {"latent_norm_left_out",
       "deepseek_v2",
       {},
       [](const std::string& name, std::span<float> values) {
         if (name.find("kv_a_layernorm") != std::string::npos) std::ranges::fill(values, 1.0f);
       }},
      {"keys_and_values_of_a_head_swapped", "deepseek_v2", {}, swap_halves("kv_b_proj.weight")},
      {"latent_rope_in_halves",
       "deepseek_v2",
       [](DecoderSpec& s) { s.ropes[0].pairing = RopeSpec::Pairing::kHalves; },
       {}},
      {"groups_ignored",
       "deepseek_v2",
       [](DecoderSpec& s) { each_router(s, [](auto& r) { r.num_groups = r.top_groups = 1; }); },
       {}},
      {"routed_scaling_ignored",
       "deepseek_v2",
       [](DecoderSpec& s) { each_router(s, [](auto& r) { r.scale = 1; }); },
       {}},
      {"correction_ignored", "deepseek_v3", {}, zero_tensors("e_score_correction_bias")},
      {"correction_in_the_weights",
       "deepseek_v3",
       [](DecoderSpec& s) {
         each_router(s, [](auto& r) { r.scoring = kernels::RouterSpec::Scoring::kSoftmax; });
       },
       {}},
      {"groups_by_their_best_alone",
       "deepseek_v3",
       [](DecoderSpec& s) { each_router(s, [](auto& r) { r.group_by_two = false; }); },
       {}},
      {"query_latent_norm_left_out",
       "deepseek_v3",
       {},
       [](const std::string& name, std::span<float> values) {
         if (name.find("q_a_layernorm") != std::string::npos) std::ranges::fill(values, 1.0f);
       }},
      {"score_mscale_ignored",
       "deepseek_v3",
       [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.scale *= 0.8f; }); },
       {}},
      {"whole_heads_rotated", "glm4_moe", [](DecoderSpec& s) { s.ropes[0].rotary_dim *= 2; }, {}},
      {"glm_correction_ignored", "glm4_moe", {}, zero_tensors("e_score_correction_bias")},
  };
  return *kAll;
}

float error_of(const Mutation& mutation, DType type) {
  golden::Golden golden = golden::read(mutation.golden);
  const auto checkpoint = Checkpoint::open(golden.folder);
  EXPECT_TRUE(checkpoint);
  if (mutation.spec) mutation.spec(golden.spec);
  ChangedSource source(*checkpoint, mutation.weights, mutation.bytes);
  WorkPool pool(1);
  program::Rewrite rewrite;
  if (mutation.fault) {
    rewrite = [&](program::Program p) { return program::inject(std::move(p), *mutation.fault); };
  }
  auto model = program::CpuModel::create(golden.spec, type, source, pool, {.rewrite = rewrite});
  EXPECT_TRUE(model) << model.error().to_string();
  return golden::max_error(**model, golden,
                           type == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16);
}

class MutatedModel : public testing::TestWithParam<Mutation> {};

// Twice the most that golden_test grants, so that each mutation fails all of its tolerances.
TEST_P(MutatedModel, FailsItsGolden) {
  const float error = error_of(GetParam(), DType::kFloat32);
  RecordProperty("error", std::to_string(error));
  EXPECT_GT(error, 0.04f);
}

INSTANTIATE_TEST_SUITE_P(All, MutatedModel, testing::ValuesIn(mutations()),
                         [](const auto& tested) { return std::string(tested.param.name); });

// And without a mutation this road leads to the right logits.
TEST(MutatedModel, PassesUnchanged) {
  for (const std::string& name : golden::names()) {
    EXPECT_LT(error_of({"none", name.c_str(), {}, {}}, DType::kFloat32), 1e-4f) << name;
  }
}

}  // namespace
}  // namespace espalier
