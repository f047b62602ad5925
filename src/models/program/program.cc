#include "models/program/program.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace espalier {

std::string_view weight_name(WeightKind kind) {
  static constexpr std::string_view kNames[] = {"",
                                                "embedding",
                                                "patch_embedding",
                                                "patch_embedding_bias",
                                                "class_embedding",
                                                "embedding_norm",
                                                "position_embedding",
                                                "type_embedding",
                                                "input_norm",
                                                "qkv",
                                                "qkv_bias",
                                                "q_norm",
                                                "k_norm",
                                                "latent_q_a",
                                                "latent_q_a_norm",
                                                "latent_q",
                                                "latent_kv_a",
                                                "latent_kv_a_norm",
                                                "query_to_latent",
                                                "latent_to_value",
                                                "sinks",
                                                "attention_output",
                                                "attention_output_bias",
                                                "attention_output_norm",
                                                "post_attention_norm",
                                                "router",
                                                "router_bias",
                                                "router_correction",
                                                "expert_gate_up",
                                                "expert_gate_up_bias",
                                                "expert_down",
                                                "expert_down_bias",
                                                "shared_gate",
                                                "gate_up",
                                                "gate_up_bias",
                                                "down",
                                                "down_bias",
                                                "mlp_output_norm",
                                                "final_norm",
                                                "head",
                                                "pooling_head",
                                                "pooling_head_bias",
                                                "projector",
                                                "projector_bias",
                                                "line_end",
                                                "draft_input",
                                                "hidden_norm",
                                                "deepstack_norm",
                                                "projector_norm",
                                                "global_norm",
                                                "tile_position",
                                                "cross_kv",
                                                "cross_k_norm"};
  static_assert(std::size(kNames) == kNumWeightKinds);
  return kNames[static_cast<size_t>(kind)];
}

namespace program {
namespace {

// Collects the weights of each kind of attributes.
class WeightCollector {
 public:
  void operator()(const std::monostate&) {}
  void operator()(const VocabularyPart&) {}
  void operator()(const Input&) {}
  void operator()(const Scale&) {}
  void operator()(const Softcap&) {}
  void operator()(const MergeRows&) {}
  void operator()(const SpanPart&) {}
  void operator()(const Activation&) {}
  void operator()(const HeadCopy&) {}
  void operator()(const Rope&) {}
  void operator()(const KvAppend&) {}
  void operator()(const ResidualAdd&) {}
  void operator()(const MoeCombine&) {}
  void operator()(const Pool&) {}
  void operator()(const CrossAttention&) {}
  void operator()(const Fill&) {}
  void operator()(const Megakernel&) {}
  void operator()(const Norm& a) { add(a.weight); }
  void operator()(const AllReduce& a) { add(a.norm); }
  void operator()(const HeadMatmul& a) { add(a.weight); }
  void operator()(const Attention& a) { add(a.sinks); }
  void operator()(const LatentPrefill& a) { add(a.weight); }
  void operator()(const Matmul& a) {
    add(a.norm);
    add(a.weight);
    add(a.bias);
  }
  void operator()(const MoeRoute& a) {
    add(a.weight);
    add(a.bias);
    add(a.correction);
  }
  void operator()(const MoeMatmul& a) {
    add(a.weight);
    add(a.bias);
  }
  void operator()(const QkRopeAppend& a) {
    add(a.q_norm);
    add(a.k_norm);
  }
  void operator()(const MoeExperts& a) {
    (*this)(a.gate_up);
    (*this)(a.down);
  }
  void operator()(const MoeBlock& a) {
    add(a.norm);
    (*this)(a.route);
    (*this)(a.experts);
    (*this)(a.shared_gate_up);
    (*this)(a.shared_down);
    add(a.shared_gate);
  }

  void add(WeightId id) {
    if (id) out_.push_back(id);
  }
  void add(const std::optional<Norm>& norm) {
    if (norm) add(norm->weight);
  }
  std::vector<WeightId> take() { return std::move(out_); }

 private:
  std::vector<WeightId> out_;
};

}  // namespace

Operand find_or_add_buffer(Program& program, const std::string& name, int32_t columns, Rows rows,
                           ElementType type) {
  int32_t storage = -1;
  std::string unique = name;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& known = program.buffers[i];
    if (known.name != name && !known.name.starts_with(name + ".")) continue;
    if (known.columns == columns && known.rows == rows) {
      return {static_cast<BufferId>(i), 0, columns};
    }
    storage = known.storage;
    unique = name + "." + std::to_string(columns);
  }
  if (storage < 0) storage = program.num_storages++;
  program.buffers.push_back({unique, rows, columns, type, storage});
  return {static_cast<BufferId>(program.buffers.size() - 1), 0, columns};
}

Operand find_buffer(const Program& program, std::string_view name) {
  const auto found = std::ranges::find(program.buffers, name, &Buffer::name);
  ESP_CHECK(found != program.buffers.end(), "{} has no buffer {}", program.name, name);
  return {static_cast<BufferId>(found - program.buffers.begin()), 0, found->columns};
}

Rows rows_of(const Program& program, const Op& op) {
  const bool of_all = op.kind == OpKind::kScatterSums;
  if (!op.outputs.empty() && !of_all) return program.buffer(op.outputs[0]).rows;
  return op.inputs.empty() ? Rows{} : program.buffer(op.inputs[0]).rows;
}

Rows rank_rows(const Rows& rows) {
  const bool wanted = rows.count == RowCount::kWanted || rows.count == RowCount::kRankWanted;
  return {wanted ? RowCount::kRankWanted : RowCount::kRankTokens, rows.per_row};
}

size_t output_begin(const Program& program) {
  const auto is_output = [&](const Op& op) {
    return rows_of(program, op).count == RowCount::kOutputs;
  };
  const auto first = std::find_if(program.ops.begin(), program.ops.end(), is_output);
  return static_cast<size_t>(first - program.ops.begin());
}

std::vector<WeightId> weights_of(const Op& op) {
  WeightCollector collector;
  collector.add(op.table);
  std::visit(collector, op.attributes);
  return collector.take();
}

std::string_view op_name(OpKind kind) {
  static constexpr std::string_view kNames[] = {
      "embed",       "embed_position", "embed_type",   "grid_position",   "patches",
      "input",       "output",         "class_embed",  "add_spans",       "add_control",
      "scale",       "softcap",        "norm",         "matmul",          "head_matmul",
      "head_copy",   "rope",           "kv_append",    "attention",       "select_rows",
      "mean_parts",  "tile_position",  "keep_rows",    "cross_attention", "fill",
      "activation",  "residual_add",   "gated_add",    "moe_route",       "moe_matmul",
      "moe_combine", "pool",           "relu",         "all_reduce",      "all_gather",
      "barrier",     "gather_rows",    "scatter_sums", "qk_rope_append",  "moe_experts",
      "moe_block",   "latent_prefill", "megakernel"};
  static_assert(std::size(kNames) == static_cast<size_t>(OpKind::kMegakernel) + 1);
  return kNames[static_cast<size_t>(kind)];
}

std::string_view row_count_name(RowCount count) {
  static constexpr std::string_view kNames[] = {"tokens", "wanted",      "outputs",
                                                "texts",  "rank_tokens", "rank_wanted"};
  return kNames[static_cast<size_t>(count)];
}

}  // namespace program
}  // namespace espalier
