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

}  // namespace

void name_collective_buffers(const CudaContext& c) {
  std::vector<Operand> operands;
  std::vector<const void*> buffers;
  for (const CudaPlan::BoundOp& bound : c.plan().ops()) {
    const program::OpKind kind = bound.op.kind;
    if (kind != program::OpKind::kAllReduce && kind != program::OpKind::kAllGather) continue;
    const Operand& operand = bound.op.inputs[0];
    if (std::ranges::find(operands, operand) != operands.end()) continue;
    operands.push_back(operand);
    buffers.push_back(c.read(operand));
  }
  c.scratch().collective->set_buffers(std::move(buffers));
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

}  // namespace espalier
