// Operations between ranks: sums and parts of rows, on the decoder's collective.
#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/collective/cuda.h"
#include "models/cuda/ops.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;
using program::Op;
using program::Operand;

DType element_type(const CudaContext& c, const Operand& operand) {
  const program::ElementType type = c.plan().program().buffer(operand).type;
  return type == program::ElementType::kFloat32 ? DType::kFloat32 : c.type();
}

kc::RankRowsArgs rank_rows(const CudaContext& c, const Operand& own, const Operand& all) {
  kc::RankRowsArgs args{
      .type = c.type(), .own = c.write(own), .all = c.write(all), .columns = own.columns};
  const auto num_ranks = static_cast<size_t>(c.scratch().collective->ranks().num_ranks);
  const std::span<const int32_t> counts = c.step().rank_tokens;
  for (size_t rank = 0; rank < num_ranks; ++rank)
    args.counts[rank] = counts.empty() ? c.step().entries.num_tokens : counts[rank];
  return args;
}

Status run_all_reduce(CudaContext& c, const Op& op) {
  const auto& a = op.as<program::AllReduce>();
  const Operand& x = op.inputs[0];
  kc::AllReduceArgs args{
      .type = c.type(), .x = c.write(x), .rows = c.num_rows(x), .dim = x.columns};
  if (a.residual) {
    args.residual = c.write(op.outputs[0]);
    args.residual_stride = c.stride(op.outputs[0]);
  }
  if (a.norm) {
    const bool one_centred = a.norm->spec.kind == NormSpec::Kind::kRmsOneCentred;
    args.norm_weight = c.weights().data(a.norm->weight);
    args.norm_offset = one_centred ? 1.0f : 0.0f;
    args.norm_epsilon = a.norm->spec.epsilon;
    args.y = c.write(op.outputs[1]);
    args.y_stride = c.stride(op.outputs[1]);
  }
  return c.scratch().collective->all_reduce(args, c.launch(op));
}

Status run_all_gather(CudaContext& c, const Op& op) {
  const Operand &part = op.inputs[0], &all = op.outputs[0];
  return c.scratch().collective->all_gather({.type = element_type(c, part),
                                             .part = c.read(part),
                                             .part_stride = c.stride(part),
                                             .rows = c.num_rows(part),
                                             .columns = part.columns,
                                             .out = c.write(all),
                                             .out_stride = c.stride(all)},
                                            c.launch(op));
}

Status run_gather_rows(CudaContext& c, const Op& op) {
  return c.scratch().collective->gather_rows(rank_rows(c, op.inputs[0], op.outputs[0]),
                                             c.launch(op));
}

Status run_scatter_sums(CudaContext& c, const Op& op) {
  return c.scratch().collective->scatter_sums(rank_rows(c, op.outputs[0], op.inputs[0]),
                                              c.launch(op));
}

}  // namespace

void name_collective_buffers(const CudaContext& c) {
  std::vector<Operand> operands;
  std::vector<const void*> buffers;
  for (const CudaPlan::BoundOp& bound : c.plan().ops()) {
    if (cuda_rank_op(bound.op.kind) == nullptr) continue;
    const Operand& operand = bound.op.inputs[0];
    if (std::ranges::find(operands, operand) != operands.end()) continue;
    operands.push_back(operand);
    buffers.push_back(c.read(operand));
  }
  c.scratch().collective->set_buffers(std::move(buffers));
}

CudaOp cuda_rank_op(program::OpKind kind) {
  switch (kind) {
    case program::OpKind::kAllReduce:
      return run_all_reduce;
    case program::OpKind::kAllGather:
      return run_all_gather;
    case program::OpKind::kGatherRows:
      return run_gather_rows;
    case program::OpKind::kScatterSums:
      return run_scatter_sums;
    default:
      return nullptr;
  }
}

}  // namespace espalier
