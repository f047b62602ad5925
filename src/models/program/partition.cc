#include "models/program/partition.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/program/lower.h"
#include "models/program/rank_sums.h"

namespace espalier::program {
namespace {

Status check_divides(int32_t all, int32_t num_ranks, const std::string& what) {
  if (all % num_ranks == 0) return Status();
  return invalid_argument("tp_size is {}, but the model has {} {}, which it does not divide evenly",
                          num_ranks, all, what);
}

Status check_attention(const AttentionSpec& a, int32_t num_ranks) {
  ESP_RETURN_IF_ERROR(check_divides(a.num_heads, num_ranks, "heads"));
  if (a.latent) return Status();  // the latents belong to all heads: every rank computes them
  const bool gathers = a.qk_norm && a.qk_norm_scope == AttentionSpec::NormScope::kAll;
  if (num_ranks % a.num_kv_heads == 0 && !gathers) return Status();  // several ranks share a head
  return check_divides(a.num_kv_heads, num_ranks, "heads of keys and values");
}

// Whether ranks share what they write to pages: latents, and heads of keys and values where there
// are fewer than ranks.
bool shares_pages(const AttentionSpec& a, const Ranks& ranks) {
  return a.latent || a.num_kv_heads < ranks.num_ranks;
}
// Of the ranks that share it and have one pool, the first one writes.
bool writes_pages(const AttentionSpec& a, const Ranks& ranks, int32_t ranks_per_pool) {
  const int32_t sharing = ranks.num_ranks / a.num_kv_heads;
  const int32_t first = ranks.rank / sharing * sharing;
  return ranks.rank == std::max(first, ranks.rank / ranks_per_pool * ranks_per_pool);
}

Status check_experts(const ExpertsSpec& experts, int32_t num_ranks, int32_t num_groups) {
  if (experts.slots.empty() && experts.router.num_experts % num_groups != 0)
    return invalid_argument(
        "ep_size is {}, but the model has {} experts in a layer, which it does not divide evenly",
        num_groups, experts.router.num_experts);
  const int32_t slices = num_ranks / num_groups, features = experts.expert.intermediate_size;
  if (num_groups == 1) return check_divides(features, slices, "features in an expert");
  if (features % slices == 0) return Status();
  return invalid_argument(
      "tp_size / ep_size is {}, but an expert has {} features, which it does not divide evenly",
      slices, features);
}

// num_groups: of ranks that have whole experts.
Status check_layer(const LayerSpec& layer, int32_t num_ranks, int32_t num_groups) {
  if (!layer.experts)
    return check_divides(layer.mlp.intermediate_size, num_ranks, "features in an MLP");
  const ExpertsSpec& experts = *layer.experts;
  if (experts.shared)
    ESP_RETURN_IF_ERROR(check_divides(experts.shared->intermediate_size, num_ranks,
                                      "features in the shared expert"));
  return check_experts(experts, num_ranks, num_groups);
}

Status check_groups(const DecoderSpec& spec, int32_t num_ranks) {
  if (spec.expert_groups < 1 || num_ranks % spec.expert_groups != 0)
    return invalid_argument("ep_size is {}, but must divide tp_size, which is {}",
                            spec.expert_groups, num_ranks);
  const auto has_experts = [](const LayerSpec& layer) { return layer.experts.has_value(); };
  if (spec.expert_groups == 1 || std::ranges::any_of(spec.layers, has_experts)) return Status();
  return invalid_argument("ep_size is {}, but the model has no experts: leave it out",
                          spec.expert_groups);
}

// A norm over all heads is computed by every rank on the gathered heads.
Program gather_norms(Program program, const DecoderSpec& spec, const Ranks& ranks) {
  std::vector<Op> ops;
  for (Op& op : program.ops) {
    const WeightKind kind =
        op.kind == OpKind::kNorm ? op.as<Norm>().weight.kind : WeightKind::kNone;
    if ((kind != WeightKind::kQNorm && kind != WeightKind::kKNorm) ||
        spec.layers[static_cast<size_t>(op.layer)].attention.qk_norm_scope !=
            AttentionSpec::NormScope::kAll) {
      ops.push_back(std::move(op));
      continue;
    }
    const Operand own = op.inputs[0];
    const int32_t columns = own.columns;
    const Operand all = find_or_add_buffer(program, "all_heads", columns * ranks.num_ranks);
    const Operand part{all.buffer, ranks.rank * columns, columns};
    ops.push_back(
        Op{.kind = OpKind::kAllGather, .layer = op.layer, .inputs = {own}, .outputs = {all}});
    op.inputs = op.outputs = {all};
    ops.push_back(std::move(op));
    ops.push_back(Op{.kind = OpKind::kHeadCopy,
                     .layer = ops.back().layer,
                     .inputs = {part},
                     .outputs = {own},
                     .attributes = HeadCopy{
                         .heads = 1, .count = columns, .x_head = columns, .y_head = columns}});
  }
  program.ops = std::move(ops);
  return program;
}

// What several ranks compute and read is written by one of them. spec: of the whole model.
Program share_pages(Program program, const DecoderSpec& spec, const Ranks& ranks,
                    int32_t ranks_per_pool) {
  std::vector<Op> ops;
  for (Op& op : program.ops) {
    if (op.kind != OpKind::kKvAppend ||
        !shares_pages(spec.layers[static_cast<size_t>(op.layer)].attention, ranks)) {
      ops.push_back(std::move(op));
      continue;
    }
    const Op barrier{.kind = OpKind::kBarrier, .layer = op.layer, .inputs = op.inputs};
    if (writes_pages(spec.layers[static_cast<size_t>(op.layer)].attention, ranks, ranks_per_pool)) {
      ops.push_back(std::move(op));
    }
    ops.push_back(barrier);
  }
  program.ops = std::move(ops);
  return program;
}

// Each rank looks up the tokens that it has.
Program divide_embedding(Program program, const DecoderSpec& spec, const Ranks& ranks) {
  const auto count = static_cast<int32_t>(ranks.count(spec.vocab_size));
  const auto embed = std::ranges::find(program.ops, OpKind::kEmbed, &Op::kind);
  embed->attributes = VocabularyPart{static_cast<int32_t>(ranks.begin(spec.vocab_size)), count};
  const Operand hidden = embed->outputs[0];
  program.ops.insert(embed + 1, Op{.kind = OpKind::kAllReduce,
                                   .inputs = {hidden},
                                   .outputs = {hidden},
                                   .attributes = AllReduce{}});
  return program;
}

// Each rank computes the logits of the tokens that it has.
Program divide_head(Program program, const DecoderSpec& spec, const Ranks& ranks) {
  const auto count = static_cast<int32_t>(ranks.count(spec.vocab_size));
  const auto is_head = [](const Op& op) {
    return op.kind == OpKind::kMatmul && op.as<Matmul>().weight.kind == WeightKind::kHead;
  };
  const auto head = std::ranges::find_if(program.ops, is_head);
  const Operand logits = head->outputs[0];
  const Operand part = find_or_add_buffer(program, "logits_part", count, {RowCount::kOutputs},
                                          ElementType::kFloat32);
  head->as<Matmul>().out_features = count;
  for (auto op = head; op != program.ops.end(); ++op) {
    std::ranges::replace(op->inputs, logits, part);
    std::ranges::replace(op->outputs, logits, part);
  }
  program.ops.push_back(Op{.kind = OpKind::kAllGather, .inputs = {part}, .outputs = {logits}});
  return program;
}

void shard_matrix(MatrixLayout& matrix, Shard::Axis axis, const Ranks& ranks) {
  matrix.shard = {.axis = axis, .rank = ranks.rank, .num_ranks = ranks.num_ranks};
}

// The elements that belong to the rank's rows of `matrix`.
void shard_bias(const MatrixLayout& matrix, VectorLayout& bias) {
  if (bias.empty()) return;
  int64_t before = 0;
  for (const WeightBlock& block : matrix.blocks) {
    const TensorSlice slice = matrix.slice_of(block);
    bias.parts.push_back({before + slice.first_row, slice.rows});
    before += block.rows;
  }
}

void shard_attention(const AttentionSpec& spec, const Ranks& ranks, LayerLayout& layer) {
  const int32_t kv_heads = spec.num_kv_heads;
  if (!layer.latent.q.empty()) {
    shard_matrix(layer.latent.q, Shard::Axis::kRows, ranks);
    shard_matrix(layer.latent.kv_b, Shard::Axis::kRows, ranks);
  } else {
    shard_matrix(layer.qkv, Shard::Axis::kRows, ranks);
    for (WeightBlock& block : std::span(layer.qkv.blocks).subspan(1)) {  // keys, values
      block.parts = std::min(kv_heads, ranks.num_ranks);
    }
    shard_bias(layer.qkv, layer.qkv_bias);
  }
  shard_matrix(layer.attention_output, Shard::Axis::kColumns, ranks);
  if (!layer.sinks.empty()) {
    const int64_t heads = layer.sinks.size();
    layer.sinks.parts.push_back({ranks.begin(heads), ranks.count(heads)});
  }
}

void shard_mlp(const Ranks& ranks, MlpLayout& mlp) {
  if (mlp.gate_up.empty()) return;
  shard_matrix(mlp.gate_up, Shard::Axis::kRows, ranks);
  shard_bias(mlp.gate_up, mlp.gate_up_bias);
  shard_matrix(mlp.down, Shard::Axis::kColumns, ranks);
}

// spec: of all ranks.
void shard_experts(const ExpertRanks& at, const ExpertsSpec& spec, ExpertsLayout& layout) {
  for (MlpLayout& expert : layout.experts) shard_mlp(at.slices, expert);
  layout.fused_gate_up_shard = {Shard::Axis::kRows, at.slices.rank, at.slices.num_ranks};
  layout.fused_down_shard = {Shard::Axis::kColumns, at.slices.rank, at.slices.num_ranks};
  if (layout.experts.empty()) return;  // all are in one tensor
  const auto first = static_cast<int32_t>(at.groups.begin(spec.num_slots()));
  const auto count = static_cast<int32_t>(at.groups.count(spec.num_slots()));
  std::vector<MlpLayout> here;
  std::vector<bool> is_here(layout.experts.size());
  for (int32_t slot = first; slot < first + count; ++slot) {
    const auto expert = static_cast<size_t>(spec.expert_of(slot));
    here.push_back(layout.experts[expert]);
    is_here[expert] = true;
  }
  for (size_t i = 0; i < is_here.size(); ++i)
    if (!is_here[i]) layout.elsewhere.push_back(std::move(layout.experts[i]));
  layout.experts = std::move(here);
}

}  // namespace

ExpertRanks expert_ranks(const DecoderSpec& spec, const Ranks& ranks) {
  const int32_t num_slices = ranks.num_ranks / spec.expert_groups;
  return {.groups = {ranks.rank / num_slices, spec.expert_groups},
          .slices = {ranks.rank % num_slices, num_slices}};
}

Status check_partition(const DecoderSpec& spec, int32_t num_ranks) {
  if (num_ranks < 1) return invalid_argument("tp_size is {}, but must be at least 1", num_ranks);
  ESP_RETURN_IF_ERROR(check_groups(spec, num_ranks));
  if (num_ranks == 1) return Status();
  if (num_cross_layers(spec) > 0) {
    return error(StatusCode::kUnimplemented,
                 "{}: several ranks do not divide cross attention yet: use --tp-size 1",
                 spec.architecture);
  }
  for (const LayerSpec& layer : spec.layers) {
    if (!spec.whole_attention) ESP_RETURN_IF_ERROR(check_attention(layer.attention, num_ranks));
    ESP_RETURN_IF_ERROR(check_layer(layer, num_ranks, spec.expert_groups));
  }
  return Status();
}

DecoderSpec local_spec(const DecoderSpec& spec, const Ranks& ranks) {
  const auto divide = [&](int32_t& size) { size /= ranks.num_ranks; };
  DecoderSpec out = spec;
  for (LayerSpec& layer : out.layers) {
    if (!spec.whole_attention) {
      divide(layer.attention.num_heads);
      if (!layer.attention.latent) {
        layer.attention.num_kv_heads = std::max(layer.attention.num_kv_heads / ranks.num_ranks, 1);
      }
    }
    divide(layer.mlp.intermediate_size);
    if (!layer.experts) continue;
    const ExpertRanks at = expert_ranks(spec, ranks);
    layer.experts->expert.intermediate_size /= at.slices.num_ranks;
    const int64_t num_slots = layer.experts->num_slots();
    layer.experts->first_local = static_cast<int32_t>(at.groups.begin(num_slots));
    layer.experts->local_count = static_cast<int32_t>(at.groups.count(num_slots));
    if (layer.experts->shared) divide(layer.experts->shared->intermediate_size);
  }
  return out;
}

int64_t num_loaded_parameters(const DecoderSpec& spec, int32_t num_ranks) {
  int64_t count = 0;
  for (int32_t rank = 0; rank < num_ranks; ++rank)
    count += local_spec(spec, {rank, num_ranks}).num_parameters();
  return count;
}

bool divides_vocabulary(const DecoderSpec& spec, const Ranks& ranks) {
  return !ranks.single() && !spec.whole_attention && spec.vocab_size % ranks.num_ranks == 0;
}

Program partition(const DecoderSpec& spec, const Ranks& ranks, RankPages pages,
                  int32_t ranks_per_pool) {
  if (ranks.single()) return lower(spec);
  Program program = insert_sums(lower(local_spec(spec, ranks)), ranks,
                                expert_ranks(spec, ranks).slices, spec.whole_attention);
  if (spec.whole_attention) return program;
  program = gather_norms(std::move(program), spec, ranks);
  if (pages == RankPages::kShared && ranks_per_pool != 1) {
    program = share_pages(std::move(program), spec, ranks,
                          ranks_per_pool == kAllRanks ? ranks.num_ranks : ranks_per_pool);
  }
  if (!divides_vocabulary(spec, ranks)) return program;
  if (spec.stage.embeds) program = divide_embedding(std::move(program), spec, ranks);
  if (spec.pooling || !spec.stage.samples) return program;
  return divide_head(std::move(program), spec, ranks);
}

WeightLayout partition_weights(const DecoderSpec& spec, const Ranks& ranks) {
  WeightLayout out = weight_layout(spec);
  if (ranks.single()) return out;
  if (divides_vocabulary(spec, ranks)) {
    if (!out.embedding.empty()) shard_matrix(out.embedding, Shard::Axis::kRows, ranks);
    if (!out.head.empty()) shard_matrix(out.head, Shard::Axis::kRows, ranks);
  }
  for (size_t i = 0; i < out.layers.size(); ++i) {
    LayerLayout& layer = out.layers[i];
    if (!spec.whole_attention) shard_attention(spec.layers[i].attention, ranks, layer);
    shard_mlp(ranks, layer.mlp);
    if (const auto& experts = spec.layers[i].experts)
      shard_experts(expert_ranks(spec, ranks), *experts, layer.experts);
  }
  return out;
}

}  // namespace espalier::program
