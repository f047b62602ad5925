#include "models/program/gpu_passes.h"

#include <algorithm>
#include <utility>

#include "models/program/passes.h"

namespace espalier::program {
namespace {

bool is_plain_norm(const Op& op) {
  return op.as<Norm>().spec.kind == NormSpec::Kind::kRms &&
         op.as<Norm>().weight.kind != WeightKind::kAttentionOutputNorm &&
         op.as<Norm>().weight.kind != WeightKind::kMlpOutputNorm;
}

// Whether the persistent kernel has this operation of a layer.
bool is_plain(const Op& op, int32_t head_dim) {
  switch (op.kind) {
    case OpKind::kEmbed:
    case OpKind::kMatmul:
    case OpKind::kRope:
    case OpKind::kKvAppend:
      return true;
    case OpKind::kNorm:
      return is_plain_norm(op) && (op.inputs[0] != op.outputs[0] ||
                                   op.inputs[0].columns == op.as<Norm>().groups * head_dim);
    case OpKind::kAttention:
      return !op.as<Attention>().sinks && !op.as<Attention>().latent;
    case OpKind::kActivation:
      return op.as<Activation>().gated && op.as<Activation>().kind == kernels::Activation::kSilu;
    case OpKind::kResidualAdd:
      return op.as<ResidualAdd>().scale == 1;
    default:
      return false;
  }
}

// The same operation of another layer: all but the layer, its weights' index and what the kernel
// takes for each layer (windows, ropes, epsilons of heads).
bool same_shape(const Op& a, const Op& b) {
  return a.kind == b.kind && a.inputs == b.inputs && a.outputs == b.outputs;
}

// The layers' two norms have one epsilon, and a layer has both.
bool has_both_norms(std::span<const Op> layer) {
  std::vector<float> epsilons;
  for (const Op& op : layer) {
    if (op.kind == OpKind::kNorm && op.inputs[0] != op.outputs[0]) {
      epsilons.push_back(op.as<Norm>().spec.epsilon);
    }
  }
  return epsilons.size() == 2 && epsilons[0] == epsilons[1];
}

std::span<const Op> layer_ops(const Program& program, int32_t layer) {
  const auto of_layer = [&](const Op& op) { return op.layer == layer; };
  const auto first = std::ranges::find_if(program.ops, of_layer);
  const auto last = std::find_if_not(first, program.ops.end(), of_layer);
  return {first, last};
}

// Operations of one kind for each layer; ropes may be absent in some.
bool layers_agree(std::span<const Op> first, std::span<const Op> other) {
  const auto next = [](std::span<const Op> ops, size_t& i) {
    while (i < ops.size() && ops[i].kind == OpKind::kRope) ++i;
    return i < ops.size();
  };
  size_t i = 0, j = 0;
  for (; next(first, i) && next(other, j); ++i, ++j) {
    if (!same_shape(first[i], other[j])) return false;
  }
  return !next(first, i) && !next(other, j);
}

}  // namespace

Program gpu_passes(Program program) {
  program = fuse_activation(std::move(program), [](const Matmul&, const Activation& activation) {
    return activation.gated && activation.kind == kernels::Activation::kSilu;
  });
  program = fuse_qk_rope_append(fuse_moe_combine(std::move(program)));
  program = drop_unwanted_rows(fuse_residual(std::move(program)), Selection::kAfterAttention);
  program = fuse_norm(std::move(program), [](const Norm& norm, const Matmul&) {
    return norm.spec.kind == NormSpec::Kind::kRms;
  });
  return allow_dependent_launch(remove_unused_buffers(std::move(program)));
}

std::optional<Program> fuse_megakernel(const Program& lowered) {
  const size_t end = output_begin(lowered);
  const auto attention = std::ranges::find(lowered.ops, OpKind::kAttention, &Op::kind);
  if (end == lowered.ops.size() || attention == lowered.ops.end()) return std::nullopt;
  const int32_t head_dim = attention->as<Attention>().head_dim;
  const int32_t num_layers = lowered.ops[end - 1].layer + 1;
  const std::span<const Op> body(lowered.ops.data(), end);
  if (!std::ranges::all_of(body, [&](const Op& op) { return is_plain(op, head_dim); })) {
    return std::nullopt;
  }
  const std::span<const Op> first = layer_ops(lowered, 0);
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    const std::span<const Op> ops = layer_ops(lowered, layer);
    if (!has_both_norms(ops) || !layers_agree(first, ops)) return std::nullopt;
  }
  Program program = lowered;
  const Op kernel{.kind = OpKind::kMegakernel,
                  .outputs = {body.front().outputs[0]},
                  .attributes = Megakernel{num_layers},
                  .table = body.front().table};
  program.ops.erase(program.ops.begin(), program.ops.begin() + static_cast<std::ptrdiff_t>(end));
  program.ops.insert(program.ops.begin(), kernel);
  return allow_dependent_launch(
      remove_unused_buffers(fuse_norm(std::move(program), [](const Norm& norm, const Matmul&) {
        return norm.spec.kind == NormSpec::Kind::kRms;
      })));
}

Program allow_dependent_launch(Program program) {
  for (size_t i = 1; i < program.ops.size(); ++i) program.ops[i].dependent_launch = true;
  return program;
}

}  // namespace espalier::program
