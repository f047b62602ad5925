#include "models/decoder_spec.h"

#include <limits>

namespace espalier {
namespace {

// Of the attention kernels.
constexpr int32_t kMaxHeadDim = 512;

Status validate_layer(const DecoderSpec& spec, size_t index) {
  const LayerSpec& layer = spec.layers[index];
  const AttentionSpec& a = layer.attention;
  if (a.num_heads < 1 || a.num_kv_heads < 1 || a.num_heads % a.num_kv_heads != 0) {
    return invalid_argument(
        "layer {}: num_attention_heads {} must be a multiple of num_key_value_heads {}", index,
        a.num_heads, a.num_kv_heads);
  }
  if (a.head_dim < 1 || a.head_dim > kMaxHeadDim) {
    return invalid_argument("layer {}: head_dim {} is not between 1 and {}", index, a.head_dim,
                            kMaxHeadDim);
  }
  if (a.sliding_window < 0 || layer.mlp.intermediate_size < 1) {
    return invalid_argument("layer {}: sliding_window {} or intermediate_size {} is out of range",
                            index, a.sliding_window, layer.mlp.intermediate_size);
  }
  if (a.rope) {
    if (*a.rope < 0 || static_cast<size_t>(*a.rope) >= spec.ropes.size()) {
      return invalid_argument("layer {}: there is no rope {}", index, *a.rope);
    }
    const RopeSpec& rope = spec.ropes[static_cast<size_t>(*a.rope)];
    if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > a.head_dim) {
      return invalid_argument("layer {}: {} rotated elements do not fit a head_dim of {}", index,
                              rope.rotary_dim, a.head_dim);
    }
  }
  const AttentionSpec& first = spec.layers[0].attention;
  if (a.num_kv_heads != first.num_kv_heads || a.head_dim != first.head_dim) {
    return error(
        StatusCode::kUnimplemented,
        "layer {} has {} key/value heads of {} and layer 0 has {} of {}; layers must agree", index,
        a.num_kv_heads, a.head_dim, first.num_kv_heads, first.head_dim);
  }
  return Status();
}

Status validate_rope(const RopeSpec& rope) {
  if (!(rope.theta > 1.0) || !(rope.factor > 0.0) || !(rope.attention_factor > 0.0)) {
    return invalid_argument(
        "rope_theta {} must be above 1, rope factor {} and attention_factor {} "
        "above 0",
        rope.theta, rope.factor, rope.attention_factor);
  }
  const bool stretches =
      rope.scaling == RopeSpec::Scaling::kLlama3 || rope.scaling == RopeSpec::Scaling::kYarn;
  if (stretches && rope.original_max_positions < 1) {
    return invalid_argument("original_max_position_embeddings {} must be positive",
                            rope.original_max_positions);
  }
  if (rope.scaling == RopeSpec::Scaling::kLlama3 &&
      !(rope.low_freq_factor > 0.0 && rope.high_freq_factor > rope.low_freq_factor)) {
    return invalid_argument(
        "high_freq_factor {} must be above low_freq_factor {}, and that above 0",
        rope.high_freq_factor, rope.low_freq_factor);
  }
  if (rope.scaling == RopeSpec::Scaling::kYarn && !(rope.beta_fast > 0 && rope.beta_slow > 0)) {
    return invalid_argument("beta_fast {} and beta_slow {} must be above 0", rope.beta_fast,
                            rope.beta_slow);
  }
  return Status();
}

int64_t layer_parameters(const LayerSpec& layer, int64_t hidden) {
  const AttentionSpec& a = layer.attention;
  const int64_t qkv = a.q_dim() + 2ll * a.kv_dim();
  const int64_t ffn = layer.mlp.intermediate_size;
  int64_t count = qkv * hidden + hidden * a.q_dim() + 3 * hidden * ffn;
  if (a.qkv_bias) count += qkv;
  if (a.output_bias) count += hidden;
  if (a.qk_norm) count += 2ll * a.head_dim;
  if (layer.mlp.bias) count += 2 * ffn + hidden;
  if (layer.input_norm) count += hidden;
  if (layer.post_attention_norm) count += hidden;
  return count;
}

}  // namespace

int64_t DecoderSpec::num_parameters() const {
  const int64_t table = static_cast<int64_t>(vocab_size) * hidden_size;
  int64_t count = tied_embeddings ? table : 2 * table;
  if (final_norm) count += hidden_size;
  for (const LayerSpec& layer : layers) count += layer_parameters(layer, hidden_size);
  return count;
}

Status validate(const DecoderSpec& spec) {
  if (spec.vocab_size < 1 || spec.hidden_size < 1 || spec.context_length < 1) {
    return invalid_argument(
        "vocab_size {}, hidden_size {} and max_position_embeddings {} must be positive",
        spec.vocab_size, spec.hidden_size, spec.context_length);
  }
  if (spec.layers.empty()) return invalid_argument("num_hidden_layers must be positive");
  for (const RopeSpec& rope : spec.ropes) ESP_RETURN_IF_ERROR(validate_rope(rope));
  for (size_t i = 0; i < spec.layers.size(); ++i) ESP_RETURN_IF_ERROR(validate_layer(spec, i));
  for (const TokenId id : spec.eos_ids) {
    if (id < 0 || id >= spec.vocab_size) {
      return invalid_argument("eos_token_id {} is not below vocab_size {}", id, spec.vocab_size);
    }
  }
  return Status();
}

std::string layer_name(const std::string& pattern, int32_t layer) {
  std::string name = pattern;
  if (const size_t at = name.find("{}"); at != std::string::npos) {
    name.replace(at, 2, std::to_string(layer));
  }
  return name;
}

}  // namespace espalier
