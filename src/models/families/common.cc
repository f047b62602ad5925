#include "models/families/common.h"

#include <cmath>
#include <string>

#include "checkpoint/generation_config.h"

namespace espalier {
namespace {

// Larger than any model's; keeps products of two sizes within 64 bits.
constexpr int64_t kMaxSize = 1 << 26;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxContext = 1 << 30;

Result<int32_t> read_size(const JsonObject& config, std::string_view field,
                          int64_t max = kMaxSize) {
  ESP_ASSIGN_OR_RETURN(const int64_t value, config.integer(field, 1, max));
  return static_cast<int32_t>(value);
}

Result<int32_t> read_size_or(const JsonObject& config, std::string_view field, int32_t otherwise,
                             int64_t max = kMaxSize) {
  if (!config.has(field)) return otherwise;
  return read_size(config, field, max);
}

Status refuse_what_is_not_honoured(const JsonObject& config) {
  if (config.has("quantization_config")) {
    return error(StatusCode::kUnimplemented,
                 "{}: 'quantization_config' is there; quantised weights are not read yet",
                 config.name());
  }
  ESP_ASSIGN_OR_RETURN(const std::string activation, config.string_or("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") {
    return error(StatusCode::kUnimplemented,
                 "{}: 'hidden_act' is '{}'; this family is known with 'silu' only", config.name(),
                 activation);
  }
  return Status();
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

// The fields of a scaling; `rope` is rope_parameters or rope_scaling.
Status read_rope_scaling(const JsonObject& rope, const std::string& type, int32_t context_length,
                         RopeSpec& spec) {
  if (type == "default") return Status();
  if (type == "linear") {
    spec.scaling = RopeSpec::Scaling::kLinear;
  } else if (type == "llama3") {
    spec.scaling = RopeSpec::Scaling::kLlama3;
  } else if (type == "yarn") {
    spec.scaling = RopeSpec::Scaling::kYarn;
  } else {
    // "dynamic" changes with a sequence's length, so cached keys would become wrong.
    return error(StatusCode::kUnimplemented,
                 "{}: the rope type '{}' is not supported; those that are: default, linear, "
                 "llama3, yarn",
                 rope.name(), type);
  }
  ESP_ASSIGN_OR_RETURN(spec.factor, rope.number("factor"));
  ESP_ASSIGN_OR_RETURN(
      spec.original_max_positions,
      read_size_or(rope, "original_max_position_embeddings", context_length, kMaxContext));
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

}  // namespace

Result<RopeSpec> read_rope(const JsonObject& config, int32_t head_dim, int32_t context_length) {
  RopeSpec spec;
  ESP_ASSIGN_OR_RETURN(spec.theta, config.number_or("rope_theta", 10000.0));
  ESP_ASSIGN_OR_RETURN(double rotated, config.number_or("partial_rotary_factor", 1.0));
  const char* field = config.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (config.has(field)) {
    ESP_ASSIGN_OR_RETURN(const JsonObject rope, config.object(field));
    ESP_ASSIGN_OR_RETURN(const std::string old_type, rope.string_or("type", "default"));
    ESP_ASSIGN_OR_RETURN(const std::string type, rope.string_or("rope_type", old_type));
    ESP_ASSIGN_OR_RETURN(spec.theta, rope.number_or("rope_theta", spec.theta));
    ESP_ASSIGN_OR_RETURN(rotated, rope.number_or("partial_rotary_factor", rotated));
    ESP_RETURN_IF_ERROR(read_rope_scaling(rope, type, context_length, spec));
  }
  if (!(rotated > 0 && rotated <= 1)) {
    return fail(config.field_error("partial_rotary_factor", "is not in (0, 1]"));
  }
  spec.rotary_dim = static_cast<int32_t>(head_dim * rotated);
  return spec;
}

Result<DecoderSpec> read_llama_like(const JsonObject& config, int32_t head_dim) {
  ESP_RETURN_IF_ERROR(refuse_what_is_not_honoured(config));
  DecoderSpec spec;
  ESP_ASSIGN_OR_RETURN(spec.model_type, config.string_or("model_type", ""));
  ESP_ASSIGN_OR_RETURN(spec.vocab_size, read_size(config, "vocab_size"));
  ESP_ASSIGN_OR_RETURN(spec.hidden_size, read_size(config, "hidden_size"));
  ESP_ASSIGN_OR_RETURN(spec.context_length,
                       read_size_or(config, "max_position_embeddings", 2048, kMaxContext));
  ESP_ASSIGN_OR_RETURN(spec.tied_embeddings, config.boolean_or("tie_word_embeddings", false));
  ESP_ASSIGN_OR_RETURN(spec.checkpoint_dtype, read_dtype(config));
  ESP_ASSIGN_OR_RETURN(spec.eos_ids, read_eos_token_ids(config));

  ESP_ASSIGN_OR_RETURN(const double epsilon, config.number_or("rms_norm_eps", 1e-6));
  if (!(epsilon > 0)) return fail(config.field_error("rms_norm_eps", "must be above 0"));
  const NormSpec norm{static_cast<float>(epsilon)};
  spec.final_norm = norm;

  LayerSpec layer{.input_norm = norm, .post_attention_norm = norm};
  ESP_ASSIGN_OR_RETURN(layer.attention, read_attention(config, spec.hidden_size, head_dim));
  ESP_ASSIGN_OR_RETURN(layer.mlp.intermediate_size, read_size(config, "intermediate_size"));
  ESP_ASSIGN_OR_RETURN(const RopeSpec rope,
                       read_rope(config, layer.attention.head_dim, spec.context_length));
  spec.ropes.push_back(rope);
  ESP_ASSIGN_OR_RETURN(const int32_t num_layers,
                       read_size(config, "num_hidden_layers", kMaxLayers));
  spec.layers.assign(static_cast<size_t>(num_layers), layer);
  return spec;
}

Status read_qwen_windows(const JsonObject& config, DecoderSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const bool windows, config.boolean_or("use_sliding_window", false));
  if (!windows || !config.has("sliding_window")) return Status();
  ESP_ASSIGN_OR_RETURN(const int32_t window, read_size(config, "sliding_window", kMaxContext));
  if (config.has("layer_types")) {
    ESP_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.strings("layer_types"));
    if (types.size() != spec.layers.size()) {
      return config.field_error("layer_types", "must have an entry for each layer");
    }
    for (size_t i = 0; i < types.size(); ++i) {
      if (types[i] == "sliding_attention") {
        spec.layers[i].attention.sliding_window = window;
      } else if (types[i] != "full_attention") {
        return config.field_error("layer_types", fmt::format("holds the unknown '{}'", types[i]));
      }
    }
    return Status();
  }
  ESP_ASSIGN_OR_RETURN(const int64_t first, config.integer_or("max_window_layers", 28, 0));
  for (size_t i = static_cast<size_t>(first); i < spec.layers.size(); ++i) {
    spec.layers[i].attention.sliding_window = window;
  }
  return Status();
}

}  // namespace espalier
