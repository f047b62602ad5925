// Operations of experts: kernel by kernel for many rows, or a whole block for few.
#include "kernels/linear/quantize_rows.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/cuda_small_batch.h"
#include "kernels/router/cuda.h"
#include "models/cuda/expert_slots.h"
#include "models/cuda/expert_tally.h"
#include "models/cuda/ops.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;
using program::MoeBlock;
using program::Op;
using program::Operand;

kc::PairCounter counter_of(const CudaContext& c, const Op& op) {
  if (c.scratch().expert_tally == nullptr) return {};
  const kc::EntryArrays& entries = c.step().entries;
  return {.pairs = c.scratch().expert_tally->of_layer(op.layer),
          .num_rows = entries.query_begin + entries.num_entries};
}

// The replicas that the rows of the operand take.
kc::Replicas replicas_of(const CudaContext& c, const Op& op, const Operand& rows) {
  if (c.scratch().expert_slots == nullptr) return {};
  kc::Replicas out = c.scratch().expert_slots->replicas(op.layer);
  out.positions = c.scratch().positions;
  if (c.plan().program().buffer(rows).rows.count != program::RowCount::kTokens)
    out.rows = c.step().rows;
  return out;
}

void add_shared(const CudaContext& c, const Op& op, kc::SmallBatchMoeArgs& args) {
  const auto& block = op.as<MoeBlock>();
  if (!block.experts.combine.shared) return;
  args.shared_ffn = block.shared_activation.dim;
  args.shared_gate_up = c.weights().data(block.shared_gate_up.weight);
  args.shared_down = c.weights().data(block.shared_down.weight);
  args.shared_gate_up_scales = c.weights().at(block.shared_gate_up.weight).scales;
  args.shared_down_scales = c.weights().at(block.shared_down.weight).scales;
  args.shared_gate_weights = c.weights().floats(block.shared_gate);
  args.shared_inner = c.write(op.outputs[3]);
}

kc::SmallBatchMoeArgs moe_block_args(const CudaContext& c, const Op& op) {
  const auto& block = op.as<MoeBlock>();
  const CudaWeights& weights = c.weights();
  const program::MoeExperts& experts = block.experts;
  kc::SmallBatchMoeArgs args{.type = c.type(),
                             .rows = c.num_rows(op.outputs[0]),
                             .dim = op.outputs[0].columns,
                             .x = c.read(op.inputs[0]),
                             .router = block.route.router,
                             .first_local = block.route.first_local,
                             .num_local = block.route.num_local,
                             .replicas = replicas_of(c, op, op.outputs[0]),
                             .router_weights = weights.floats(block.route.weight),
                             .router_bias = weights.floats(block.route.bias),
                             .correction = weights.floats(block.route.correction),
                             .ffn = experts.activation->dim,
                             .activation = experts.activation->kind,
                             .limit = experts.activation->limit,
                             .gate_up = weights.data(experts.gate_up.weight),
                             .gate_up_bias = weights.data(experts.gate_up.bias),
                             .down = weights.data(experts.down.weight),
                             .down_bias = weights.data(experts.down.bias),
                             .gate_up_scales = weights.at(experts.gate_up.weight).scales,
                             .down_scales = weights.at(experts.down.weight).scales,
                             .int4 = weights.at(experts.down.weight).format.codes.int4.group > 0,
                             .mxfp4 = weights.at(experts.down.weight).format.codes.mxfp4,
                             .int4_group = weights.at(experts.down.weight).format.codes.int4.group,
                             .gate_up_stride = weights.at(experts.gate_up.weight).group_stride,
                             .down_stride = weights.at(experts.down.weight).group_stride,
                             .y = c.write(op.outputs[0]),
                             .scale = experts.combine.scale,
                             .normed = c.write(op.outputs[1]),
                             .scores = c.experts().scores,
                             .shared_gate = c.experts().shared_gate,
                             .inner = c.write(op.outputs[2]),
                             .counts = counter_of(c, op)};
  if (experts.combine.residual) args.residual = c.read(op.inputs[1]);
  if (block.norm) {
    const NormSpec& norm = block.norm->spec;
    args.norm_weight = weights.data(block.norm->weight);
    args.norm_epsilon = norm.epsilon;
    args.norm_offset = norm.kind == NormSpec::Kind::kRmsOneCentred ? 1.0f : 0.0f;
  }
  add_shared(c, op, args);
  return args;
}

}  // namespace

// Steps whose rows may not depend on how many there are take the kernels for many rows.
Result<bool> runs_moe_block(CudaContext& c, const Op& op) {
  if (c.attention_group(op).shape.fixed_split > 0) return false;
  const auto& block = op.as<MoeBlock>();
  const WeightCodes codes = c.weights().at(block.experts.gate_up.weight).format.codes;
  if (codes.block_scales) return false;
  if (block.experts.combine.shared &&
      c.weights().at(block.shared_gate_up.weight).format.codes.block_scales) {
    return false;
  }
  const kc::SmallBatchMoeArgs args = moe_block_args(c, op);
  if (args.gate_up_scales != nullptr && args.rows > kc::kSmallBatchMoeFastRowsE4m3) return false;
  return kc::small_batch_moe_supports(args);
}

// The kernel behind the block is launched with PDL whatever the step.
Status run_moe_block(CudaContext& c, const Op& op) {
  kc::LaunchOptions launch = c.launch(op);
  launch.pdl |= c.policy().pdl;
  ESP_RETURN_IF_ERROR(kc::small_batch_moe(moe_block_args(c, op), launch));
  c.policy().next_pdl = c.policy().pdl;
  return Status();
}

// Scores, each row's experts, and the order of rows by expert that the GEMMs read.
Status run_moe_route(CudaContext& c, const Op& op) {
  const auto& route = op.as<program::MoeRoute>();
  const int32_t rows = c.num_rows(op.inputs[0]);
  auto* experts = static_cast<int32_t*>(c.write(op.outputs[0]));
  const bool has_slots = c.scratch().expert_slots != nullptr;
  ESP_RETURN_IF_ERROR(kc::score({.type = c.type(),
                                 .x = c.read(op.inputs[0]),
                                 .x_stride = c.stride(op.inputs[0]),
                                 .weights = c.weights().floats(route.weight),
                                 .bias = c.weights().floats(route.bias),
                                 .y = c.experts().scores,
                                 .rows = rows,
                                 .dim = route.in_features,
                                 .outputs = route.router.num_experts},
                                c.launch(op)));
  return kc::route_and_arrange(
      {.spec = route.router,
       .logits = c.experts().scores,
       .rows = rows,
       .correction = c.weights().floats(route.correction),
       .experts = experts,
       .weights = static_cast<float*>(c.write(op.outputs[1]))},
      {.experts = experts,
       .num_pairs = rows * route.router.top_k,
       .num_experts = has_slots ? route.num_slots : route.router.num_experts,
       .first_local = route.first_local,
       .num_local = route.num_local,
       .plan = c.experts().plan,
       .counts = counter_of(c, op),
       .pairs_per_row = route.router.top_k,
       .replicas = replicas_of(c, op, op.outputs[0])},
      c.launch(op));
}

namespace {

// The first GEMM of the experts reads a row for each token, the second one for each pair, in the
// order of experts.
kc::GroupedArgs grouped_args(const CudaContext& c, const Op& op) {
  const auto& matmul = op.as<program::MoeMatmul>();
  const Operand &x = op.inputs[0], &y = op.outputs[0];
  const bool by_token = matmul.weight.kind == WeightKind::kExpertGateUp;
  const int32_t pairs_per_token = c.plan().program().buffer(y).rows.per_row;
  const CudaWeight& weight = c.weights().at(matmul.weight);
  kc::GroupedArgs args{.type = weight.format.type,
                       .num_groups = matmul.num_experts,
                       .num_experts = matmul.num_routed,
                       .in_features = matmul.in_features,
                       .out_features = matmul.out_features,
                       .x = c.read(x),
                       .x_stride = c.stride(x),
                       .weights = weight.data,
                       .weights_stride = weight.group_stride,
                       .mxfp4 = weight.format.codes.mxfp4,
                       .int4 = weight.format.codes.int4.group > 0,
                       .bias = c.weights().data(matmul.bias),
                       .y = c.write(y),
                       .y_stride = c.stride(y),
                       .row_invariant = c.attention_group(op).shape.fixed_split > 0,
                       .plan = &c.experts().plan,
                       .num_pairs = c.num_rows(y),
                       .pairs_per_row = by_token ? pairs_per_token : 0,
                       .int4_group = weight.format.codes.int4.group};
  if (matmul.activation) {
    args.activation = matmul.activation->kind;
    args.limit = matmul.activation->limit;
  }
  if (weight.scales != nullptr) {
    args.x = c.experts().rounded;
    args.x_stride = matmul.in_features;
    args.x_scales = c.experts().rounded_scales;
    args.weight_scales = weight.scales;
    if (weight.format.codes.block_scales) {
      args.block_scales = true;
      args.x_scale_stride = kc::group_scale_stride(c.num_rows(x));
    }
  }
  return args;
}

// Of pairs, where other ranks have some, those that have a slot.
Status round_rows(CudaContext& c, const Op& op) {
  const Operand& x = op.inputs[0];
  const auto& matmul = op.as<program::MoeMatmul>();
  const bool blocks = c.weights().at(matmul.weight).format.codes.block_scales;
  const bool spread =
      matmul.num_experts < matmul.num_routed && matmul.weight.kind == WeightKind::kExpertDown;
  return kc::quantize_rows(
      {.type = c.type(),
       .x = c.read(x),
       .x_stride = c.stride(x),
       .y = c.experts().rounded,
       .scales = c.experts().rounded_scales,
       .group_stride = blocks ? kc::group_scale_stride(c.num_rows(x)) : 0,
       .rows = c.num_rows(x),
       .dim = matmul.in_features,
       .num_used = spread ? c.experts().plan.begins + matmul.num_experts : nullptr},
      c.launch(op));
}

}  // namespace

Result<bool> runs_gated_experts(CudaContext& c, const Op& op) {
  return kc::grouped_linear_fuses(grouped_args(c, op));
}

Status run_moe_matmul(CudaContext& c, const Op& op) {
  const kc::GroupedArgs args = grouped_args(c, op);
  if (args.weight_scales != nullptr) ESP_RETURN_IF_ERROR(round_rows(c, op));
  return kc::grouped_linear(args, c.launch(op));
}

Status run_moe_combine(CudaContext& c, const Op& op) {
  const auto& a = op.as<program::MoeCombine>();
  size_t next = 3;  // behind pairs, weights and experts
  const Operand* shared = a.shared ? &op.inputs[next++] : nullptr;
  const Operand* gate = a.gate ? &op.inputs[next++] : nullptr;
  const Operand* residual = a.residual ? &op.inputs[next++] : nullptr;
  return kc::combine({.type = c.type(),
                      .x = c.read(op.inputs[0]),
                      .slots = c.experts().plan.slots,
                      .weights = static_cast<const float*>(c.read(op.inputs[1])),
                      .top_k = a.top_k,
                      .lacks_slots = a.spread,
                      .shared = shared ? c.read(*shared) : nullptr,
                      .shared_gate = gate ? static_cast<const float*>(c.read(*gate)) : nullptr,
                      .residual = residual ? c.read(*residual) : nullptr,
                      .y = c.write(op.outputs[0]),
                      .rows = c.num_rows(op.outputs[0]),
                      .dim = op.outputs[0].columns,
                      .scale = a.scale},
                     c.launch(op));
}

// The combination of no experts: a residual and a gated row.
Status run_gated_add(CudaContext& c, const Op& op) {
  return kc::combine({.type = c.type(),
                      .shared = c.read(op.inputs[1]),
                      .shared_gate = static_cast<const float*>(c.read(op.inputs[2])),
                      .residual = c.read(op.inputs[0]),
                      .y = c.write(op.outputs[0]),
                      .rows = c.num_rows(op.outputs[0]),
                      .dim = op.outputs[0].columns},
                     c.launch(op));
}

}  // namespace espalier
