#include "models/families/common.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "checkpoint/generation_config.h"
#include "checkpoint/quantized_tensor.h"

namespace espalier {
namespace {

// Larger than any model's; keeps two sizes multiplied within 64 bits.
constexpr int64_t kMaxSize = 1 << 26;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxContext = 1 << 30;

Result<int32_t> read_bounded(const JsonObject& config, std::string_view field, int64_t max) {
  ESP_ASSIGN_OR_RETURN(const int64_t value, config.integer(field, 1, max));
  return static_cast<int32_t>(value);
}

Result<int32_t> read_bounded_or(const JsonObject& config, std::string_view field, int32_t otherwise,
                                int64_t max) {
  if (!config.has(field)) return otherwise;
  return read_bounded(config, field, max);
}

Status refuse_quantised(const JsonObject& config, const FamilyDefaults& defaults) {
  if (!config.has("quantization_config")) return Status();
  ESP_ASSIGN_OR_RETURN(const JsonObject quantisation, config.object("quantization_config"));
  ESP_ASSIGN_OR_RETURN(const std::string method, quantisation.string_or("quant_method", "unknown"));
  if (defaults.may_be_mxfp4 && method == "mxfp4") return Status();
  const auto methods = quantization_methods();
  if (std::ranges::find(methods, method) != methods.end()) return Status();
  return error(StatusCode::kUnimplemented,
               "{}: 'quantization_config' is there (quant_method '{}'); such weights are not read; "
               "those of {} are",
               config.name(), method, fmt::join(methods, ", "));
}

// 0.1 m ln(s) + 1: Peng et al. 2023, equation 22.
double yarn_mscale(double factor, double m) {
  return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

Result<double> yarn_attention_factor(const JsonObject& rope, double factor) {
  ESP_ASSIGN_OR_RETURN(const double mscale, rope.number_or("mscale", 0));
  ESP_ASSIGN_OR_RETURN(const double mscale_all, rope.number_or("mscale_all_dim", 0));
  const double inferred = mscale != 0 && mscale_all != 0
                              ? yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all)
                              : yarn_mscale(factor, 1);
  return rope.number_or("attention_factor", inferred);
}

// The pretraining context stands in the object, or (read before) beside it.
Status read_longrope(const JsonObject& rope, int32_t context_length, RopeSpec& spec) {
  spec.scaling = RopeSpec::Scaling::kLongRope;
  ESP_ASSIGN_OR_RETURN(spec.short_factors, rope.numbers("short_factor"));
  ESP_ASSIGN_OR_RETURN(spec.long_factors, rope.numbers("long_factor"));
  if (spec.original_max_positions == 0) spec.original_max_positions = context_length;
  ESP_ASSIGN_OR_RETURN(spec.original_max_positions,
                       read_bounded_or(rope, "original_max_position_embeddings",
                                       spec.original_max_positions, kMaxContext));
  const double original = spec.original_max_positions;
  ESP_ASSIGN_OR_RETURN(const double factor, rope.number_or("factor", context_length / original));
  const double inferred = factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original));
  ESP_ASSIGN_OR_RETURN(spec.attention_factor, rope.number_or("attention_factor", inferred));
  return Status();
}

// The fields of a scaling; `rope` is rope_parameters or rope_scaling.
Status read_rope_scaling(const JsonObject& rope, const std::string& type, int32_t context_length,
                         RopeSpec& spec) {
  if (type == "default") return Status();
  if (type == "longrope" || type == "su") return read_longrope(rope, context_length, spec);
  if (type == "linear") {
    spec.scaling = RopeSpec::Scaling::kLinear;
  } else if (type == "dynamic") {
    // Changes nothing within max_position_embeddings; a longer context needs a request of the user.
    spec.scaling = RopeSpec::Scaling::kDynamic;
  } else if (type == "llama3") {
    spec.scaling = RopeSpec::Scaling::kLlama3;
  } else if (type == "yarn") {
    spec.scaling = RopeSpec::Scaling::kYarn;
  } else {
    return error(StatusCode::kUnimplemented,
                 "{}: the rope type '{}' is not supported; those that are: default, linear, "
                 "dynamic, llama3, yarn, longrope",
                 rope.name(), type);
  }
  ESP_ASSIGN_OR_RETURN(spec.factor, rope.number("factor"));
  spec.original_max_positions = context_length;
  if (spec.scaling == RopeSpec::Scaling::kDynamic) return Status();
  ESP_ASSIGN_OR_RETURN(
      spec.original_max_positions,
      read_bounded_or(rope, "original_max_position_embeddings", context_length, kMaxContext));
  if (spec.scaling == RopeSpec::Scaling::kLlama3) {
    ESP_ASSIGN_OR_RETURN(spec.low_freq_factor, rope.number("low_freq_factor"));
    ESP_ASSIGN_OR_RETURN(spec.high_freq_factor, rope.number("high_freq_factor"));
  }
  if (spec.scaling == RopeSpec::Scaling::kYarn) {
    ESP_ASSIGN_OR_RETURN(spec.beta_fast, rope.number_or("beta_fast", 32));
    ESP_ASSIGN_OR_RETURN(spec.beta_slow, rope.number_or("beta_slow", 1));
    ESP_ASSIGN_OR_RETURN(spec.truncate, rope.boolean_or("truncate", true));
    ESP_ASSIGN_OR_RETURN(spec.attention_factor, yarn_attention_factor(rope, spec.factor));
  }
  return Status();
}

Result<AttentionSpec> read_attention(const JsonObject& config, int32_t hidden_size,
                                     int32_t head_dim) {
  AttentionSpec attention;
  ESP_ASSIGN_OR_RETURN(attention.num_heads, read_size(config, "num_attention_heads"));
  ESP_ASSIGN_OR_RETURN(attention.num_kv_heads,
                       read_size_or(config, "num_key_value_heads", attention.num_heads));
  if (head_dim == 0) head_dim = hidden_size / attention.num_heads;
  ESP_ASSIGN_OR_RETURN(attention.head_dim, read_size_or(config, "head_dim", head_dim));
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(attention.head_dim)));
  attention.rope = 0;
  return attention;
}

// M-RoPE: pairs that turn by time, height and width.
Result<std::vector<int32_t>> read_sections(const JsonObject& rope) {
  ESP_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, rope.integers("mrope_section"));
  std::vector<int32_t> sections;
  for (const int64_t number : numbers) {
    if (number < 0 || number > kMaxSize) {
      return fail(rope.field_error("mrope_section", "must have numbers of pairs"));
    }
    sections.push_back(static_cast<int32_t>(number));
  }
  return sections;
}

Result<int32_t> rotated_elements(const JsonObject& config, double factor, int32_t head_dim) {
  if (factor > 0 && factor <= 1) return static_cast<int32_t>(head_dim * factor);
  return fail(config.field_error("partial_rotary_factor", "is not in (0, 1]"));
}

}  // namespace

Result<kernels::Activation> read_activation(const JsonObject& config,
                                            const FamilyDefaults& defaults) {
  ESP_ASSIGN_OR_RETURN(const std::string name,
                       config.string_or(defaults.activation_field, defaults.activation));
  if (name == "silu" || name == "swish") return kernels::Activation::kSilu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return kernels::Activation::kGeluTanh;
  return fail(error(StatusCode::kUnimplemented,
                    "{}: '{}' is '{}'; known are silu, gelu_pytorch_tanh and gelu_new",
                    config.name(), defaults.activation_field, name));
}

Result<DType> read_dtype(const JsonObject& config) {
  const char* field = config.has("dtype") ? "dtype" : "torch_dtype";
  ESP_ASSIGN_OR_RETURN(const std::string name, config.string_or(field, "bfloat16"));
  if (name == "float32") return DType::kFloat32;
  if (name == "float16") return DType::kFloat16;
  if (name == "bfloat16") return DType::kBFloat16;
  return fail(config.field_error(
      field, fmt::format("is '{}'; known are float32, float16 and bfloat16", name)));
}

Result<int32_t> read_size(const JsonObject& config, std::string_view field) {
  return read_bounded(config, field, kMaxSize);
}

Result<int32_t> read_size_or(const JsonObject& config, std::string_view field, int32_t otherwise) {
  return read_bounded_or(config, field, otherwise, kMaxSize);
}

Result<float> read_positive_or(const JsonObject& config, std::string_view field, double otherwise) {
  ESP_ASSIGN_OR_RETURN(const double value, config.number_or(field, otherwise));
  if (!(value > 0)) return fail(config.field_error(field, "must be above 0"));
  return static_cast<float>(value);
}

Result<RopeSpec> read_rope_parameters(const JsonObject& config, const JsonObject& rope,
                                      const RopeSpec& otherwise, int32_t head_dim,
                                      int32_t context_length) {
  RopeSpec spec = otherwise;
  ESP_ASSIGN_OR_RETURN(const std::string old_type, rope.string_or("type", "default"));
  ESP_ASSIGN_OR_RETURN(const std::string type, rope.string_or("rope_type", old_type));
  ESP_ASSIGN_OR_RETURN(spec.theta, rope.number_or("rope_theta", spec.theta));
  if (rope.has("partial_rotary_factor")) {
    ESP_ASSIGN_OR_RETURN(const double factor, rope.number("partial_rotary_factor"));
    ESP_ASSIGN_OR_RETURN(spec.rotary_dim, rotated_elements(config, factor, head_dim));
  }
  if (rope.has("mrope_section")) {
    ESP_ASSIGN_OR_RETURN(spec.sections, read_sections(rope));
    if (type == "mrope") return spec;
  }
  ESP_RETURN_IF_ERROR(read_rope_scaling(rope, type, context_length, spec));
  return spec;
}

Result<RopeSpec> read_rope(const JsonObject& config, int32_t head_dim, int32_t context_length) {
  RopeSpec spec;
  ESP_ASSIGN_OR_RETURN(spec.theta, config.number_or("rope_theta", 10000.0));
  ESP_ASSIGN_OR_RETURN(const double factor, config.number_or("partial_rotary_factor", 1.0));
  ESP_ASSIGN_OR_RETURN(spec.rotary_dim, rotated_elements(config, factor, head_dim));
  if (config.has("original_max_position_embeddings")) {
    ESP_ASSIGN_OR_RETURN(spec.original_max_positions,
                         read_bounded(config, "original_max_position_embeddings", kMaxContext));
  }
  const char* field = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!config.has(field)) return spec;
  ESP_ASSIGN_OR_RETURN(const JsonObject rope, config.object(field));
  return read_rope_parameters(config, rope, spec, head_dim, context_length);
}

Result<DecoderSpec> read_llama_like(const JsonObject& config, const FamilyDefaults& defaults) {
  ESP_RETURN_IF_ERROR(refuse_quantised(config, defaults));
  DecoderSpec spec;
  ESP_ASSIGN_OR_RETURN(spec.model_type, config.string_or("model_type", ""));
  ESP_ASSIGN_OR_RETURN(spec.vocab_size, read_size(config, "vocab_size"));
  ESP_ASSIGN_OR_RETURN(spec.hidden_size, read_size(config, "hidden_size"));
  ESP_ASSIGN_OR_RETURN(spec.context_length,
                       read_bounded_or(config, "max_position_embeddings", 2048, kMaxContext));
  ESP_ASSIGN_OR_RETURN(spec.tied_embeddings,
                       config.boolean_or("tie_word_embeddings", defaults.tied_embeddings));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  ESP_ASSIGN_OR_RETURN(spec.eos_ids, read_eos_token_ids(config));

  ESP_ASSIGN_OR_RETURN(const double epsilon, config.number_or("rms_norm_eps", 1e-6));
  if (!(epsilon > 0)) return fail(config.field_error("rms_norm_eps", "must be above 0"));
  const NormSpec norm{static_cast<float>(epsilon)};
  spec.final_norm = norm;

  LayerSpec layer{.input_norm = norm, .post_attention_norm = norm};
  ESP_ASSIGN_OR_RETURN(layer.attention,
                       read_attention(config, spec.hidden_size, defaults.head_dim));
  ESP_ASSIGN_OR_RETURN(layer.mlp.activation, read_activation(config, defaults));
  ESP_ASSIGN_OR_RETURN(layer.mlp.intermediate_size, read_size(config, defaults.intermediate_field));
  ESP_ASSIGN_OR_RETURN(const RopeSpec rope,
                       read_rope(config, layer.attention.head_dim, spec.context_length));
  spec.ropes.push_back(rope);
  ESP_ASSIGN_OR_RETURN(const int32_t num_layers,
                       read_bounded(config, "num_hidden_layers", kMaxLayers));
  spec.layers.assign(static_cast<size_t>(num_layers), layer);
  return spec;
}

Result<std::vector<bool>> read_layer_types(const JsonObject& config, size_t num_layers) {
  std::vector<bool> sliding;
  if (!config.has("layer_types")) return sliding;
  ESP_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.strings("layer_types"));
  if (types.size() != num_layers) {
    return fail(config.field_error("layer_types", "must have an entry for each layer"));
  }
  for (const std::string& type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return fail(config.field_error("layer_types", fmt::format("holds the unknown '{}'", type)));
    }
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

Result<int32_t> read_num_experts(const JsonObject& config) {
  for (const char* field : {"num_experts", "num_local_experts"}) {
    if (config.has(field)) return read_size(config, field);
  }
  return read_size(config, "n_routed_experts");
}

Status set_qwen_experts(const JsonObject& config, const ExpertsSpec& experts, DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const int64_t step, config.integer_or("decoder_sparse_step", 1, 1));
  std::vector<int64_t> dense;
  if (config.has("mlp_only_layers")) {
    ESP_ASSIGN_OR_RETURN(dense, config.integers("mlp_only_layers"));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    if (std::ranges::find(dense, index) != dense.end() || (index + 1) % step != 0) continue;
    spec.layers[i].experts = experts;
  }
  return Status();
}

void set_biases(DecoderSpec& spec, bool qkv, bool output, bool mlp) {
  for (LayerSpec& layer : spec.layers) {
    layer.attention.qkv_bias = qkv;
    layer.attention.output_bias = output;
    layer.mlp.bias = mlp;
  }
}

Status read_qwen_windows(const JsonObject& config, DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const bool windows, config.boolean_or("use_sliding_window", false));
  if (!windows || !config.has("sliding_window")) return Status();
  ESP_ASSIGN_OR_RETURN(const int32_t window, read_bounded(config, "sliding_window", kMaxContext));
  ESP_ASSIGN_OR_RETURN(const std::vector<bool> sliding,
                       read_layer_types(config, spec.layers.size()));
  for (size_t i = 0; i < sliding.size(); ++i) {
    if (sliding[i]) spec.layers[i].attention.sliding_window = window;
  }
  if (!sliding.empty()) return Status();
  ESP_ASSIGN_OR_RETURN(const int64_t first, config.integer_or("max_window_layers", 28, 0));
  for (size_t i = static_cast<size_t>(first); i < spec.layers.size(); ++i) {
    spec.layers[i].attention.sliding_window = window;
  }
  return Status();
}

}  // namespace espalier
