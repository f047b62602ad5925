#include "models/program/lower.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace espalier::program {
namespace {

// Appends operations and buffers to a program.
class Builder {
 public:
  explicit Builder(const DecoderSpec& spec) : spec_(spec) { program_.name = spec.architecture; }

  Operand buffer(const std::string& name, int32_t columns, Rows rows = {},
                 ElementType type = ElementType::kActivation) {
    return find_or_add_buffer(program_, name, columns, rows, type);
  }

  Op& add(OpKind kind, std::vector<Operand> inputs, std::vector<Operand> outputs,
          Attributes attributes = {}) {
    return program_.ops.emplace_back(Op{.kind = kind,
                                        .layer = layer_,
                                        .inputs = std::move(inputs),
                                        .outputs = std::move(outputs),
                                        .attributes = std::move(attributes)});
  }

  WeightId weight(WeightKind kind) const { return {kind, layer_}; }
  WeightId weight_if(bool there, WeightKind kind) const {
    return there ? weight(kind) : WeightId{};
  }
  void set_layer(int32_t layer) { layer_ = layer; }

  void norm(const NormSpec& spec, WeightKind kind, const Operand& x, const Operand& y,
            int32_t groups = 1) {
    add(OpKind::kNorm, {x}, {y}, Norm{.spec = spec, .weight = weight(kind), .groups = groups});
  }
  // norm(x) in a buffer of its own, or x itself where the model has no such norm.
  Operand normed(const std::optional<NormSpec>& spec, WeightKind kind, const Operand& x) {
    if (!spec) return x;
    const Operand y = buffer("normed", x.columns);
    norm(*spec, kind, x, y);
    return y;
  }
  void matmul(WeightId matrix, WeightId bias, const Operand& x, const Operand& y) {
    add(OpKind::kMatmul, {x}, {y},
        Matmul{
            .weight = matrix, .bias = bias, .in_features = x.columns, .out_features = y.columns});
  }
  void scale(const Operand& x, float factor) {
    if (factor != 1.0f) add(OpKind::kScale, {x}, {x}, Scale{factor});
  }

  const DecoderSpec& spec() const { return spec_; }
  Program take() { return std::move(program_); }

 private:
  const DecoderSpec& spec_;
  Program program_;
  int32_t layer_ = -1;
};

Operand slice(const Operand& of, int32_t column, int32_t columns) {
  return {of.buffer, of.column + column, columns};
}

void rope(Builder& b, const AttentionSpec& a, const Operand& x, int32_t heads, int32_t begin) {
  if (!a.rope) return;
  b.add(OpKind::kRope, {x}, {x},
        Rope{.rope = *a.rope, .heads = heads, .head_dim = a.head_dim, .begin = begin});
}

// [q; k; v] of every row of x, normed by head and rotated.
Operand lower_qkv(Builder& b, const AttentionSpec& a, const Operand& x) {
  const Operand qkv = b.buffer("qkv", a.q_dim() + 2 * a.kv_dim());
  b.matmul(b.weight(WeightKind::kQkv), b.weight_if(a.qkv_bias, WeightKind::kQkvBias), x, qkv);
  if (a.qk_norm) {
    const bool all = a.qk_norm_scope == AttentionSpec::NormScope::kAll;
    const Operand q = slice(qkv, 0, a.q_dim()), k = slice(qkv, a.q_dim(), a.kv_dim());
    b.norm(*a.qk_norm, WeightKind::kQNorm, q, q, all ? 1 : a.num_heads);
    b.norm(*a.qk_norm, WeightKind::kKNorm, k, k, all ? 1 : a.num_kv_heads);
  }
  rope(b, a, slice(qkv, 0, a.q_dim() + a.kv_dim()), a.num_heads + a.num_kv_heads, 0);
  return qkv;
}

// The queries of latent attention, [rows, heads, nope + rope], from x or from a latent of it.
Operand lower_latent_queries(Builder& b, const AttentionSpec& a, const Operand& x) {
  const LatentSpec& latent = *a.latent;
  Operand from = x;
  if (latent.query_rank > 0) {
    from = b.buffer("query_latent", latent.query_rank);
    b.matmul(b.weight(WeightKind::kLatentQA), {}, x, from);
    b.norm(latent.norm, WeightKind::kLatentQANorm, from, from);
  }
  const Operand queries = b.buffer("queries", a.num_heads * (latent.nope_dim + latent.rope_dim));
  b.matmul(b.weight(WeightKind::kLatentQ), {}, from, queries);
  return queries;
}

// [q; k] where keys are latents: of each head the query in the latent space and its rotated part,
// then the latent and the rotated part that all heads share.
Operand lower_latent_qk(Builder& b, const AttentionSpec& a, const Operand& x) {
  const LatentSpec& latent = *a.latent;
  const int32_t width = latent.nope_dim + latent.rope_dim;
  const Operand qk = b.buffer("qkv", a.q_dim() + a.kv_dim());
  const Operand q = slice(qk, 0, a.q_dim()), k = slice(qk, a.q_dim(), a.head_dim);
  b.matmul(b.weight(WeightKind::kLatentKvA), {}, x, k);
  const Operand kv_latent = slice(k, 0, latent.rank);
  b.norm(latent.norm, WeightKind::kLatentKvANorm, kv_latent, kv_latent);
  const Operand queries = lower_latent_queries(b, a, x);
  b.add(OpKind::kHeadMatmul, {queries}, {q},
        HeadMatmul{.weight = b.weight(WeightKind::kQueryToLatent),
                   .heads = a.num_heads,
                   .in_features = latent.nope_dim,
                   .out_features = latent.rank,
                   .x_head = width,
                   .y_head = a.head_dim});
  b.add(OpKind::kHeadCopy, {queries}, {q},
        HeadCopy{.heads = a.num_heads,
                 .count = latent.rope_dim,
                 .x_head = width,
                 .x_begin = latent.nope_dim,
                 .y_head = a.head_dim,
                 .y_begin = latent.rank});
  rope(b, a, qk, a.num_heads + 1, latent.rank);
  return qk;
}

// Each head's value from what attention made of the latents.
Operand lower_latent_values(Builder& b, const AttentionSpec& a, const Operand& attended) {
  const Operand values = b.buffer("values", a.output_dim());
  b.add(OpKind::kHeadMatmul, {attended}, {values},
        HeadMatmul{.weight = b.weight(WeightKind::kLatentToValue),
                   .heads = a.num_heads,
                   .in_features = a.latent->rank,
                   .out_features = a.latent->value_dim,
                   .x_head = a.head_dim,
                   .y_head = a.latent->value_dim});
  return values;
}

// hidden += residual_scale * norm(branch), or norm(hidden + branch).
void lower_residual(Builder& b, const std::optional<NormSpec>& norm, WeightKind kind,
                    const Operand& hidden, const Operand& branch) {
  const bool of_sums = b.spec().texts && b.spec().texts->norms_of_sums;
  if (norm && !of_sums) b.norm(*norm, kind, branch, branch);
  b.add(OpKind::kResidualAdd, {hidden, branch}, {hidden}, ResidualAdd{b.spec().residual_scale});
  if (norm && of_sums) b.norm(*norm, kind, hidden, hidden);
}

// Of an EAGLE-3 head: the tokens' embeddings beside the states, each with its norm.
Operand lower_draft_input(Builder& b, const LayerSpec& layer, const Operand& hidden) {
  const Operand embedded = b.buffer("embedded", hidden.columns);
  b.add(OpKind::kInput, {}, {embedded}, Input{Input::Kind::kEmbeddings});
  const Operand x = b.buffer("embedded_and_hidden", 2 * hidden.columns);
  b.norm(*layer.input_norm, WeightKind::kInputNorm, embedded, slice(x, 0, hidden.columns));
  b.norm(b.spec().draft->hidden_norm, WeightKind::kHiddenNorm, hidden,
         slice(x, hidden.columns, hidden.columns));
  return x;
}

// Attention to pictures, of queries alone: keys and values come with the step.
void lower_cross_attention(Builder& b, const LayerSpec& layer, int32_t index,
                           const Operand& hidden) {
  const AttentionSpec& a = layer.attention;
  const Operand x = b.normed(layer.input_norm, WeightKind::kInputNorm, hidden);
  const Operand q = b.buffer("qkv", a.q_dim());
  b.matmul(b.weight(WeightKind::kQkv), {}, x, q);
  if (a.qk_norm) b.norm(*a.qk_norm, WeightKind::kQNorm, q, q, a.num_heads);
  const Operand attended = b.buffer("attended", a.q_dim());
  b.add(OpKind::kCrossAttention, {q}, {attended},
        CrossAttention{.num_heads = a.num_heads,
                       .num_kv_heads = a.num_kv_heads,
                       .head_dim = a.head_dim,
                       .scale = a.scale,
                       .index = index});
  const Operand branch = b.buffer("branch", hidden.columns);
  b.matmul(b.weight(WeightKind::kAttentionOutput), {}, attended, branch);
  lower_residual(b, layer.attention_output_norm, WeightKind::kAttentionOutputNorm, hidden, branch);
}

void lower_attention(Builder& b, const LayerSpec& layer, const Operand& hidden) {
  const AttentionSpec& a = layer.attention;
  const bool latent = a.latent.has_value();
  const bool eagle = b.spec().draft && !b.spec().draft->is_mtp();
  const Operand x = eagle ? lower_draft_input(b, layer, hidden)
                          : b.normed(layer.input_norm, WeightKind::kInputNorm, hidden);
  const Operand qkv = latent ? lower_latent_qk(b, a, x) : lower_qkv(b, a, x);
  std::vector<Operand> new_kv = {slice(qkv, a.q_dim(), a.kv_dim())};
  if (!latent) new_kv.push_back(slice(qkv, a.q_dim() + a.kv_dim(), a.kv_dim()));
  b.add(OpKind::kKvAppend, new_kv, {},
        KvAppend{.num_kv_heads = a.num_kv_heads,
                 .head_dim = a.head_dim,
                 .sliding_window = a.sliding_window});
  const Operand attended = b.buffer("attended", a.q_dim());
  b.add(OpKind::kAttention, {slice(qkv, 0, a.q_dim())}, {attended},
        Attention{.num_heads = a.num_heads,
                  .num_kv_heads = a.num_kv_heads,
                  .head_dim = a.head_dim,
                  .scale = a.scale,
                  .sliding_window = a.sliding_window,
                  .softcap = a.softcap,
                  .sinks = b.weight_if(a.sinks, WeightKind::kSinks),
                  .latent = latent,
                  .causal = a.causal,
                  .windowed = a.windowed,
                  .reach = a.reach,
                  .pictures = b.spec().images && b.spec().images->bidirectional});
  const Operand branch = b.buffer("branch", hidden.columns);
  b.matmul(b.weight(WeightKind::kAttentionOutput),
           b.weight_if(a.output_bias, WeightKind::kAttentionOutputBias),
           latent ? lower_latent_values(b, a, attended) : attended, branch);
  lower_residual(b, layer.attention_output_norm, WeightKind::kAttentionOutputNorm, hidden, branch);
}

int32_t gate_up_features(const MlpSpec& mlp) { return (mlp.gated ? 2 : 1) * mlp.intermediate_size; }

// In place: the result lies in the first columns of its argument.
Operand lower_activation(Builder& b, const MlpSpec& mlp, const Operand& gate_up) {
  const Operand y = slice(gate_up, 0, mlp.intermediate_size);
  b.add(OpKind::kActivation, {gate_up}, {y},
        Activation{.kind = mlp.activation,
                   .gated = mlp.gated,
                   .limit = mlp.activation_limit,
                   .dim = mlp.intermediate_size,
                   .gelu = mlp.gelu});
  return y;
}

// to = down(activation(gate_up(x))): a dense MLP, or the shared expert.
void lower_mlp(Builder& b, const MlpSpec& mlp, const Operand& x, const Operand& to) {
  const Operand gate_up = b.buffer("gate_up", gate_up_features(mlp));
  b.matmul(b.weight(WeightKind::kGateUp), b.weight_if(mlp.bias, WeightKind::kGateUpBias), x,
           gate_up);
  b.matmul(b.weight(WeightKind::kDown), b.weight_if(mlp.bias, WeightKind::kDownBias),
           lower_activation(b, mlp, gate_up), to);
}

// branch += [sigmoid(gate(x)) *] shared(x).
void lower_shared_expert(Builder& b, const ExpertsSpec& experts, const Operand& x,
                         const Operand& branch) {
  const Operand shared = b.buffer("shared", branch.columns);
  if (!experts.shared_gate) {
    lower_mlp(b, *experts.shared, x, shared);
    b.add(OpKind::kResidualAdd, {branch, shared}, {branch}, ResidualAdd{});
    return;
  }
  const Operand gate = b.buffer("shared_gate", 1, {}, ElementType::kFloat32);
  b.matmul(b.weight(WeightKind::kSharedGate), {}, x, gate);
  lower_mlp(b, *experts.shared, x, shared);
  b.add(OpKind::kGatedAdd, {branch, shared, gate}, {branch});
}

// branch = sum over the experts of each row of weight * expert(x), and the shared expert.
void lower_experts(Builder& b, const ExpertsSpec& experts, const Operand& x,
                   const Operand& branch) {
  const kernels::RouterSpec& router = experts.router;
  const MlpSpec& mlp = experts.expert;
  const Rows pairs{RowCount::kTokens, router.top_k};
  const Operand ids = b.buffer("experts", router.top_k, {}, ElementType::kInt32);
  const Operand weights = b.buffer("expert_weights", router.top_k, {}, ElementType::kFloat32);
  b.add(OpKind::kMoeRoute, {x}, {ids, weights},
        MoeRoute{.router = router,
                 .weight = b.weight(WeightKind::kRouter),
                 .bias = b.weight_if(experts.router_bias, WeightKind::kRouterBias),
                 .correction = b.weight_if(router.correction, WeightKind::kRouterCorrection),
                 .in_features = x.columns,
                 .num_local = experts.num_local(),
                 .first_local = experts.first_local,
                 .num_slots = static_cast<int32_t>(experts.slots.size())});
  const auto matmul = [&](WeightKind matrix, WeightKind bias, const Operand& from,
                          const Operand& to) {
    b.add(OpKind::kMoeMatmul, {from, ids}, {to},
          MoeMatmul{.weight = b.weight(matrix),
                    .bias = b.weight_if(mlp.bias, bias),
                    .num_experts = experts.num_local(),
                    .first_expert = experts.first_local,
                    .num_routed = experts.num_slots(),
                    .in_features = from.columns,
                    .out_features = to.columns});
  };
  const Operand gate_up = b.buffer("pair_gate_up", gate_up_features(mlp), pairs);
  matmul(WeightKind::kExpertGateUp, WeightKind::kExpertGateUpBias, x, gate_up);
  const Operand down = b.buffer("pairs", branch.columns, pairs);
  matmul(WeightKind::kExpertDown, WeightKind::kExpertDownBias, lower_activation(b, mlp, gate_up),
         down);
  b.add(OpKind::kMoeCombine, {down, weights, ids}, {branch},
        MoeCombine{.num_experts = router.num_experts,
                   .top_k = router.top_k,
                   .spread = experts.num_local() < experts.num_slots()});
  if (experts.shared) lower_shared_expert(b, experts, x, branch);
}

// The states in front of a layer, or behind the last one, for a draft head: side by side in one
// buffer.
void lower_kept_states(Builder& b, int32_t index, const Operand& hidden) {
  const std::vector<int32_t>& kept = b.spec().kept_states;
  const auto found = std::ranges::find(kept, index);
  if (found == kept.end()) return;
  const auto count = static_cast<int32_t>(kept.size());
  const auto at = static_cast<int32_t>(found - kept.begin());
  const Operand states = b.buffer(kKeptStates, count * hidden.columns);
  const Operand to = slice(states, at * hidden.columns, hidden.columns);
  const bool last = index == static_cast<int32_t>(b.spec().layers.size());
  if (last && b.spec().keeps_normed_states) {
    b.norm(*b.spec().final_norm, WeightKind::kFinalNorm, hidden, to);
  } else {
    b.add(OpKind::kScale, {hidden}, {to}, Scale{});
  }
}

// Of an encoder the states behind the layer that DeepstackSpec `index` names.
Operand deep_states(Builder& b, size_t index) {
  return b.buffer("deep_states_" + std::to_string(index), b.spec().hidden_size);
}

// Behind a layer: an encoder keeps its states, and a decoder adds a part of pictures' rows to its
// own.
void lower_deepstack(Builder& b, int32_t index, const Operand& hidden) {
  const DecoderSpec& spec = b.spec();
  if (spec.projector && !spec.projector->beside.empty()) {
    const std::vector<int32_t>& beside = spec.projector->beside;
    const auto found = std::ranges::find(beside, index);
    if (found == beside.end()) return;
    b.add(OpKind::kScale, {hidden}, {deep_states(b, static_cast<size_t>(found - beside.begin()))},
          Scale{});
  } else if (spec.projector) {
    const std::vector<DeepstackSpec>& deepstack = spec.projector->deepstack;
    const auto found = std::ranges::find(deepstack, index, &DeepstackSpec::layer);
    if (found == deepstack.end()) return;
    const auto at = static_cast<size_t>(found - deepstack.begin());
    b.add(OpKind::kScale, {hidden}, {deep_states(b, at)}, Scale{});
  }
  const int32_t layer = spec.stage.first_layer + index;
  if (spec.images && layer < spec.images->num_deep_parts)
    b.add(OpKind::kAddSpans, {hidden}, {hidden}, SpanPart{1 + layer});
}

// Which of the layers of cross attention a layer is.
int32_t cross_index(const DecoderSpec& spec, int32_t layer) {
  return static_cast<int32_t>(
      std::count_if(spec.layers.begin(), spec.layers.begin() + layer,
                    [](const LayerSpec& before) { return before.attention.cross; }));
}

// Between an encoder's two stacks of layers: what the first one made is normed, and the tiles have
// embeddings.
void lower_global_begin(Builder& b, int32_t index, const Operand& hidden) {
  const DecoderSpec& spec = b.spec();
  if (!spec.tiles || !spec.tiles->joint || spec.tiles->joint->global_begin != index) return;
  b.set_layer(-1);
  b.norm(spec.tiles->joint->norm, WeightKind::kGlobalNorm, hidden, hidden);
  const Operand tiles = b.buffer("branch", hidden.columns);
  b.add(OpKind::kTilePosition, {}, {tiles}).table = {WeightKind::kTilePosition};
  b.add(OpKind::kResidualAdd, {hidden, tiles}, {hidden}, ResidualAdd{});
}

void lower_layer(Builder& b, int32_t index, const Operand& hidden) {
  lower_global_begin(b, index, hidden);
  const LayerSpec& layer = b.spec().layers[static_cast<size_t>(index)];
  b.set_layer(index);
  lower_kept_states(b, index, hidden);
  if (layer.attention.cross) {
    lower_cross_attention(b, layer, cross_index(b.spec(), index), hidden);
  } else {
    lower_attention(b, layer, hidden);
  }
  const Operand x = b.normed(layer.post_attention_norm, WeightKind::kPostAttentionNorm, hidden);
  const Operand branch = b.buffer("branch", hidden.columns);
  if (layer.experts) {
    lower_experts(b, *layer.experts, x, branch);
  } else {
    lower_mlp(b, layer.mlp, x, branch);
  }
  // A token that sees no picture passes the layer unchanged.
  if (layer.attention.cross) b.add(OpKind::kKeepRows, {branch}, {branch});
  lower_residual(b, layer.mlp_output_norm, WeightKind::kMlpOutputNorm, hidden, branch);
  lower_deepstack(b, index, hidden);
  if (b.spec().control_vectors != nullptr) b.add(OpKind::kAddControl, {hidden}, {hidden});
}

void lower_positions(Builder& b, const Operand& hidden) {
  if (b.spec().learned_positions == 0) return;
  const Operand positions = b.buffer("branch", hidden.columns);
  const bool grid = b.spec().patches && b.spec().patches->position_side > 0;
  const OpKind kind = grid ? OpKind::kGridPosition : OpKind::kEmbedPosition;
  b.add(kind, {}, {positions}).table = {WeightKind::kPositionEmbedding};
  b.add(OpKind::kResidualAdd, {hidden, positions}, {hidden}, ResidualAdd{});
}

Operand lower_embedding(Builder& b) {
  const DecoderSpec& spec = b.spec();
  const Operand hidden = b.buffer("hidden", spec.hidden_size);
  b.add(OpKind::kEmbed, {}, {hidden}).table = {WeightKind::kEmbedding};
  if (spec.embedding_scale != 1.0f) {
    b.add(OpKind::kScale, {hidden}, {hidden},
          Scale{.factor = spec.embedding_scale, .tokens = spec.images.has_value()});
  }
  lower_positions(b, hidden);
  if (!spec.texts) return hidden;
  if (spec.texts->token_types > 0) {
    const Operand types = b.buffer("branch", hidden.columns);
    b.add(OpKind::kEmbedType, {}, {types}).table = {WeightKind::kTypeEmbedding};
    b.add(OpKind::kResidualAdd, {hidden, types}, {hidden}, ResidualAdd{});
  }
  if (spec.texts->norm) b.norm(*spec.texts->norm, WeightKind::kEmbeddingNorm, hidden, hidden);
  return hidden;
}

Operand lower_patches(Builder& b) {
  const DecoderSpec& spec = b.spec();
  const PatchesSpec& patches = *spec.patches;
  const Operand pixels = b.buffer("patches", patches.features());
  const Operand hidden = b.buffer("hidden", spec.hidden_size);
  b.add(OpKind::kPatches, {}, {pixels});
  b.matmul({WeightKind::kPatchEmbedding},
           patches.bias ? WeightId{WeightKind::kPatchEmbeddingBias} : WeightId{}, pixels, hidden);
  if (patches.activation) {
    b.add(OpKind::kActivation, {hidden}, {hidden},
          Activation{.gated = false, .dim = hidden.columns, .gelu = patches.activation});
  }
  if (patches.class_token) {
    b.add(OpKind::kClassEmbed, {hidden}, {hidden}).table = {WeightKind::kClassEmbedding};
  }
  lower_positions(b, hidden);
  if (patches.norm) b.norm(*patches.norm, WeightKind::kEmbeddingNorm, hidden, hidden);
  if (b.spec().tiles && b.spec().tiles->joint) b.add(OpKind::kKeepRows, {hidden}, {hidden});
  return hidden;
}

// Matrices with an activation between two of them. first: the index of the first one's weight.
// result: where the last one's result goes; none: a buffer of its own.
void lower_matrices(Builder& b, const std::vector<PoolingSpec::HeadLayer>& layers, int32_t first,
                    Operand x, const std::optional<Operand>& result) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const PoolingSpec::HeadLayer& layer = layers[i];
    if (i > 0 && !layers[i - 1].linear) {
      b.add(OpKind::kActivation, {x}, {x},
            Activation{.gated = false, .dim = x.columns, .gelu = b.spec().projector->gelu});
    }
    const int32_t index = first + static_cast<int32_t>(i);
    const bool last = i + 1 == layers.size();
    const Operand y = last && result ? *result
                                     : b.buffer("projected_" + std::to_string(i), layer.outputs,
                                                {RowCount::kOutputs});
    b.matmul({WeightKind::kProjector, index},
             layer.bias ? WeightId{WeightKind::kProjectorBias, index} : WeightId{}, x, y);
    x = y;
  }
}

// Of an MTP layer: its state takes the place of the one that it was given.
Operand lower_mtp_input(Builder& b) {
  const DraftSpec& draft = *b.spec().draft;
  const int32_t width = b.spec().hidden_size;
  const Operand hidden = b.buffer("hidden", width);
  const Operand state = draft.own_states ? hidden : b.buffer(kKeptStates, width);
  b.add(OpKind::kInput, {}, {state}, Input{});
  const Operand embedded = b.buffer("embedded", width);
  b.add(OpKind::kInput, {}, {embedded}, Input{Input::Kind::kEmbeddings});
  const Operand x = b.buffer("embedded_and_state", 2 * width);
  const int32_t state_begin = draft.states_first ? 0 : width;
  b.norm(draft.embedding_norm, WeightKind::kEmbeddingNorm, embedded,
         slice(x, width - state_begin, width));
  b.add(OpKind::kNorm, {state}, {slice(x, state_begin, width)},
        Norm{.spec = draft.hidden_norm, .weight = {WeightKind::kHiddenNorm, 0}});
  b.matmul({WeightKind::kDraftInput}, {}, x, hidden);
  return hidden;
}

// Of an encoder the merged rows of what deep_states() holds.
Operand deep_outputs(Builder& b, size_t index) {
  const int32_t columns = b.spec().projector->merge * b.spec().hidden_size;
  return b.buffer("deep_outputs_" + std::to_string(index), columns, {RowCount::kOutputs});
}

// Of merged rows, [row, feature] side by side, what the first matrix reads.
Operand lower_merged(Builder& b, const ProjectorSpec& projector, Operand x) {
  const int32_t width = b.spec().hidden_size, merge = projector.merge;
  if (merge > 1 && projector.how == ProjectorSpec::Merge::kMean) {
    const Operand mean = b.buffer("mean", width, {RowCount::kOutputs});
    b.add(OpKind::kMeanParts, {x}, {mean});
    x = mean;
  } else if (merge > 1 && projector.how == ProjectorSpec::Merge::kByFeature) {
    const Operand turned = b.buffer("by_feature", x.columns, {RowCount::kOutputs});
    // The first copy has the whole buffer for its result, so that none of it is read before.
    for (int32_t row = 0; row < merge; ++row) {
      b.add(OpKind::kHeadCopy, {x}, {slice(turned, row, x.columns - row)},
            HeadCopy{.heads = width,
                     .count = 1,
                     .x_head = 1,
                     .x_begin = row * width,
                     .y_head = merge,
                     .y_begin = 0});
    }
    x = turned;
  }
  if (projector.norm) b.norm(*projector.norm, WeightKind::kProjectorNorm, x, x);
  return x;
}

// The last layer's rows, and behind them of each feature the states of the layers beside it.
Operand lower_beside(Builder& b, const ProjectorSpec& projector, const Operand& last) {
  const int32_t width = last.columns, count = static_cast<int32_t>(projector.beside.size());
  const Operand all = b.buffer("states_beside", (1 + count) * width, {RowCount::kOutputs});
  // The first copy has the whole buffer for its result, so that none of it is read before.
  b.add(OpKind::kHeadCopy, {last}, {all},
        HeadCopy{.heads = 1, .count = width, .x_head = width, .y_head = all.columns});
  for (int32_t i = 0; i < count; ++i) {
    b.add(OpKind::kHeadCopy, {deep_outputs(b, static_cast<size_t>(i))},
          {slice(all, width, count * width)},
          HeadCopy{.heads = width, .count = 1, .x_head = 1, .y_head = count, .y_begin = i});
  }
  return all;
}

// The keys and values of the decoder's layers of cross attention are the rows.
void lower_cross_rows(Builder& b, const ProjectorSpec& projector, const Operand& x) {
  const Operand states =
      b.buffer("cross_states", projector.layers.back().outputs, {RowCount::kOutputs});
  lower_matrices(b, projector.layers, 0, x, states);
  const Operand rows = b.buffer("rows", projector.row_width(), {RowCount::kOutputs});
  for (size_t i = 0; i < projector.cross.size(); ++i) {
    const CrossKvSpec& cross = projector.cross[i];
    const auto index = static_cast<int32_t>(i);
    const Operand kv = slice(rows, 2 * index * cross.kv_dim(), 2 * cross.kv_dim());
    b.matmul({WeightKind::kCrossKv, index}, {}, states, kv);
    const Operand k = slice(kv, 0, cross.kv_dim());
    b.add(OpKind::kNorm, {k}, {k},
          Norm{.spec = cross.norm,
               .weight = {WeightKind::kCrossKNorm, index},
               .groups = cross.num_kv_heads});
  }
}

// From an encoder's rows to the decoder's; parts of a row side by side.
void lower_projector(Builder& b, const Operand& outputs) {
  const ProjectorSpec& projector = *b.spec().projector;
  Operand x = lower_merged(b, projector, outputs);
  if (!projector.beside.empty()) x = lower_beside(b, projector, x);
  if (!projector.cross.empty()) return lower_cross_rows(b, projector, x);
  if (projector.deepstack.empty()) return lower_matrices(b, projector.layers, 0, x, std::nullopt);
  const int32_t width = projector.layers.back().outputs;
  const Operand rows = b.buffer("rows", projector.row_width(), {RowCount::kOutputs});
  lower_matrices(b, projector.layers, 0, x, slice(rows, 0, width));
  auto first = static_cast<int32_t>(projector.layers.size());
  for (size_t i = 0; i < projector.deepstack.size(); ++i) {
    const DeepstackSpec& deep = projector.deepstack[i];
    const auto index = static_cast<int32_t>(i);
    const Operand states = deep_outputs(b, i);
    b.add(OpKind::kNorm, {states}, {states},
          Norm{.spec = deep.norm, .weight = {WeightKind::kDeepstackNorm, index}});
    lower_matrices(b, deep.layers, first, states, slice(rows, (1 + index) * width, width));
    first += static_cast<int32_t>(deep.layers.size());
  }
}

Operand lower_draft_states(Builder& b) {
  const DraftSpec& draft = *b.spec().draft;
  if (draft.is_mtp()) return lower_mtp_input(b);
  const int32_t width = b.spec().hidden_size;
  const Operand hidden = b.buffer("hidden", width);
  if (draft.own_states) {
    b.add(OpKind::kInput, {}, {hidden}, Input{});
    return hidden;
  }
  const auto count = static_cast<int32_t>(draft.target_layers.size());
  const Operand states = b.buffer(kKeptStates, count * width);
  b.add(OpKind::kInput, {}, {states}, Input{});
  b.matmul({WeightKind::kDraftInput}, {}, states, hidden);
  return hidden;
}

// Of a stage behind the first one.
Operand lower_stage_input(Builder& b) {
  const Operand hidden = b.buffer("hidden", b.spec().hidden_size);
  b.add(OpKind::kInput, {}, {hidden}, Input{Input::Kind::kStage});
  return hidden;
}

Operand lower_inputs(Builder& b) {
  if (b.spec().patches) return lower_patches(b);
  if (!b.spec().stage.embeds) return lower_stage_input(b);
  return b.spec().draft ? lower_draft_states(b) : lower_embedding(b);
}

void lower_logits(Builder& b, const Operand& x) {
  const DecoderSpec& spec = b.spec();
  const Operand logits =
      b.buffer("logits", spec.vocab_size, {RowCount::kOutputs}, ElementType::kFloat32);
  b.matmul({WeightKind::kHead}, {}, x, slice(logits, 0, num_logits(spec)));
  if (num_logits(spec) < spec.vocab_size) {
    b.add(OpKind::kFill, {}, {slice(logits, num_logits(spec), spec.vocab_size - num_logits(spec))},
          Fill{kNoLogit});
  }
  b.scale(logits, spec.logits_scale);
  if (spec.logits_softcap > 0) {
    b.add(OpKind::kSoftcap, {logits}, {logits}, Softcap{spec.logits_softcap});
  }
}

// Layers of a head over the pooled row of a text; between two of them stands ReLU.
void lower_pooling(Builder& b, const Operand& x) {
  const PoolingSpec& pooling = *b.spec().pooling;
  const Rows texts{RowCount::kTexts};
  Operand row = b.buffer("pooled", x.columns, texts, ElementType::kFloat32);
  b.add(OpKind::kPool, {x}, {row}, Pool{pooling.kind});
  for (size_t i = 0; i < pooling.head.size(); ++i) {
    const PoolingSpec::HeadLayer& layer = pooling.head[i];
    if (i > 0) b.add(OpKind::kRelu, {row}, {row});
    const auto index = static_cast<int32_t>(i);
    const Operand y =
        b.buffer("pooled_head_" + std::to_string(i), layer.outputs, texts, ElementType::kFloat32);
    b.matmul({WeightKind::kPoolingHead, index},
             layer.bias ? WeightId{WeightKind::kPoolingHeadBias, index} : WeightId{}, row, y);
    row = y;
  }
}

// The rows that something is made of, normed; of an encoder several of them side by side.
Operand lower_outputs(Builder& b, const Operand& hidden) {
  const DecoderSpec& spec = b.spec();
  const int32_t merge = spec.projector ? spec.projector->merge : 1;
  const Operand outputs = b.buffer("outputs", merge * spec.hidden_size, {RowCount::kOutputs});
  const auto norm = [&](const Operand& x, const Operand& out) {
    if (spec.final_norm) b.norm(*spec.final_norm, WeightKind::kFinalNorm, x, out);
  };
  const size_t num_deep = !spec.projector                  ? 0
                          : spec.projector->beside.empty() ? spec.projector->deepstack.size()
                                                           : spec.projector->beside.size();
  if (merge > 1 || num_deep > 0) {
    norm(hidden, hidden);
    std::vector<Operand> from = {hidden}, to = {outputs};
    for (size_t i = 0; i < num_deep; ++i) {
      from.push_back(deep_states(b, i));
      to.push_back(deep_outputs(b, i));
    }
    b.add(OpKind::kSelectRows, std::move(from), std::move(to), MergeRows{merge});
    return outputs;
  }
  const Operand selected =
      spec.draft ? b.buffer(kNextStates, spec.hidden_size, {RowCount::kOutputs}) : outputs;
  if (spec.draft && spec.draft->is_mtp()) {
    norm(hidden, hidden);
    b.add(OpKind::kSelectRows, {hidden}, {selected});
    return selected;
  }
  b.add(OpKind::kSelectRows, {hidden}, {selected});
  norm(selected, outputs);
  return outputs;
}

}  // namespace

Program lower(const DecoderSpec& spec) {
  Builder b(spec);
  const Operand hidden = lower_inputs(b);
  for (int32_t i = 0; i < static_cast<int32_t>(spec.layers.size()); ++i) {
    lower_layer(b, i, hidden);
  }
  b.set_layer(-1);
  lower_kept_states(b, static_cast<int32_t>(spec.layers.size()), hidden);
  if (!spec.stage.samples) {
    b.add(OpKind::kOutput, {hidden}, {});
    return b.take();
  }
  const Operand outputs = lower_outputs(b, hidden);
  if (spec.projector) {
    lower_projector(b, outputs);
  } else if (!spec.texts) {
    spec.pooling ? lower_pooling(b, outputs) : lower_logits(b, outputs);
  }
  return b.take();
}

}  // namespace espalier::program
