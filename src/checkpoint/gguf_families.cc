#include "checkpoint/gguf_families.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

namespace espalier {
namespace {

namespace json = boost::json;

// ---- names ----

constexpr GgufName kOuterNames[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr GgufName kLayerNames[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};
constexpr GgufName kMixtralNames[] = {
    {"ffn_gate_inp", "block_sparse_moe.gate"},
    {"ffn_gate_exps", "block_sparse_moe.experts.{}.w1"},
    {"ffn_up_exps", "block_sparse_moe.experts.{}.w3"},
    {"ffn_down_exps", "block_sparse_moe.experts.{}.w2"},
};
constexpr GgufName kQwenMoeNames[] = {
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.{}.gate_proj"},
    {"ffn_up_exps", "mlp.experts.{}.up_proj"},
    {"ffn_down_exps", "mlp.experts.{}.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
};
constexpr GgufName kDeepseekNames[] = {
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"exp_probs_b", "mlp.gate.e_score_correction_bias!"},
    {"ffn_gate_exps", "mlp.experts.{}.gate_proj"},
    {"ffn_up_exps", "mlp.experts.{}.up_proj"},
    {"ffn_down_exps", "mlp.experts.{}.down_proj"},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
};
constexpr GgufName kGemma2Names[] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
};
constexpr GgufName kOlmo2Names[] = {
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
};
constexpr GgufName kPhi3Names[] = {
    {"attn_qkv", "self_attn.qkv_proj"},
    {"ffn_up", "mlp.gate_up_proj"},
};
constexpr GgufName kGptOssNames[] = {
    {"attn_sinks", "self_attn.sinks!"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_gate_inp", "mlp.router"},
    {"ffn_gate_exps", "mlp.experts.{}.gate_proj"},
    {"ffn_up_exps", "mlp.experts.{}.up_proj"},
    {"ffn_down_exps", "mlp.experts.{}.down_proj"},
};
constexpr GgufName kGpt2Outer[] = {
    {"token_embd", "transformer.wte"},
    {"position_embd", "transformer.wpe"},
    {"output_norm", "transformer.ln_f"},
};
constexpr GgufName kGpt2Names[] = {
    {"attn_norm", "ln_1"},          {"ffn_norm", "ln_2"},   {"attn_qkv", "attn.c_attn"},
    {"attn_output", "attn.c_proj"}, {"ffn_up", "mlp.c_fc"}, {"ffn_down", "mlp.c_proj"},
};

// ---- fields ----

struct Field {
  std::string_view gguf, hugging_face;
};

void add_integers(const GgufFields& fields, std::span<const Field> wanted, json::object& config) {
  for (const Field& field : wanted) {
    if (const auto value = fields.integer(field.gguf)) config[field.hugging_face] = *value;
  }
}
void add_numbers(const GgufFields& fields, std::span<const Field> wanted, json::object& config) {
  for (const Field& field : wanted) {
    if (const auto value = fields.number(field.gguf)) config[field.hugging_face] = *value;
  }
}

constexpr Field kExpertFields[] = {
    {"expert_count", "num_experts"},
    {"expert_used_count", "num_experts_per_tok"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
};

Status add_mixtral(const GgufFields& fields, json::object& config) {
  add_integers(fields, kExpertFields, config);
  return {};
}

// The file does not state whether the top-k experts' weights are normalised to sum to 1; these
// values are llama.cpp's.
Status add_qwen2_moe(const GgufFields& fields, json::object& config) {
  add_integers(fields, kExpertFields, config);
  config["norm_topk_prob"] = false;
  return {};
}
Status add_qwen3_moe(const GgufFields& fields, json::object& config) {
  add_integers(fields, kExpertFields, config);
  config["norm_topk_prob"] = true;
  return {};
}

constexpr int64_t kGemma2Layers27B = 46, kGemma3Layers27B = 62;

// The file does not state the scores' divisor: it is the head's width, except in the 27 B sizes.
void add_query_scalar(const GgufFields& fields, int64_t layers_27b, json::object& config) {
  const int64_t heads = fields.integer("attention.head_count").value_or(1);
  const int64_t width = fields.integer("embedding_length").value_or(0);
  const int64_t head_dim = fields.integer("attention.key_length").value_or(256);
  const bool is_27b = fields.integer("block_count") == layers_27b;
  config["query_pre_attn_scalar"] = is_27b && heads > 0 ? width / heads : head_dim;
}

constexpr Field kWindow[] = {{"attention.sliding_window", "sliding_window"}};

Status add_gemma2(const GgufFields& fields, json::object& config) {
  add_integers(fields, kWindow, config);
  static constexpr Field kCaps[] = {{"attn_logit_softcapping", "attn_logit_softcapping"},
                                    {"final_logit_softcapping", "final_logit_softcapping"}};
  add_numbers(fields, kCaps, config);
  add_query_scalar(fields, kGemma2Layers27B, config);
  return {};
}
Status add_gemma3(const GgufFields& fields, json::object& config) {
  ESP_RETURN_IF_ERROR(add_gemma2(fields, config));
  add_query_scalar(fields, kGemma3Layers27B, config);
  static constexpr Field kPattern[] = {
      {"attention.sliding_window_pattern", "sliding_window_pattern"}};
  add_integers(fields, kPattern, config);
  config["rope_theta"] = fields.number("rope.freq_base").value_or(1e6);
  config["rope_local_base_freq"] = fields.number("rope.freq_base_swa").value_or(1e4);
  return {};
}

// Longrope's factors are two tensors; what they stretch from, and the attention's, are metadata.
Status add_phi3(const GgufFields& fields, json::object& config) {
  add_integers(fields, kWindow, config);
  const int64_t heads = fields.integer("attention.head_count").value_or(1);
  const int64_t width = fields.integer("embedding_length").value_or(0);
  const int64_t head_dim = heads > 0 ? width / heads : 0;
  const int64_t rotated = fields.integer("rope.dimension_count").value_or(head_dim);
  if (rotated < head_dim) {
    config["partial_rotary_factor"] = static_cast<double>(rotated) / static_cast<double>(head_dim);
  }
  const GgufTensor* longs = find_gguf_tensor(fields.file(), "rope_factors_long.weight");
  const GgufTensor* shorts = find_gguf_tensor(fields.file(), "rope_factors_short.weight");
  if (longs == nullptr || shorts == nullptr) return {};
  json::object scaling{{"rope_type", "longrope"}};
  for (const auto& [name, tensor] : {std::pair{"long_factor", longs}, {"short_factor", shorts}}) {
    ESP_ASSIGN_OR_RETURN(const std::vector<float> values, gguf_floats(fields.file(), *tensor));
    json::array& list = scaling[name].emplace_array();
    for (const float value : values) list.push_back(static_cast<double>(value));
  }
  if (const auto original = fields.integer("rope.scaling.original_context_length")) {
    config["original_max_position_embeddings"] = *original;
  }
  if (const auto factor = fields.number("rope.scaling.attn_factor")) {
    scaling["attention_factor"] = *factor;
  }
  config["rope_scaling"] = std::move(scaling);
  return {};
}

Status add_granite(const GgufFields& fields, json::object& config) {
  static constexpr Field kScales[] = {{"embedding_scale", "embedding_multiplier"},
                                      {"residual_scale", "residual_multiplier"},
                                      {"attention.scale", "attention_multiplier"},
                                      {"logit_scale", "logits_scaling"}};
  add_numbers(fields, kScales, config);
  return {};
}

Status add_gpt2(const GgufFields& fields, json::object& config) {
  static constexpr Field kSizes[] = {{"embedding_length", "n_embd"},
                                     {"block_count", "n_layer"},
                                     {"attention.head_count", "n_head"},
                                     {"context_length", "n_positions"},
                                     {"feed_forward_length", "n_inner"}};
  add_integers(fields, kSizes, config);
  static constexpr Field kEpsilon[] = {{"attention.layer_norm_epsilon", "layer_norm_epsilon"}};
  add_numbers(fields, kEpsilon, config);
  config["transposed_weights"] = false;  // conversion turned them to [out, in]
  return {};
}

Status add_gpt_oss(const GgufFields& fields, json::object& config) {
  add_integers(fields, kExpertFields, config);
  add_integers(fields, kWindow, config);
  if (const auto size = fields.integer("expert_feed_forward_length")) {
    config["intermediate_size"] = *size;
  }
  config["attention_bias"] = true;
  config["separate_experts"] = true;
  if (json::value* scaling = config.if_contains("rope_scaling")) {
    scaling->get_object()["truncate"] = false;
  }
  return {};
}

constexpr int64_t kSigmoid = 2;  // expert_gating_func
// rope.scaling.yarn_log_multiplier is so much of mscale_all_dim.
constexpr double kLogMultiplier = 0.1;

Status add_deepseek(const GgufFields& fields, json::object& config) {
  static constexpr Field kSizes[] = {
      {"attention.q_lora_rank", "q_lora_rank"},
      {"attention.kv_lora_rank", "kv_lora_rank"},
      {"rope.dimension_count", "qk_rope_head_dim"},
      {"leading_dense_block_count", "first_k_dense_replace"},
      {"expert_shared_count", "n_shared_experts"},
      {"expert_group_count", "n_group"},
      {"expert_group_used_count", "topk_group"},
  };
  add_integers(fields, kExpertFields, config);
  add_integers(fields, kSizes, config);
  static constexpr Field kScales[] = {{"expert_weights_scale", "routed_scaling_factor"}};
  add_numbers(fields, kScales, config);
  ESP_ASSIGN_OR_RETURN(const int64_t rope_dim, fields.required("rope.dimension_count"));
  auto key = fields.integer("attention.key_length_mla");
  auto value = fields.integer("attention.value_length_mla");
  if (!key) key = fields.integer("attention.key_length");
  if (!value) value = fields.integer("attention.value_length");
  if (!key || !value) return fields.required("attention.key_length").error();
  if (rope_dim < 0 || *key <= rope_dim) {
    return error(StatusCode::kDataLoss, "{}: keys of {} of which {} are rotated",
                 fields.file().path().string(), *key, rope_dim);
  }
  config["qk_nope_head_dim"] = *key - rope_dim;
  config["v_head_dim"] = *value;
  config.erase("head_dim");
  // In the absorbed form the file has one head of keys; the configuration counts the query's.
  ESP_ASSIGN_OR_RETURN(const int64_t heads, fields.required("attention.head_count"));
  config["num_key_value_heads"] = heads;
  config["norm_topk_prob"] = fields.boolean("expert_weights_norm").value_or(false);
  if (config.contains("n_group")) config["topk_method"] = "group_limited_greedy";
  const auto log = fields.number("rope.scaling.yarn_log_multiplier");
  if (json::value* scaling = config.if_contains("rope_scaling"); scaling != nullptr && log) {
    json::object& rope = scaling->get_object();
    rope["mscale"] = *log / kLogMultiplier;
    rope["mscale_all_dim"] = *log / kLogMultiplier;
  }
  return {};
}

constexpr GgufFamily kFamilies[] = {
    {"llama", "LlamaForCausalLM", "llama", true},
    {"llama",
     "MixtralForCausalLM",
     "mixtral",
     true,
     false,
     {},
     kMixtralNames,
     "model.layers.",
     add_mixtral},
    {"qwen2", "Qwen2ForCausalLM", "qwen2"},
    {"qwen2moe",
     "Qwen2MoeForCausalLM",
     "qwen2_moe",
     false,
     false,
     {},
     kQwenMoeNames,
     "model.layers.",
     add_qwen2_moe},
    {"qwen3", "Qwen3ForCausalLM", "qwen3"},
    {"qwen3moe",
     "Qwen3MoeForCausalLM",
     "qwen3_moe",
     false,
     false,
     {},
     kQwenMoeNames,
     "model.layers.",
     add_qwen3_moe},
    {"gemma", "GemmaForCausalLM", "gemma", false, true},
    {"gemma2",
     "Gemma2ForCausalLM",
     "gemma2",
     false,
     true,
     {},
     kGemma2Names,
     "model.layers.",
     add_gemma2},
    {"gemma3",
     "Gemma3ForCausalLM",
     "gemma3_text",
     false,
     true,
     {},
     kGemma2Names,
     "model.layers.",
     add_gemma3},
    {"phi3", "Phi3ForCausalLM", "phi3", false, false, {}, kPhi3Names, "model.layers.", add_phi3},
    {"olmo2", "Olmo2ForCausalLM", "olmo2", false, false, {}, kOlmo2Names},
    {"granite", "GraniteForCausalLM", "granite", true, false, {}, {}, "model.layers.", add_granite},
    {"smollm3", "SmolLM3ForCausalLM", "smollm3", true},
    {"gpt2", "GPT2LMHeadModel", "gpt2", false, false, kGpt2Outer, kGpt2Names, "transformer.h.",
     add_gpt2},
    {"gpt-oss",
     "GptOssForCausalLM",
     "gpt_oss",
     false,
     false,
     {},
     kGptOssNames,
     "model.layers.",
     add_gpt_oss},
    {"deepseek2",
     "DeepseekV2ForCausalLM",
     "deepseek_v2",
     false,
     false,
     {},
     kDeepseekNames,
     "model.layers.",
     add_deepseek},
    {"deepseek2",
     "DeepseekV3ForCausalLM",
     "deepseek_v3",
     false,
     false,
     {},
     kDeepseekNames,
     "model.layers.",
     add_deepseek},
};

// Which of two entries with one name a file is.
std::string_view variant_of(const GgufFile& file, std::string_view name) {
  const GgufFields fields(file, name);
  if (name == "llama" && fields.integer("expert_count").value_or(0) > 0) return "mixtral";
  if (name == "deepseek2") {
    return fields.integer("expert_gating_func") == kSigmoid ? "deepseek_v3" : "deepseek_v2";
  }
  return {};
}

std::string_view find_name(std::span<const GgufName> names, std::string_view wanted) {
  for (const GgufName& name : names) {
    if (name.gguf == wanted) return name.hugging_face;
  }
  return {};
}

}  // namespace

std::string GgufFields::key(std::string_view name) const {
  return fmt::format("{}.{}", prefix_, name);
}

Result<int64_t> GgufFields::required(std::string_view name) const {
  if (const std::optional<int64_t> value = integer(name)) return *value;
  return fail(error(StatusCode::kDataLoss, "{}: the metadata key '{}' is missing, or no integer",
                    file_.path().string(), key(name)));
}

std::string GgufFamily::name_of(std::string_view name) const {
  const size_t dot = name.rfind('.');
  std::string_view stem = name.substr(0, dot);
  const std::string_view kind = dot < name.size() ? name.substr(dot) : std::string_view();
  std::string prefix;
  std::string_view found;
  if (stem.starts_with("blk.")) {
    const size_t end = stem.find('.', 4);
    if (end == std::string_view::npos) return std::string(name);
    prefix = fmt::format("{}{}.", layer_prefix, stem.substr(4, end - 4));
    stem = stem.substr(end + 1);
    found = find_name(layer, stem);
    if (found.empty()) found = find_name(kLayerNames, stem);
  } else {
    found = find_name(outer, stem);
    if (found.empty()) found = find_name(kOuterNames, stem);
  }
  if (found.empty()) return std::string(name);
  if (found.ends_with('!')) return prefix + std::string(found.substr(0, found.size() - 1));
  return fmt::format("{}{}{}", prefix, found, kind);
}

std::optional<std::string> GgufFamily::gguf_name_of(std::string_view name) const {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  std::string_view stem = name.substr(0, dot);
  const std::string_view kind = name.substr(dot);
  std::string prefix;
  const bool is_layer = stem.starts_with(layer_prefix);
  if (is_layer) {
    stem.remove_prefix(layer_prefix.size());
    const size_t end = stem.find('.');
    if (end == std::string_view::npos) return std::nullopt;
    prefix = fmt::format("blk.{}.", stem.substr(0, end));
    stem.remove_prefix(end + 1);
  }
  for (const std::span<const GgufName> names :
       {is_layer ? layer : outer,
        is_layer ? std::span<const GgufName>(kLayerNames) : std::span<const GgufName>(kOuterNames)})
    for (const GgufName& each : names)
      if (each.hugging_face == stem) return fmt::format("{}{}{}", prefix, each.gguf, kind);
  return std::nullopt;
}

const GgufFamily* find_gguf_family(std::string_view architecture) {
  const auto found = std::ranges::find(kFamilies, architecture, &GgufFamily::hugging_face);
  return found == std::end(kFamilies) ? nullptr : &*found;
}

const GgufFamily* find_gguf_family(const GgufFile& file) {
  const std::string_view name = file.string("general.architecture").value_or("");
  const std::string_view variant = variant_of(file, name);
  for (const GgufFamily& family : kFamilies) {
    if (family.gguf == name && (variant.empty() || family.model_type == variant)) return &family;
  }
  return nullptr;
}

const GgufTensor* find_gguf_tensor(const GgufFile& file, std::string_view name) {
  const auto it = std::find_if(file.tensors().begin(), file.tensors().end(),
                               [&](const GgufTensor& tensor) { return tensor.name == name; });
  return it == file.tensors().end() ? nullptr : &*it;
}

Result<std::vector<float>> gguf_floats(const GgufFile& file, const GgufTensor& tensor) {
  if (tensor.type->name != "F32") {
    return fail(error(StatusCode::kUnimplemented, "{}: '{}' is of type {}, where F32 is known",
                      file.path().string(), tensor.name, tensor.type->name));
  }
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    tensor.type->dequantize(tensor.bytes.data() + i * sizeof(float), &values[i]);
  }
  return values;
}

}  // namespace espalier
