#include "models/decoder_weights.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "models/expert_placement.h"
#include "models/joint_tile_tables.h"
#include "models/program/passes.h"
#include "models/weight_layout.h"
#include "models/weight_reader.h"

namespace espalier {
namespace {

using kernels::CpuBackend;
using kernels::PackedMatrix;

// What some encoders have beside a projector: norms of states of several layers, keys and values of
// a decoder's layers, and tiles that see each other.
Status load_parts(WeightReader& read, const DecoderSpec& spec, const WeightLayout& layout,
                  DecoderWeights& out) {
  for (size_t i = 0; i < layout.deepstack_norms.size(); ++i) {
    ESP_RETURN_IF_ERROR(read.norm(spec.projector->deepstack[i].norm, layout.deepstack_norms[i],
                                  out.deepstack_norms.emplace_back()));
  }
  for (size_t i = 0; i < layout.cross_kv.size(); ++i) {
    CrossKvWeights& to = out.cross.emplace_back();
    ESP_RETURN_IF_ERROR(read.matrix(layout.cross_kv[i], to.kv));
    ESP_RETURN_IF_ERROR(
        read.norm(spec.projector->cross[i].norm, layout.cross_k_norms[i], to.k_norm));
  }
  if (!spec.tiles || !spec.tiles->joint) return Status();
  ESP_RETURN_IF_ERROR(read.table(layout.tile_position, out.joint_tiles.tile_position));
  return read.norm(spec.tiles->joint->norm, layout.global_norm, out.joint_tiles.global_norm);
}

std::optional<NormSpec> embedding_norm_of(const DecoderSpec& spec) {
  if (spec.patches) return spec.patches->norm;
  if (spec.texts) return spec.texts->norm;
  if (spec.draft && spec.draft->is_mtp()) return spec.draft->embedding_norm;
  return std::nullopt;
}

class Loader {
 public:
  Loader(CpuBackend& backend, const DecoderSpec& spec, const program::Program& program,
         const WeightTypes& types, WeightSource& source)
      : spec_(spec),
        with_activation_(program::weights_with_activation(program)),
        type_(types.type),
        read_(backend, source, types) {}

  Result<DecoderWeights> load(const WeightLayout& layout) {
    DecoderWeights weights;
    weights.type = type_;
    if (read_.quantizes(layout.embedding)) {
      ESP_RETURN_IF_ERROR(read_.matrix(layout.embedding, weights.quantized_embedding));
    } else {
      ESP_RETURN_IF_ERROR(read_.table(layout.embedding, weights.embedding));
    }
    if (spec_.patches) ESP_RETURN_IF_ERROR(load_patches(layout, weights));
    ESP_RETURN_IF_ERROR(read_.table(layout.position_embedding, weights.position_embedding));
    ESP_RETURN_IF_ERROR(read_.table(layout.type_embedding, weights.type_embedding));
    ESP_RETURN_IF_ERROR(
        read_.norm(embedding_norm_of(spec_), layout.embedding_norm, weights.embedding_norm));
    ESP_RETURN_IF_ERROR(read_.matrix(layout.head, weights.head));
    ESP_RETURN_IF_ERROR(read_.matrix(layout.draft_input, weights.draft_input));
    ESP_RETURN_IF_ERROR(load_head(layout.pooling_head, weights.pooling_head));
    ESP_RETURN_IF_ERROR(load_head(layout.projector, weights.projector));
    if (spec_.projector) {
      ESP_RETURN_IF_ERROR(
          read_.norm(spec_.projector->norm, layout.projector_norm, weights.projector_norm));
      ESP_RETURN_IF_ERROR(load_parts(read_, spec_, layout, weights));
    }
    for (size_t i = 0; i < layout.layers.size(); ++i) {
      ESP_RETURN_IF_ERROR(
          load_layer(static_cast<int32_t>(i), layout.layers[i], weights.layers.emplace_back()));
    }
    ESP_RETURN_IF_ERROR(read_.norm(spec_.final_norm, layout.final_norm, weights.final_norm));
    for (const std::string& name : spec_.stage.tensors_elsewhere) read_.pass_over(name);
    ESP_RETURN_IF_ERROR(read_.finish());
    return weights;
  }

 private:
  Status load_patches(const WeightLayout& layout, DecoderWeights& out) {
    ESP_RETURN_IF_ERROR(read_.matrix(layout.patch_embedding, out.patch_embedding.matrix));
    ESP_RETURN_IF_ERROR(read_.vector(layout.patch_embedding_bias, out.patch_embedding.bias));
    ESP_RETURN_IF_ERROR(read_.vector(layout.class_embedding, out.class_embedding));
    return read_.vector(layout.line_end, out.line_end);
  }

  Status load_head(const std::vector<PoolingLayout>& layout, std::vector<PoolingWeights>& out) {
    for (const PoolingLayout& layer : layout) {
      PoolingWeights& to = out.emplace_back();
      ESP_RETURN_IF_ERROR(read_.matrix(layer.matrix, to.matrix));
      ESP_RETURN_IF_ERROR(read_.vector(layer.bias, to.bias));
    }
    return Status();
  }

  Status load_layer(int32_t index, const LayerLayout& layout, LayerWeights& out) {
    const LayerSpec& spec = spec_.layers[static_cast<size_t>(index)];
    const AttentionSpec& a = spec.attention;
    ESP_RETURN_IF_ERROR(read_.norm(spec.input_norm, layout.input_norm, out.input_norm));
    if (spec_.draft) {
      ESP_RETURN_IF_ERROR(
          read_.norm(spec_.draft->hidden_norm, layout.hidden_norm, out.hidden_norm));
    }
    ESP_RETURN_IF_ERROR(read_.matrix(layout.qkv, out.qkv));
    ESP_RETURN_IF_ERROR(read_.vector(layout.qkv_bias, out.qkv_bias));
    ESP_RETURN_IF_ERROR(read_.norm(a.qk_norm, layout.q_norm, out.q_norm));
    ESP_RETURN_IF_ERROR(read_.norm(a.qk_norm, layout.k_norm, out.k_norm));
    if (a.latent) ESP_RETURN_IF_ERROR(load_latent(a, layout.latent, out.latent));
    ESP_RETURN_IF_ERROR(read_.vector(layout.sinks, out.sinks));
    ESP_RETURN_IF_ERROR(read_.matrix(layout.attention_output, out.attention_output));
    ESP_RETURN_IF_ERROR(read_.vector(layout.attention_output_bias, out.attention_output_bias));
    ESP_RETURN_IF_ERROR(read_.norm(spec.attention_output_norm, layout.attention_output_norm,
                                   out.attention_output_norm));
    ESP_RETURN_IF_ERROR(
        read_.norm(spec.post_attention_norm, layout.post_attention_norm, out.post_attention_norm));
    if (spec.experts) {
      ESP_RETURN_IF_ERROR(load_experts(*spec.experts, index, layout, out));
    } else {
      ESP_RETURN_IF_ERROR(load_mlp({WeightKind::kGateUp, index}, layout.mlp, out.mlp));
    }
    return read_.norm(spec.mlp_output_norm, layout.mlp_output_norm, out.mlp_output_norm);
  }

  Status load_latent(const AttentionSpec& a, const LatentLayout& layout, LatentWeights& out) {
    const NormSpec& norm = a.latent->norm;
    ESP_RETURN_IF_ERROR(read_.matrix(layout.q_a, out.q_a));
    ESP_RETURN_IF_ERROR(read_.norm(norm, layout.q_a_norm, out.q_a_norm));
    ESP_RETURN_IF_ERROR(read_.matrix(layout.q, out.q));
    ESP_RETURN_IF_ERROR(read_.matrix(layout.kv_a, out.kv_a));
    ESP_RETURN_IF_ERROR(read_.norm(norm, layout.kv_a_norm, out.kv_a_norm));
    return load_absorbed(a, layout.kv_b, out);
  }

  // kv_b's rows are for each head what makes its keys from the latent, then what makes its values.
  // The first are carried over to the query's side: q . (W c) = (W^T q) . c.
  Status load_absorbed(const AttentionSpec& a, const MatrixLayout& kv_b, LatentWeights& out) {
    const LatentSpec& latent = *a.latent;
    const int64_t rows = latent.nope_dim + latent.value_dim;
    const std::string& tensor = kv_b.blocks[0].name;
    const int64_t shape[] = {kv_b.out_features(), kv_b.in_features};
    ESP_ASSIGN_OR_RETURN(const LentTensor all, read_.lend(tensor, shape));
    const TensorSlice slice = kv_b.shard.slice(shape[0], shape[1]);
    const LentTensor lent = skip_elements(all, slice.first_row * latent.rank);
    for (int64_t head = 0; head < a.num_heads; ++head) {
      const LentTensor of_head = skip_elements(lent, head * rows * latent.rank);
      ESP_RETURN_IF_ERROR(read_.pack_transposed(of_head, latent.nope_dim, latent.rank,
                                                out.query_to_latent.emplace_back()));
      const LentTensor values = skip_elements(of_head, int64_t{latent.nope_dim} * latent.rank);
      ESP_RETURN_IF_ERROR(
          read_.pack(values, latent.value_dim, latent.rank, out.latent_to_value.emplace_back()));
    }
    read_.give_back(tensor);
    return Status();
  }

  // id: of the matrix of gate and up.
  Status load_mlp(WeightId id, const MlpLayout& layout, MlpWeights& out) {
    const bool fused = std::ranges::find(with_activation_, id) != with_activation_.end();
    ESP_RETURN_IF_ERROR(read_.matrix(layout.gate_up, out.gate_up, fused));
    ESP_RETURN_IF_ERROR(read_.vector(layout.gate_up_bias, out.gate_up_bias));
    ESP_RETURN_IF_ERROR(read_.matrix(layout.down, out.down));
    return read_.vector(layout.down_bias, out.down_bias);
  }

  Status load_experts(const ExpertsSpec& spec, int32_t index, const LayerLayout& layout,
                      LayerWeights& out) {
    const ExpertsLayout& experts = layout.experts;
    ESP_RETURN_IF_ERROR(read_.matrix(experts.router, out.experts.router));
    ESP_RETURN_IF_ERROR(read_.vector(experts.router_bias, out.experts.router_bias));
    ESP_RETURN_IF_ERROR(read_.vector(experts.router_correction, out.experts.router_correction));
    for (const MlpLayout& expert : experts.experts) {
      ESP_RETURN_IF_ERROR(
          load_mlp({WeightKind::kExpertGateUp, index}, expert, out.experts.experts.emplace_back()));
    }
    for (const MlpLayout& expert : experts.elsewhere) read_.pass_over(expert);
    if (!spec.slots.empty())
      out.experts.replicas = replica_table(spec.router.num_experts, spec.slots);
    if (experts.experts.empty()) {
      ESP_RETURN_IF_ERROR(load_fused_experts(spec, experts, out.experts));
    }
    if (spec.shared)
      ESP_RETURN_IF_ERROR(load_mlp({WeightKind::kGateUp, index}, layout.mlp, out.mlp));
    return read_.matrix(experts.shared_gate, out.experts.shared_gate);
  }

  Status load_fused_experts(const ExpertsSpec& spec, const ExpertsLayout& layout,
                            ExpertsWeights& out) {
    const int64_t count = spec.router.num_experts, ffn = layout.fused_features;
    const int64_t hidden = spec_.hidden_size;
    std::vector<int64_t> here;
    for (int32_t i = 0; i < spec.num_local(); ++i)
      here.push_back(spec.expert_of(spec.first_local + i));
    const ExpertRows gate_up_rows{.count = count,
                                  .rows = 2 * ffn,
                                  .columns = hidden,
                                  .interleaved = true,
                                  .shard = layout.fused_gate_up_shard,
                                  .experts = here};
    const ExpertRows down_rows{.count = count,
                               .rows = hidden,
                               .columns = ffn,
                               .shard = layout.fused_down_shard,
                               .experts = here};
    const bool mxfp4 = spec_.names.experts == WeightNames::Experts::kFusedMxfp4;
    const auto read = [&](const std::string& tensor, const ExpertRows& shape,
                          std::vector<PackedMatrix>& to) {
      return mxfp4 ? read_.mxfp4_experts(tensor, shape, to) : read_.experts(tensor, shape, to);
    };
    std::vector<PackedMatrix> gate_up, down;
    ESP_RETURN_IF_ERROR(read(layout.fused_gate_up, gate_up_rows, gate_up));
    ESP_RETURN_IF_ERROR(read(layout.fused_down, down_rows, down));
    std::vector<std::vector<float>> gate_up_bias, down_bias;
    ESP_RETURN_IF_ERROR(
        read_.expert_biases(layout.fused_gate_up + "_bias", gate_up_rows, gate_up_bias));
    ESP_RETURN_IF_ERROR(read_.expert_biases(layout.fused_down + "_bias", down_rows, down_bias));
    for (size_t i = 0; i < here.size(); ++i) {
      out.experts.push_back({std::move(gate_up[i]), std::move(gate_up_bias[i]), std::move(down[i]),
                             std::move(down_bias[i])});
    }
    return Status();
  }

  const DecoderSpec& spec_;
  const std::vector<WeightId> with_activation_;
  const DType type_;
  WeightReader read_;
};

int64_t bytes_of(const std::vector<float>& values) {
  return static_cast<int64_t>(values.size() * sizeof(float));
}
int64_t bytes_of(const NormWeights& norm) { return bytes_of(norm.weight) + bytes_of(norm.bias); }
int64_t bytes_of(const PackedMatrix& matrix) { return static_cast<int64_t>(matrix.size_bytes()); }
int64_t bytes_of(const MlpWeights& mlp) {
  return bytes_of(mlp.gate_up) + bytes_of(mlp.gate_up_bias) + bytes_of(mlp.down) +
         bytes_of(mlp.down_bias);
}
int64_t bytes_of(const PoolingWeights& layer) {
  return bytes_of(layer.matrix) + bytes_of(layer.bias);
}
int64_t bytes_of(const CrossKvWeights& cross) {
  return bytes_of(cross.kv) + bytes_of(cross.k_norm);
}
int64_t bytes_of(const LayerWeights& layer);
template <typename T>
int64_t bytes_of_all(const std::vector<T>& parts) {
  int64_t total = 0;
  for (const T& part : parts) total += bytes_of(part);
  return total;
}
int64_t bytes_of(const LatentWeights& latent) {
  return bytes_of(latent.q_a) + bytes_of(latent.q_a_norm) + bytes_of(latent.q) +
         bytes_of(latent.kv_a) + bytes_of(latent.kv_a_norm) + bytes_of_all(latent.query_to_latent) +
         bytes_of_all(latent.latent_to_value);
}
int64_t bytes_of(const ExpertsWeights& experts) {
  return bytes_of(experts.router) + bytes_of(experts.router_bias) +
         bytes_of(experts.router_correction) + bytes_of_all(experts.experts) +
         bytes_of(experts.shared_gate);
}
int64_t bytes_of(const LayerWeights& layer) {
  return bytes_of(layer.input_norm) + bytes_of(layer.hidden_norm) + bytes_of(layer.qkv) +
         bytes_of(layer.qkv_bias) + bytes_of(layer.q_norm) + bytes_of(layer.k_norm) +
         bytes_of(layer.sinks) + bytes_of(layer.latent) + bytes_of(layer.attention_output) +
         bytes_of(layer.attention_output_bias) + bytes_of(layer.attention_output_norm) +
         bytes_of(layer.post_attention_norm) + bytes_of(layer.mlp) + bytes_of(layer.experts) +
         bytes_of(layer.mlp_output_norm);
}

}  // namespace

int64_t DecoderWeights::size_bytes() const {
  return static_cast<int64_t>(embedding.size_bytes() + position_embedding.size_bytes() +
                              type_embedding.size_bytes()) +
         bytes_of(quantized_embedding) + bytes_of(head) + bytes_of(draft_input) +
         bytes_of_all(pooling_head) + bytes_of_all(projector) + bytes_of(patch_embedding) +
         bytes_of(class_embedding) + bytes_of(line_end) + bytes_of(embedding_norm) +
         bytes_of_all(deepstack_norms) + bytes_of(projector_norm) + bytes_of_all(cross) +
         bytes_of(joint_tiles.global_norm) +
         static_cast<int64_t>(joint_tiles.tile_position.size_bytes()) + bytes_of(final_norm) +
         bytes_of_all(layers);
}

const PackedMatrix& DecoderWeights::matrix(WeightId id) const {
  switch (id.kind) {
    case WeightKind::kHead:
      return target_head != nullptr ? *target_head : head;
    case WeightKind::kPoolingHead:
      return pooling_head[static_cast<size_t>(id.index)].matrix;
    case WeightKind::kProjector:
      return projector[static_cast<size_t>(id.index)].matrix;
    case WeightKind::kPatchEmbedding:
      return patch_embedding.matrix;
    case WeightKind::kCrossKv:
      return cross[static_cast<size_t>(id.index)].kv;
    case WeightKind::kDraftInput:
      return draft_input;
    case WeightKind::kQkv:
      return layer(id).qkv;
    case WeightKind::kLatentQA:
      return layer(id).latent.q_a;
    case WeightKind::kLatentQ:
      return layer(id).latent.q;
    case WeightKind::kLatentKvA:
      return layer(id).latent.kv_a;
    case WeightKind::kAttentionOutput:
      return layer(id).attention_output;
    case WeightKind::kRouter:
      return layer(id).experts.router;
    case WeightKind::kSharedGate:
      return layer(id).experts.shared_gate;
    case WeightKind::kGateUp:
      return layer(id).mlp.gate_up;
    case WeightKind::kDown:
      return layer(id).mlp.down;
    default:
      ESP_CHECK(false, "{} is no matrix of the CPU's", weight_name(id.kind));
  }
  return head;
}

const NormWeights& DecoderWeights::norm(WeightId id) const {
  switch (id.kind) {
    case WeightKind::kInputNorm:
      return layer(id).input_norm;
    case WeightKind::kHiddenNorm:
      return layer(id).hidden_norm;
    case WeightKind::kQNorm:
      return layer(id).q_norm;
    case WeightKind::kKNorm:
      return layer(id).k_norm;
    case WeightKind::kLatentQANorm:
      return layer(id).latent.q_a_norm;
    case WeightKind::kLatentKvANorm:
      return layer(id).latent.kv_a_norm;
    case WeightKind::kAttentionOutputNorm:
      return layer(id).attention_output_norm;
    case WeightKind::kPostAttentionNorm:
      return layer(id).post_attention_norm;
    case WeightKind::kMlpOutputNorm:
      return layer(id).mlp_output_norm;
    case WeightKind::kFinalNorm:
      return final_norm;
    case WeightKind::kEmbeddingNorm:
      return embedding_norm;
    case WeightKind::kDeepstackNorm:
      return deepstack_norms[static_cast<size_t>(id.index)];
    case WeightKind::kProjectorNorm:
      return projector_norm;
    case WeightKind::kCrossKNorm:
      return cross[static_cast<size_t>(id.index)].k_norm;
    case WeightKind::kGlobalNorm:
      return joint_tiles.global_norm;
    default:
      ESP_CHECK(false, "{} is no norm", weight_name(id.kind));
  }
  return final_norm;
}

const float* DecoderWeights::vector(WeightId id) const {
  switch (id.kind) {
    case WeightKind::kNone:
      return nullptr;
    case WeightKind::kPoolingHeadBias:
      return or_null(pooling_head[static_cast<size_t>(id.index)].bias);
    case WeightKind::kProjectorBias:
      return or_null(projector[static_cast<size_t>(id.index)].bias);
    case WeightKind::kPatchEmbeddingBias:
      return or_null(patch_embedding.bias);
    case WeightKind::kClassEmbedding:
      return or_null(class_embedding);
    case WeightKind::kLineEnd:
      return or_null(line_end);
    case WeightKind::kQkvBias:
      return or_null(layer(id).qkv_bias);
    case WeightKind::kSinks:
      return or_null(layer(id).sinks);
    case WeightKind::kAttentionOutputBias:
      return or_null(layer(id).attention_output_bias);
    case WeightKind::kRouterBias:
      return or_null(layer(id).experts.router_bias);
    case WeightKind::kRouterCorrection:
      return or_null(layer(id).experts.router_correction);
    case WeightKind::kGateUpBias:
      return or_null(layer(id).mlp.gate_up_bias);
    case WeightKind::kDownBias:
      return or_null(layer(id).mlp.down_bias);
    default:
      ESP_CHECK(false, "{} is no vector", weight_name(id.kind));
  }
  return nullptr;
}

std::span<const PackedMatrix> DecoderWeights::head_matrices(WeightId id) const {
  const LatentWeights& latent = layer(id).latent;
  return id.kind == WeightKind::kQueryToLatent ? latent.query_to_latent : latent.latent_to_value;
}

Result<DecoderWeights> load_weights(CpuBackend& backend, const DecoderSpec& spec,
                                    const WeightLayout& layout, const program::Program& program,
                                    const WeightTypes& types, WeightSource& source) {
  if (!spec.tiles || !spec.tiles->joint)
    return Loader(backend, spec, program, types, source).load(layout);
  JointTileTables tables(source, spec);
  return Loader(backend, spec, program, types, tables).load(layout);
}

}  // namespace espalier
