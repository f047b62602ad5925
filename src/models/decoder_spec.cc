#include "models/decoder_spec.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace espalier {
namespace {

// Of the attention kernels; latents are wider.
constexpr int32_t kMaxHeadDim = 512;
constexpr int32_t kMaxLatentDim = 1024;
// Parts of a picture's row behind its embedding.
constexpr int32_t kDeepstackMost = 8;
// Numbers of the patches that become one row.
constexpr int64_t kMergedMost = 1 << 26;

Status validate_latent(const AttentionSpec& a, size_t index) {
  const LatentSpec& latent = *a.latent;
  if (latent.query_rank < 0 || latent.rank < 1 || latent.nope_dim < 1 || latent.rope_dim < 0 ||
      latent.value_dim < 1 || latent.rope_dim % 2 != 0) {
    return invalid_argument(
        "layer {}: q_lora_rank {}, kv_lora_rank {}, qk_nope_head_dim {}, qk_rope_head_dim {} or "
        "v_head_dim {} is out of range",
        index, latent.query_rank, latent.rank, latent.nope_dim, latent.rope_dim, latent.value_dim);
  }
  if (a.num_kv_heads != 1 || a.head_dim != latent.rank + latent.rope_dim) {
    return invalid_argument("layer {}: {} latents of {} do not hold {} + {}", index, a.num_kv_heads,
                            a.head_dim, latent.rank, latent.rope_dim);
  }
  if (a.qkv_bias || a.qk_norm) {
    return error(StatusCode::kUnimplemented,
                 "layer {}: biases and qk-norm beside latent attention are not supported", index);
  }
  return Status();
}

Status validate_experts(const ExpertsSpec& experts, size_t index) {
  const kernels::RouterSpec& r = experts.router;
  const bool grouped = r.num_groups > 0 && r.top_groups > 0 && r.top_groups <= r.num_groups &&
                       r.num_experts % r.num_groups == 0;
  if (r.num_experts < 1 || r.num_experts > kernels::kMaxExperts || !grouped) {
    return invalid_argument("layer {}: {} experts in {} groups, {} of them open, are out of range",
                            index, r.num_experts, r.num_groups, r.top_groups);
  }
  const int32_t open = r.num_experts / r.num_groups * r.top_groups;
  if (r.top_k < 1 || r.top_k > open) {
    return invalid_argument("layer {}: {} experts of a token are not between 1 and {}", index,
                            r.top_k, open);
  }
  if (r.group_by_two && r.num_experts / r.num_groups < 2) {
    return invalid_argument("layer {}: groups of one expert have no best two", index);
  }
  return Status();
}

Status validate_layer(const DecoderSpec& spec, size_t index) {
  const LayerSpec& layer = spec.layers[index];
  const AttentionSpec& a = layer.attention;
  if (a.num_heads < 1 || a.num_kv_heads < 1 || a.num_heads % a.num_kv_heads != 0) {
    return invalid_argument(
        "layer {}: num_attention_heads {} must be a multiple of num_key_value_heads {}", index,
        a.num_heads, a.num_kv_heads);
  }
  const int32_t max_dim = a.latent ? kMaxLatentDim : kMaxHeadDim;
  if (a.head_dim < 1 || a.head_dim > max_dim) {
    return invalid_argument("layer {}: head_dim {} is not between 1 and {}", index, a.head_dim,
                            max_dim);
  }
  if (a.latent) ESP_RETURN_IF_ERROR(validate_latent(a, index));
  if (layer.experts) ESP_RETURN_IF_ERROR(validate_experts(*layer.experts, index));
  const MlpSpec& mlp = layer.experts ? layer.experts->expert : layer.mlp;
  if (a.cross && !(spec.images && spec.images->num_cross_layers > 0 && !a.rope && !a.latent &&
                   !layer.experts)) {
    return invalid_argument("layer {}: cross attention reads pictures, without positions", index);
  }
  if ((mlp.gelu || !a.causal) && !is_encoder(spec)) {
    return error(
        StatusCode::kUnimplemented,
        "layer {}: attention without causality, and the GELU of encoders, are supported in "
        "encoders alone",
        index);
  }
  if (a.sliding_window < 0 || mlp.intermediate_size < 1) {
    return invalid_argument("layer {}: sliding_window {} or intermediate_size {} is out of range",
                            index, a.sliding_window, mlp.intermediate_size);
  }
  if (a.rope) {
    if (*a.rope < 0 || static_cast<size_t>(*a.rope) >= spec.ropes.size()) {
      return invalid_argument("layer {}: there is no rope {}", index, *a.rope);
    }
    const RopeSpec& rope = spec.ropes[static_cast<size_t>(*a.rope)];
    if (a.latent && rope.rotary_dim != a.latent->rope_dim) {
      return invalid_argument("layer {}: {} rotated elements are not qk_rope_head_dim {}", index,
                              rope.rotary_dim, a.latent->rope_dim);
    }
    if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0 || rope.rotary_dim > a.head_dim) {
      return invalid_argument("layer {}: {} rotated elements do not fit a head_dim of {}", index,
                              rope.rotary_dim, a.head_dim);
    }
  }
  const AttentionSpec& first = spec.layers[0].attention;
  if (a.num_kv_heads != first.num_kv_heads || a.head_dim != first.head_dim ||
      a.latent.has_value() != first.latent.has_value()) {
    return error(
        StatusCode::kUnimplemented,
        "layer {} has {} key/value heads of {} and layer 0 has {} of {}; layers must agree", index,
        a.num_kv_heads, a.head_dim, first.num_kv_heads, first.head_dim);
  }
  return Status();
}

Status validate_sections(const RopeSpec& rope) {
  int64_t pairs = 0;
  for (const int32_t section : rope.sections) pairs += section;
  const bool negative = std::ranges::any_of(rope.sections, [](int32_t n) { return n < 0; });
  if (rope.axial_in_turns && (!rope.axial || rope.sections.size() != 3 || rope.sections[0] != 0 ||
                              rope.sections[1] != rope.sections[2])) {
    return invalid_argument("frequencies that take turns are those of as many rows as columns");
  }
  const bool adds_up = rope.sections.size() == 3 && !negative && 2 * pairs == rope.rotary_dim;
  if (adds_up && !rope.interleaved_sections) return Status();
  const auto fits = [&](int32_t section) { return 6 * int64_t{section} <= rope.rotary_dim; };
  if (adds_up && !rope.axial && fits(rope.sections[1]) && fits(rope.sections[2])) return Status();
  if (adds_up) {
    return invalid_argument(
        "mrope_section has more pairs of height or width than a third of the {} rotated elements, "
        "so they cannot take turns (mrope_interleaved)",
        rope.rotary_dim);
  }
  return invalid_argument(
      "mrope_section must have three numbers of pairs that add up to half of the {} rotated "
      "elements",
      rope.rotary_dim);
}

Status validate_rope(const RopeSpec& rope) {
  if (!(rope.theta > 1.0) || !(rope.factor > 0.0) || !(rope.attention_factor > 0.0)) {
    return invalid_argument(
        "rope_theta {} must be above 1, rope factor {} and attention_factor {} "
        "above 0",
        rope.theta, rope.factor, rope.attention_factor);
  }
  const bool stretches =
      rope.scaling != RopeSpec::Scaling::kNone && rope.scaling != RopeSpec::Scaling::kLinear;
  if (!rope.sections.empty()) ESP_RETURN_IF_ERROR(validate_sections(rope));
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
  if (rope.scaling == RopeSpec::Scaling::kLongRope) {
    const auto pairs = static_cast<size_t>(rope.rotary_dim / 2);
    if (rope.short_factors.size() != pairs || rope.long_factors.size() != pairs) {
      return invalid_argument("short_factor has {} values and long_factor {}; {} are rotated",
                              rope.short_factors.size(), rope.long_factors.size(), pairs);
    }
    const auto positive = [](double factor) { return factor > 0; };
    if (!std::ranges::all_of(rope.short_factors, positive) ||
        !std::ranges::all_of(rope.long_factors, positive)) {
      return invalid_argument("the values of short_factor and long_factor must be above 0");
    }
  }
  return Status();
}

int64_t norm_parameters(const std::optional<NormSpec>& norm, int64_t size) {
  if (!norm) return 0;
  if (norm->kind == NormSpec::Kind::kGate) return 1;
  return norm->kind == NormSpec::Kind::kLayer ? 2 * size : size;
}

int64_t mlp_parameters(const MlpSpec& mlp, int64_t hidden) {
  const int64_t ffn = mlp.intermediate_size, inner = (mlp.gated ? 2 : 1) * ffn;
  return hidden * (inner + ffn) + (mlp.bias ? inner + hidden : 0);
}

int64_t attention_parameters(const AttentionSpec& a, int64_t hidden) {
  int64_t count = hidden * a.output_dim();
  if (a.output_bias) count += hidden;
  if (a.sinks) count += a.num_heads;
  if (a.latent) {
    const LatentSpec& l = *a.latent;
    const int64_t q = int64_t{a.num_heads} * (l.nope_dim + l.rope_dim);
    count +=
        l.query_rank > 0 ? hidden * l.query_rank + l.query_rank + l.query_rank * q : hidden * q;
    return count + hidden * (l.rank + l.rope_dim) + l.rank +
           int64_t{a.num_heads} * (l.nope_dim + l.value_dim) * l.rank;
  }
  if (a.cross) return count + hidden * a.q_dim() + (a.qk_norm ? a.head_dim : 0);
  const int64_t qkv = a.q_dim() + 2ll * a.kv_dim();
  count += qkv * hidden;
  if (a.qkv_bias) count += qkv;
  const bool all = a.qk_norm_scope == AttentionSpec::NormScope::kAll;
  if (a.qk_norm) count += all ? a.q_dim() + a.kv_dim() : 2ll * a.head_dim;
  return count;
}

int64_t experts_parameters(const ExpertsSpec& experts, int64_t hidden) {
  const int64_t number = experts.router.num_experts;
  const int64_t here = experts.local_count > 0 ? experts.local_count : number;  // of a rank
  int64_t count = number * hidden + here * mlp_parameters(experts.expert, hidden);
  if (experts.router_bias) count += number;
  if (experts.router.correction) count += number;
  if (experts.shared) count += mlp_parameters(*experts.shared, hidden);
  return experts.shared_gate ? count + hidden : count;
}

int64_t layer_parameters(const LayerSpec& layer, int64_t hidden) {
  int64_t count = attention_parameters(layer.attention, hidden);
  count += layer.experts ? experts_parameters(*layer.experts, hidden)
                         : mlp_parameters(layer.mlp, hidden);
  for (const auto* norm : {&layer.input_norm, &layer.attention_output_norm,
                           &layer.post_attention_norm, &layer.mlp_output_norm}) {
    count += norm_parameters(*norm, hidden);
  }
  return count;
}

int64_t head_parameters(const std::vector<PoolingSpec::HeadLayer>& layers, int64_t hidden) {
  int64_t count = 0, inputs = hidden;
  for (const PoolingSpec::HeadLayer& layer : layers) {
    count += layer.outputs * (inputs + (layer.bias ? 1 : 0));
    inputs = layer.outputs;
  }
  return count;
}

int64_t text_parameters(const TextsSpec& texts, int64_t hidden, int64_t inputs) {
  int64_t count = norm_parameters(texts.norm, hidden) + texts.token_types * hidden;
  for (const TextsSpec::HeadLayer& layer : texts.head) {
    count += layer.outputs * (inputs + (layer.bias ? 1 : 0));
    count += norm_parameters(layer.norm, layer.outputs);
    inputs = layer.outputs;
  }
  return count;
}

int64_t patch_parameters(const PatchesSpec& patches, int64_t hidden) {
  const int64_t vectors = (patches.bias ? 1 : 0) + (patches.class_token ? 1 : 0);
  return hidden * (patches.features() + vectors) + norm_parameters(patches.norm, hidden);
}

Status validate_deepstack(const DecoderSpec& spec) {
  const ProjectorSpec& projector = *spec.projector;
  if (std::cmp_greater(projector.deepstack.size(), kDeepstackMost) ||
      (!projector.deepstack.empty() && spec.patches->class_token)) {
    return invalid_argument("deepstack_visual_indexes names {} layers, and at most {} are read",
                            projector.deepstack.size(), kDeepstackMost);
  }
  int32_t before = -1;
  for (const DeepstackSpec& deep : projector.deepstack) {
    if (deep.layer <= before || std::cmp_greater_equal(deep.layer, spec.layers.size())) {
      return invalid_argument(
          "deepstack_visual_indexes must name layers of the {} that there are, rising",
          spec.layers.size());
    }
    before = deep.layer;
    if (!deep.layers.empty() && deep.layers.back().outputs == projector.layers.back().outputs)
      continue;
    return invalid_argument("the states behind layer {} are not as wide as the other parts",
                            deep.layer);
  }
  return Status();
}

// Of pictures of one size.
int64_t fixed_positions(const DecoderSpec& spec) {
  const int64_t rows = spec.patches->num_rows();
  return spec.tiles && spec.tiles->joint ? rows * spec.tiles->num_positions() : rows;
}

Status validate_projector(const DecoderSpec& spec) {
  const ProjectorSpec& projector = *spec.projector;
  const auto num_layers = static_cast<int32_t>(spec.layers.size());
  const bool rising =
      std::ranges::adjacent_find(projector.beside, std::greater_equal()) == projector.beside.end();
  if (!projector.beside.empty() &&
      (!rising || projector.beside.front() < 0 || projector.beside.back() >= num_layers ||
       projector.merge != 1 || !projector.deepstack.empty())) {
    return invalid_argument("intermediate_layers_indices must name layers of the {}, rising",
                            num_layers);
  }
  for (const CrossKvSpec& cross : projector.cross) {
    if (cross.num_kv_heads > 0 && cross.head_dim > 0 &&
        cross.kv_dim() == projector.cross[0].kv_dim() &&
        cross.head_dim == projector.cross[0].head_dim) {
      continue;
    }
    return invalid_argument("layers of cross attention differ in their keys' shape");
  }
  return Status();
}

// A picture's rows see each other and nothing else.
Status validate_patches(const DecoderSpec& spec) {
  const PatchesSpec& patches = *spec.patches;
  if (patches.patch_size < 1 || patches.channels < 1 || patches.num_patches < 0 ||
      patches.frames < 1 || patches.merge < 1 || patches.window < 0) {
    return invalid_argument("patch_size {}, num_channels {} or image_size is out of range",
                            patches.patch_size, patches.channels);
  }
  const bool any_size = patches.num_patches == 0;  // positions are rotary, or those of a grid
  const int64_t grid_positions = patches.sound
                                     ? patches.sound->rows_max()
                                     : int64_t{patches.position_side} * patches.position_side;
  if (patches.position_side < 0 || (patches.position_side > 0 && !any_size) ||
      spec.learned_positions != (any_size ? grid_positions : fixed_positions(spec)) ||
      !spec.projector || spec.projector->layers.empty() || spec.pooling ||
      spec.projector->merge != patches.square()) {
    return invalid_argument("an encoder has a position for each row, and a projector");
  }
  if (any_size && patches.class_token) {
    return invalid_argument("a class token stands in front of patches of one number alone");
  }
  if (int64_t{spec.hidden_size} * patches.square() > kMergedMost) {
    return invalid_argument("{} patches of {} numbers side by side make rows too wide",
                            patches.square(), spec.hidden_size);
  }
  const auto side = static_cast<int32_t>(std::lround(std::sqrt(patches.num_patches)));
  if (!any_size && patches.merge > 1 &&
      (side * side != patches.num_patches || side % patches.merge != 0)) {
    return invalid_argument("{} patches of a picture are not merged in squares of {} x {}",
                            patches.num_patches, patches.merge, patches.merge);
  }
  ESP_RETURN_IF_ERROR(validate_deepstack(spec));
  ESP_RETURN_IF_ERROR(validate_projector(spec));
  const bool joint = spec.tiles && spec.tiles->joint;
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& a = layer.attention;
    const bool windowed = joint || patches.window > 0;
    if (!a.causal && a.sliding_window == 0 && !a.cross && (!a.windowed || windowed)) continue;
    return invalid_argument("an encoder's attention is neither causal nor in sliding windows");
  }
  return Status();
}

// In the last layer wanted rows alone are computed.
Status validate_images(const DecoderSpec& spec) {
  const int32_t parts = spec.images->num_deep_parts;
  const int64_t layers = spec.stage.first_layer + std::ssize(spec.layers);
  if (parts < 0 || parts > kDeepstackMost) {
    return invalid_argument("deepstack_visual_indexes names {} layers, and at most {} are read",
                            parts, kDeepstackMost);
  }
  if (spec.images->bidirectional && !spec.stage.whole()) {
    return error(StatusCode::kUnimplemented,
                 "{}: a picture's rows see each other, and stages of a pipeline cut pictures: use "
                 "--pp-size 1",
                 spec.architecture);
  }
  if (spec.images->num_cross_layers > 0 &&
      (!spec.stage.whole() || spec.layers.back().attention.cross)) {
    return error(StatusCode::kUnimplemented,
                 "{}: cross attention runs in one stage (--pp-size 1), and not in the last layer",
                 spec.architecture);
  }
  const auto cross = std::ranges::count_if(
      spec.layers, [](const LayerSpec& layer) { return layer.attention.cross; });
  if (cross != num_cross_layers(spec))
    return invalid_argument("{} layers have cross attention, of {}", cross, num_cross_layers(spec));
  if (!spec.stage.samples || parts < layers) return Status();
  return error(
      StatusCode::kUnimplemented,
      "deepstack_visual_indexes names {} layers of the encoder, and the decoder has {}: it "
      "must have more",
      parts, layers);
}

// A text's rows see each other and nothing else.
Status validate_texts(const DecoderSpec& spec) {
  const TextsSpec& texts = *spec.texts;
  if (spec.patches || !spec.pooling || spec.images || spec.draft || !spec.stage.whole() ||
      spec.tied_embeddings) {
    return invalid_argument("an encoder of texts makes vectors of texts and nothing else");
  }
  if (texts.token_types < 0 || texts.first_position < 0 ||
      (spec.learned_positions > 0 &&
       int64_t{texts.first_position} + spec.context_length > spec.learned_positions)) {
    return invalid_argument("{} positions from {} on do not hold texts of {} tokens",
                            spec.learned_positions, texts.first_position, spec.context_length);
  }
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& a = layer.attention;
    const bool whole = !a.causal && !a.windowed && a.sliding_window == 0 && a.reach >= 0;
    if (!whole || layer.experts || a.latent) {
      return error(StatusCode::kUnimplemented,
                   "an encoder of texts has attention to both sides and dense MLPs");
    }
    if (!texts.norms_of_sums || (layer.attention_output_norm && layer.mlp_output_norm)) continue;
    return invalid_argument("a layer whose norms stand behind sums has two of them");
  }
  return Status();
}

Status validate_pooling(const DecoderSpec& spec) {
  if (spec.tied_embeddings) {
    return invalid_argument("a model that makes vectors has no head to tie to the embedding");
  }
  if (!spec.final_norm && !spec.texts)
    return invalid_argument("a model that makes vectors has a final norm");
  for (const PoolingSpec::HeadLayer& layer : spec.pooling->head) {
    if (layer.outputs < 1)
      return invalid_argument("'{}' has {} outputs", layer.name, layer.outputs);
  }
  return Status();
}

// Beside what a decoder with one table has.
int64_t draft_parameters(const DecoderSpec& spec) {
  const AttentionSpec& a = spec.layers[0].attention;
  const int64_t hidden = spec.hidden_size, qkv = a.q_dim() + 2ll * a.kv_dim();
  if (spec.draft->is_mtp()) return 2 * hidden * hidden + 2 * hidden;
  return static_cast<int64_t>(spec.draft->target_layers.size()) * hidden * hidden + qkv * hidden +
         hidden;
}

Status validate_draft(const DecoderSpec& spec) {
  const DraftSpec& draft = *spec.draft;
  const bool dense = !spec.layers[0].attention.latent && !spec.layers[0].experts;
  if (spec.layers.size() != 1 || (!dense && !draft.is_mtp()) || !spec.layers[0].input_norm ||
      !spec.final_norm) {
    return error(StatusCode::kUnimplemented,
                 "a draft head has one layer of attention and a dense MLP, with norms");
  }
  if (draft.is_mtp() && draft.target_layers.size() != 1) {
    return invalid_argument("an MTP layer reads one state of the target");
  }
  if (draft.target_layers.empty() || draft.target_layers[0] < 0 ||
      std::ranges::adjacent_find(draft.target_layers, std::greater_equal()) !=
          draft.target_layers.end()) {
    return invalid_argument("a draft head reads states in front of different layers");
  }
  return Status();
}

}  // namespace

int32_t DecoderSpec::pooled_size() const {
  if (!pooling) return 0;
  if (texts && !texts->head.empty()) return texts->head.back().outputs;
  if (texts && projector) return projector->layers.back().outputs;
  return pooling->head.empty() ? hidden_size : pooling->head.back().outputs;
}

int64_t DecoderSpec::num_parameters() const {
  const int64_t table = static_cast<int64_t>(vocab_size) * hidden_size;
  int64_t count = tied_embeddings || pooling || draft
                      ? table
                      : table + int64_t{num_logits(*this)} * hidden_size;
  if (draft && draft->is_mtp()) count = 0;  // both tables are the target's
  if (draft) count += draft_parameters(*this);
  if (pooling) count += head_parameters(pooling->head, hidden_size);
  if (projector) {
    const int64_t merged = int64_t{projector->merged_width()} * hidden_size;
    count += head_parameters(projector->layers,
                             merged * static_cast<int64_t>(1 + projector->beside.size())) +
             norm_parameters(projector->norm, merged);
    for (const CrossKvSpec& cross : projector->cross)
      count += 2 * int64_t{cross.kv_dim()} * projector->layers.back().outputs + cross.head_dim;
    for (const DeepstackSpec& deep : projector->deepstack)
      count += head_parameters(deep.layers, merged) + norm_parameters(deep.norm, merged);
  }
  if (tiles && !tiles->in_sequence) count += projector->layers.back().outputs;
  if (tiles && tiles->joint)
    count += norm_parameters(tiles->joint->norm, hidden_size) +
             int64_t{tiles->num_positions()} * hidden_size;
  if (patches) count += patch_parameters(*patches, hidden_size);
  if (texts) {
    const int32_t inputs = projector ? projector->layers.back().outputs : hidden_size;
    count += text_parameters(*texts, hidden_size, inputs);
  }
  count += norm_parameters(final_norm, hidden_size) + int64_t{learned_positions} * hidden_size;
  for (const LayerSpec& layer : layers) count += layer_parameters(layer, hidden_size);
  return count;
}

Status validate(const DecoderSpec& spec) {
  if (spec.vocab_size < (spec.patches ? 0 : 1) || spec.hidden_size < 1 || spec.context_length < 1) {
    return invalid_argument(
        "vocab_size {}, hidden_size {} and max_position_embeddings {} must be positive",
        spec.vocab_size, spec.hidden_size, spec.context_length);
  }
  if (spec.learned_positions > 0 && spec.learned_positions < spec.context_length) {
    return invalid_argument("{} learned positions do not cover a context of {}",
                            spec.learned_positions, spec.context_length);
  }
  if (!(spec.logits_softcap >= 0)) return invalid_argument("the softcap of logits is negative");
  if (spec.layers.empty()) return invalid_argument("num_hidden_layers must be positive");
  if (spec.pooling) ESP_RETURN_IF_ERROR(validate_pooling(spec));
  if (spec.patches) ESP_RETURN_IF_ERROR(validate_patches(spec));
  if (spec.texts) ESP_RETURN_IF_ERROR(validate_texts(spec));
  if (spec.draft) ESP_RETURN_IF_ERROR(validate_draft(spec));
  if (spec.images) ESP_RETURN_IF_ERROR(validate_images(spec));
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

std::string expert_name(const std::string& pattern, int32_t layer, int32_t expert) {
  return layer_name(layer_name(pattern, layer), expert);
}

}  // namespace espalier
