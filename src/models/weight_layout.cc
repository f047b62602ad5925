#include "models/weight_layout.h"

#include <optional>
#include <utility>

namespace espalier {
namespace {

int64_t rows_of(const std::vector<WeightBlock>& blocks) {
  int64_t rows = 0;
  for (const WeightBlock& block : blocks) rows += block.rows;
  return rows;
}

VectorLayout vector_of(std::string name, int64_t size) { return {{{std::move(name), size}}}; }

// Parts of a layer, whose names are patterns.
class Layer {
 public:
  Layer(const DecoderSpec& spec, int32_t index) : spec_(spec), names_(spec.names), index_(index) {}

  LayerLayout layout() const {
    const LayerSpec& layer = spec_.layers[static_cast<size_t>(index_)];
    const AttentionSpec& a = layer.attention;
    const int64_t hidden = spec_.hidden_size;
    LayerLayout out;
    out.input_norm = norm(layer.input_norm, names_.input_norm, hidden);
    if (spec_.draft) out.hidden_norm = norm(spec_.draft->hidden_norm, names_.hidden_norm, hidden);
    a.cross ? add_cross(a, out) : a.latent ? add_latent(a, out) : add_qkv(a, out);
    if (a.sinks) out.sinks = vector_of(name(names_.sinks), a.num_heads);
    out.attention_output = matrix(
        {{name(a.cross ? names_.cross_output : names_.attention_output), hidden}}, a.output_dim());
    if (a.output_bias) out.attention_output_bias = biases(out.attention_output);
    out.attention_output_norm =
        norm(layer.attention_output_norm, names_.attention_output_norm, hidden);
    out.post_attention_norm = norm(layer.post_attention_norm, names_.post_attention_norm, hidden);
    if (layer.experts) {
      add_experts(*layer.experts, out);
    } else {
      out.mlp = mlp(layer.mlp, name(names_.gate), name(names_.up), name(names_.down),
                    names_.gate_up.empty() ? "" : name(names_.gate_up));
    }
    out.mlp_output_norm = norm(layer.mlp_output_norm, names_.mlp_output_norm, hidden);
    return out;
  }

 private:
  int32_t index_in_model() const { return spec_.stage.first_layer + index_; }
  std::string name(const std::string& pattern) const {
    const WeightNames::LaterLayers& later = names_.later;
    if (later.begin == 0 || index_in_model() < later.begin || !pattern.starts_with(later.prefix))
      return layer_name(pattern, index_in_model());
    return layer_name(later.other + pattern.substr(later.prefix.size()),
                      index_in_model() - later.begin);
  }

  VectorLayout norm(const std::optional<NormSpec>& spec, const std::string& pattern,
                    int64_t size) const {
    if (!spec) return {};
    if (spec->kind == NormSpec::Kind::kScale) return vector_of(name(pattern), size);
    if (spec->kind == NormSpec::Kind::kGate) return vector_of(name(pattern), 1);
    VectorLayout out = vector_of(name(pattern) + ".weight", size);
    if (spec->kind == NormSpec::Kind::kLayer) out.blocks.push_back({name(pattern) + ".bias", size});
    return out;
  }

  // Blocks by their names without ".weight"; of one tensor where `fused` names it.
  MatrixLayout matrix(std::vector<WeightBlock> blocks, int64_t in_features,
                      const std::string& fused = {}) const {
    for (WeightBlock& block : blocks) block.name = (fused.empty() ? block.name : fused) + ".weight";
    return {std::move(blocks), in_features, !fused.empty(), names_.transposed};
  }

  // The ".bias" beside each tensor of a matrix.
  VectorLayout biases(const MatrixLayout& matrix) const {
    const auto beside = [](const std::string& weight) {
      return weight.substr(0, weight.size() - std::string_view(".weight").size()) + ".bias";
    };
    if (matrix.fused) return vector_of(beside(matrix.blocks[0].name), matrix.out_features());
    VectorLayout out;
    for (const WeightBlock& block : matrix.blocks) {
      out.blocks.push_back({beside(block.name), block.rows});
    }
    return out;
  }

  void add_qkv(const AttentionSpec& a, LayerLayout& out) const {
    out.qkv = matrix(
        {{name(names_.q), a.q_dim()}, {name(names_.k), a.kv_dim()}, {name(names_.v), a.kv_dim()}},
        (spec_.draft && !spec_.draft->is_mtp() ? 2 : 1) * spec_.hidden_size,
        names_.qkv.empty() ? "" : name(names_.qkv));
    if (a.qkv_bias) out.qkv_bias = biases(out.qkv);
    const bool all = a.qk_norm_scope == AttentionSpec::NormScope::kAll;
    out.q_norm = norm(a.qk_norm, names_.q_norm, all ? a.q_dim() : a.head_dim);
    out.k_norm = norm(a.qk_norm, names_.k_norm, all ? a.kv_dim() : a.head_dim);
  }

  // Keys and values are the encoder's.
  void add_cross(const AttentionSpec& a, LayerLayout& out) const {
    out.qkv = matrix({{name(names_.cross_q), a.q_dim()}}, spec_.hidden_size);
    out.q_norm = norm(a.qk_norm, names_.cross_q_norm, a.head_dim);
  }

  void add_latent(const AttentionSpec& a, LayerLayout& out) const {
    const LatentSpec& latent = *a.latent;
    const int64_t hidden = spec_.hidden_size, heads = a.num_heads;
    const int64_t q_rows = heads * (latent.nope_dim + latent.rope_dim);
    LatentLayout& l = out.latent;
    if (latent.query_rank > 0) {
      l.q_a = matrix({{name(names_.q_a), latent.query_rank}}, hidden);
      l.q_a_norm = norm(latent.norm, names_.q_a_norm, latent.query_rank);
      l.q = matrix({{name(names_.q_b), q_rows}}, latent.query_rank);
    } else {
      l.q = matrix({{name(names_.q), q_rows}}, hidden);
    }
    l.kv_a = matrix({{name(names_.kv_a), latent.rank + latent.rope_dim}}, hidden);
    l.kv_a_norm = norm(latent.norm, names_.kv_a_norm, latent.rank);
    l.kv_b =
        matrix({{name(names_.kv_b), heads * (latent.nope_dim + latent.value_dim)}}, latent.rank);
  }

  MlpLayout mlp(const MlpSpec& spec, const std::string& gate, const std::string& up,
                const std::string& down, const std::string& fused) const {
    const int64_t ffn = spec.intermediate_size;
    std::vector<WeightBlock> blocks = {{gate, ffn}, {up, ffn}};
    if (!spec.gated) blocks.erase(blocks.begin());
    MlpLayout out;
    out.gate_up = matrix(std::move(blocks), spec_.hidden_size, fused);
    out.down = matrix({{down, spec_.hidden_size}}, ffn);
    if (!spec.bias) return out;
    out.gate_up_bias = biases(out.gate_up);
    out.down_bias = biases(out.down);
    return out;
  }

  void add_experts(const ExpertsSpec& spec, LayerLayout& out) const {
    ExpertsLayout& e = out.experts;
    const int32_t count = spec.router.num_experts;
    e.router = matrix({{name(names_.router), count}}, spec_.hidden_size);
    e.router.precision = Precision::kFloat32;
    if (spec.router_bias) e.router_bias = biases(e.router);
    if (spec.router.correction) {
      e.router_correction = vector_of(name(names_.router_correction), count);
    }
    if (names_.experts == WeightNames::Experts::kEach) {
      for (int32_t i = 0; i < count; ++i) {
        const auto of = [&](const std::string& pattern) {
          return expert_name(pattern, index_in_model(), i);
        };
        e.experts.push_back(mlp(spec.expert, of(names_.expert_gate), of(names_.expert_up),
                                of(names_.expert_down), ""));
      }
    } else {
      e.fused_gate_up = name(names_.fused_gate_up);
      e.fused_down = name(names_.fused_down);
      e.fused_features = spec.expert.intermediate_size;
    }
    if (spec.shared) {
      const std::string at = name(names_.shared_expert);
      out.mlp = mlp(*spec.shared, at + ".gate_proj", at + ".up_proj", at + ".down_proj", "");
    }
    if (spec.shared_gate) {
      e.shared_gate = matrix({{name(names_.shared_gate), 1}}, spec_.hidden_size);
      e.shared_gate.precision = Precision::kUnrounded;
    }
  }

  const DecoderSpec& spec_;
  const WeightNames& names_;
  const int32_t index_;
};

VectorLayout whole_norm(const NormSpec& spec, const std::string& name, int64_t size) {
  VectorLayout out = vector_of(name + ".weight", size);
  if (spec.kind == NormSpec::Kind::kLayer) out.blocks.push_back({name + ".bias", size});
  return out;
}

void add_patches(const DecoderSpec& spec, WeightLayout& out) {
  const PatchesSpec& patches = *spec.patches;
  const WeightNames& names = spec.names;
  out.patch_embedding = {
      .blocks = {{names.patch_embedding + ".weight", spec.hidden_size}},
      .in_features = patches.features(),
      .precision = Precision::kUnrounded,
      .stored_shape = {spec.hidden_size, patches.channels, patches.patch_size, patches.patch_size}};
  if (patches.sound) {
    out.patch_embedding.stored_shape = {spec.hidden_size, patches.channels, patches.frames};
  } else if (patches.frames > 1) {
    std::vector<int64_t>& shape = out.patch_embedding.stored_shape;
    shape.insert(shape.begin() + 2, patches.frames);
  }
  if (patches.bias) {
    out.patch_embedding_bias = vector_of(names.patch_embedding + ".bias", spec.hidden_size);
  }
  if (patches.class_token) {
    out.class_embedding = vector_of(names.class_embedding, spec.hidden_size);
  }
  if (patches.norm) {
    out.embedding_norm = whole_norm(*patches.norm, names.embedding_norm, spec.hidden_size);
  }
}

std::vector<PoolingLayout> head_layout(const std::vector<PoolingSpec::HeadLayer>& layers,
                                       int64_t in_features, Precision precision) {
  std::vector<PoolingLayout> out;
  for (const PoolingSpec::HeadLayer& layer : layers) {
    PoolingLayout& to = out.emplace_back();
    to.matrix = {
        .blocks = {{layer.transposed ? layer.name : layer.name + ".weight", layer.outputs}},
        .in_features = in_features,
        .transposed = layer.transposed,
        .precision = precision};
    if (layer.bias) to.bias = vector_of(layer.name + ".bias", layer.outputs);
    in_features = layer.outputs;
  }
  return out;
}

void add_projector(const DecoderSpec& spec, WeightLayout& out) {
  const ProjectorSpec& projector = *spec.projector;
  const int64_t merged = int64_t{projector.merged_width()} * spec.hidden_size;
  const auto beside = static_cast<int64_t>(1 + projector.beside.size());
  out.projector = head_layout(projector.layers, beside * merged, Precision::kWeights);
  if (projector.norm) out.projector_norm = whole_norm(*projector.norm, projector.norm_name, merged);
  for (const DeepstackSpec& deep : projector.deepstack) {
    for (PoolingLayout& layer : head_layout(deep.layers, merged, Precision::kWeights))
      out.projector.push_back(std::move(layer));
    out.deepstack_norms.push_back(whole_norm(deep.norm, deep.norm_name, merged));
  }
  for (const CrossKvSpec& cross : projector.cross) {
    out.cross_kv.push_back(
        {.blocks = {{cross.k + ".weight", cross.kv_dim()}, {cross.v + ".weight", cross.kv_dim()}},
         .in_features = projector.layers.back().outputs});
    out.cross_k_norms.push_back(whole_norm(cross.norm, cross.k_norm, cross.head_dim));
  }
}

// Tables that the checkpoint has in parts (joint_tile_tables.h).
void add_joint_tiles(const DecoderSpec& spec, WeightLayout& out) {
  const JointTilesSpec& joint = *spec.tiles->joint;
  out.position_embedding.blocks[0].name = joint.positions;
  out.tile_position = {.blocks = {{joint.tiles_after, spec.tiles->num_positions()}},
                       .in_features = spec.hidden_size,
                       .precision = Precision::kUnrounded};
  out.global_norm = whole_norm(joint.norm, joint.norm_name, spec.hidden_size);
}

}  // namespace

TensorSlice Shard::slice(int64_t all_rows, int64_t all_columns) const {
  TensorSlice out{.rows = rows(all_rows), .columns = columns(all_columns)};
  if (axis == Axis::kRows) out.first_row = rank * out.rows;
  if (axis == Axis::kColumns) out.first_column = rank * out.columns;
  return out;
}

TensorSlice MatrixLayout::slice_of(const WeightBlock& block) const {
  Shard of_block = shard;
  if (block.parts > 0) {
    of_block.rank = static_cast<int32_t>(int64_t{shard.rank} * block.parts / shard.num_ranks);
    of_block.num_ranks = block.parts;
  }
  return of_block.slice(block.rows, in_features);
}

int64_t MatrixLayout::local_rows() const {
  int64_t rows = 0;
  for (const WeightBlock& block : blocks) rows += slice_of(block).rows;
  return rows;
}

Status check_shard(const MatrixLayout& layout) {
  const Shard& shard = layout.shard;
  const bool by_rows = shard.axis == Shard::Axis::kRows;
  for (const WeightBlock& block : layout.blocks) {
    const int64_t size = by_rows ? block.rows : layout.in_features;
    if (size % (block.parts > 0 ? block.parts : shard.num_ranks) == 0) continue;
    return invalid_argument("'{}': {} {} are not divided by {} ranks", block.name, size,
                            by_rows ? "rows" : "columns", shard.num_ranks);
  }
  return Status();
}

TensorSlice stored_slice(const MatrixLayout& layout, size_t index) {
  TensorSlice out = layout.slice_of(layout.blocks[index]);
  if (layout.fused) {
    for (size_t i = 0; i < index; ++i) out.first_row += layout.blocks[i].rows;
  }
  if (layout.transposed) {
    std::swap(out.first_row, out.first_column);
    std::swap(out.rows, out.columns);
  }
  return out;
}

int64_t MatrixLayout::out_features() const { return rows_of(blocks); }
int64_t VectorLayout::size() const { return rows_of(blocks); }
int64_t VectorLayout::local_size() const {
  if (parts.empty()) return size();
  int64_t total = 0;
  for (const Part& part : parts) total += part.count;
  return total;
}

namespace {

const MatrixLayout* find_layer_matrix(const LayerLayout& layer, WeightKind kind) {
  const std::vector<MlpLayout>& experts = layer.experts.experts;
  switch (kind) {
    case WeightKind::kQkv:
      return &layer.qkv;
    case WeightKind::kLatentQA:
      return &layer.latent.q_a;
    case WeightKind::kLatentQ:
      return &layer.latent.q;
    case WeightKind::kLatentKvA:
      return &layer.latent.kv_a;
    case WeightKind::kAttentionOutput:
      return &layer.attention_output;
    case WeightKind::kRouter:
      return &layer.experts.router;
    case WeightKind::kSharedGate:
      return &layer.experts.shared_gate;
    case WeightKind::kGateUp:
      return &layer.mlp.gate_up;
    case WeightKind::kDown:
      return &layer.mlp.down;
    case WeightKind::kExpertGateUp:
      return experts.empty() ? nullptr : &experts[0].gate_up;
    case WeightKind::kExpertDown:
      return experts.empty() ? nullptr : &experts[0].down;
    default:
      return nullptr;
  }
}

}  // namespace

const MatrixLayout* find_matrix(const WeightLayout& layout, WeightId id) {
  switch (id.kind) {
    case WeightKind::kEmbedding:
      return layout.embedding.empty() ? &layout.head : &layout.embedding;
    case WeightKind::kPositionEmbedding:
      return &layout.position_embedding;
    case WeightKind::kTypeEmbedding:
      return &layout.type_embedding;
    case WeightKind::kHead:
      return &layout.head;
    case WeightKind::kPoolingHead:
      return &layout.pooling_head[static_cast<size_t>(id.index)].matrix;
    case WeightKind::kProjector:
      return &layout.projector[static_cast<size_t>(id.index)].matrix;
    case WeightKind::kPatchEmbedding:
      return &layout.patch_embedding;
    case WeightKind::kTilePosition:
      return &layout.tile_position;
    case WeightKind::kCrossKv:
      return &layout.cross_kv[static_cast<size_t>(id.index)];
    case WeightKind::kDraftInput:
      return &layout.draft_input;
    default:
      break;
  }
  if (id.index < 0 || static_cast<size_t>(id.index) >= layout.layers.size()) return nullptr;
  return find_layer_matrix(layout.layers[static_cast<size_t>(id.index)], id.kind);
}

std::vector<std::string> tensor_names(const MlpLayout& mlp) {
  std::vector<std::string> out;
  for (const auto* blocks :
       {&mlp.gate_up.blocks, &mlp.gate_up_bias.blocks, &mlp.down.blocks, &mlp.down_bias.blocks}) {
    for (const WeightBlock& block : *blocks) out.push_back(block.name);
  }
  return out;
}

WeightLayout weight_layout(const DecoderSpec& spec) {
  const auto table = [&](const std::string& name, int64_t rows) {
    return MatrixLayout{.blocks = {{name + ".weight", rows}},
                        .in_features = spec.hidden_size,
                        .precision = Precision::kVocabulary};
  };
  WeightLayout out;
  const WeightNames& names = spec.names;
  if (spec.patches) {
    add_patches(spec, out);
  } else if (spec.draft) {
    const bool mtp = spec.draft->is_mtp();
    const int64_t inputs = mtp ? 2 : std::ssize(spec.draft->target_layers);
    out.draft_input = {.blocks = {{names.draft_input + ".weight", spec.hidden_size}},
                       .in_features = inputs * spec.hidden_size};
    if (mtp)
      out.embedding_norm =
          whole_norm(spec.draft->embedding_norm, names.embedding_norm, spec.hidden_size);
  } else if (!spec.tied_embeddings && spec.stage.embeds) {
    out.embedding = table(names.embedding, spec.vocab_size);
  }
  if (spec.projector) add_projector(spec, out);
  if (spec.tiles && !spec.tiles->in_sequence) {
    out.line_end = vector_of(spec.tiles->line_end, spec.projector->layers.back().outputs);
  }
  const bool has_head = (spec.stage.samples || (spec.tied_embeddings && spec.stage.embeds)) &&
                        !(spec.draft && spec.draft->is_mtp() && !spec.draft->own_head);
  if (spec.pooling && spec.stage.samples) {
    out.pooling_head = head_layout(spec.pooling->head, spec.hidden_size, Precision::kFloat32);
  } else if (!spec.patches && has_head) {
    out.head = table(spec.tied_embeddings ? names.embedding : names.head, num_logits(spec));
  }
  if (spec.learned_positions > 0 && spec.stage.embeds) {
    out.position_embedding = table(names.position_embedding, spec.learned_positions);
    out.position_embedding.precision = Precision::kUnrounded;
    if (names.whole_positions) out.position_embedding.blocks[0].name = names.position_embedding;
  }
  if (spec.tiles && spec.tiles->joint) add_joint_tiles(spec, out);
  if (spec.texts && spec.texts->token_types > 0) {
    out.type_embedding = table(names.type_embedding, spec.texts->token_types);
    out.type_embedding.precision = Precision::kUnrounded;
  }
  if (spec.texts && spec.texts->norm)
    out.embedding_norm = whole_norm(*spec.texts->norm, names.embedding_norm, spec.hidden_size);
  for (int32_t i = 0; i < static_cast<int32_t>(spec.layers.size()); ++i) {
    out.layers.push_back(Layer(spec, i).layout());
  }
  if (spec.final_norm && spec.stage.samples) {
    out.final_norm = whole_norm(*spec.final_norm, names.final_norm, spec.hidden_size);
  }
  return out;
}

}  // namespace espalier
