#include "models/program/fault_injection.h"

#include <algorithm>
#include <utility>

namespace espalier::program {
namespace {

// Whether the addition is that of attention's result (else of the MLP's) to the residual.
bool adds_attention(const Program& program, size_t index) {
  for (size_t i = index; i-- > 0 && program.ops[i].layer == program.ops[index].layer;) {
    if (program.ops[i].kind == OpKind::kAttention) return true;
    if (program.ops[i].kind == OpKind::kResidualAdd) return false;
  }
  return false;
}

void drop_residual(Program& program, bool of_attention) {
  const Operand hidden = program.ops.front().outputs[0];
  for (size_t i = 0; i < program.ops.size(); ++i) {
    Op& op = program.ops[i];
    if (op.kind != OpKind::kResidualAdd || op.layer < 0 || op.outputs[0] != hidden ||
        adds_attention(program, i) != of_attention) {
      continue;
    }
    op.kind = OpKind::kScale;
    op.attributes = Scale{op.as<ResidualAdd>().scale};
    op.inputs = {op.inputs[1]};
  }
}

void replace_activation(Program& program) {
  for (Op& op : program.ops) {
    if (op.kind == OpKind::kActivation) {
      op.as<Activation>().kind = kernels::Activation::kGeluTanh;
    }
  }
}

// The combination becomes zeros; its experts go.
void drop_experts(Program& program) {
  Operand x;
  for (Op& op : program.ops) {
    if (op.kind == OpKind::kMoeRoute) x = op.inputs[0];
    if (op.kind != OpKind::kMoeCombine) continue;
    op = {.kind = OpKind::kScale,
          .layer = op.layer,
          .inputs = {x},
          .outputs = op.outputs,
          .attributes = Scale{0}};
  }
  const auto of_experts = [&](const Op& op) {
    return op.kind == OpKind::kMoeRoute || op.kind == OpKind::kMoeMatmul ||
           (op.kind == OpKind::kActivation && program.buffer(op.inputs[0]).rows.per_row > 1);
  };
  std::erase_if(program.ops, of_experts);
}

void drop_shared_expert(Program& program) {
  const Operand hidden = program.ops.front().outputs[0];
  std::erase_if(program.ops, [&](const Op& op) {
    const bool adds = op.kind == OpKind::kResidualAdd || op.kind == OpKind::kGatedAdd;
    return adds && op.layer >= 0 && op.outputs[0] != hidden;
  });
}

}  // namespace

Program inject(Program program, Fault fault) {
  switch (fault) {
    case Fault::kDropAttentionResidual:
    case Fault::kDropMlpResidual:
      drop_residual(program, fault == Fault::kDropAttentionResidual);
      break;
    case Fault::kReplaceActivation:
      replace_activation(program);
      break;
    case Fault::kDropExperts:
      drop_experts(program);
      break;
    case Fault::kDropSharedExpert:
      drop_shared_expert(program);
      break;
  }
  return program;
}

}  // namespace espalier::program
