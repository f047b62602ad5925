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

// Attention of prompts reads the new keys and values from the buffer that the append reads them
// from, where the append leaves the rotated keys too; latents are read from pages alone.
Program attend_new_tokens(Program program) {
  Op* append = nullptr;
  for (Op& op : program.ops) {
    if (op.kind == OpKind::kQkRopeAppend) append = &op;
    if (op.kind != OpKind::kAttention || append == nullptr || append->layer != op.layer) continue;
    if (op.as<Attention>().latent || op.inputs.size() > 1) continue;
    append->outputs.push_back(append->inputs[1]);
    op.inputs.insert(op.inputs.end(), append->inputs.begin() + 1, append->inputs.end());
  }
  return program;
}

// Each query sees all rows of its picture, which the step has: keys and values become inputs of
// attention instead of going to pages.
Program attend_rows(Program program) {
  std::vector<Operand> new_rows;
  for (Op& op : program.ops) {
    if (op.kind == OpKind::kKvAppend) new_rows = op.inputs;
    if (op.kind != OpKind::kAttention || op.as<Attention>().causal) continue;
    op.inputs.insert(op.inputs.end(), new_rows.begin(), new_rows.end());
  }
  std::erase_if(program.ops, [](const Op& op) { return op.kind == OpKind::kKvAppend; });
  return program;
}

// Zeros behind each patch; the embedding's matrix has zeros there too.
Program widen_patches(Program program) {
  BufferId patches = -1;
  const auto widen = [](int32_t& columns) {
    columns = (columns + kGemmColumns - 1) / kGemmColumns * kGemmColumns;
  };
  for (Op& op : program.ops) {
    if (op.kind == OpKind::kPatches) {
      patches = op.outputs[0].buffer;
      widen(op.outputs[0].columns);
      widen(program.buffers[static_cast<size_t>(patches)].columns);
    } else if (op.kind == OpKind::kMatmul && op.inputs[0].buffer == patches) {
      widen(op.inputs[0].columns);
      widen(op.as<Matmul>().in_features);
    }
  }
  return program;
}

// Gate and up, or up alone: what the activation behind the matrix says.
int32_t mlp_halves(const Program& program, const Op& gate_up) {
  for (const Op& op : program.ops) {
    if (op.kind == OpKind::kActivation && op.layer == gate_up.layer) {
      return op.as<Activation>().gated ? 2 : 1;
    }
  }
  return 1;
}

// Both halves of an MLP's matrix become whole numbers of kGemmColumns rows of zeros, and so do the
// inputs of the matrix behind it.
Program widen_mlp(Program program) {
  const auto widened = [](int32_t columns) {
    return (columns + kGemmColumns - 1) / kGemmColumns * kGemmColumns;
  };
  for (Op& op : program.ops) {
    if (op.kind == OpKind::kActivation && op.layer >= 0) {
      auto& activation = op.as<Activation>();
      activation.dim = widened(activation.dim);
      op.outputs[0].columns = activation.dim;
      op.inputs[0].columns = (activation.gated ? 2 : 1) * activation.dim;
      program.buffers[static_cast<size_t>(op.inputs[0].buffer)].columns = op.inputs[0].columns;
    }
    if (op.kind != OpKind::kMatmul) continue;
    auto& matmul = op.as<Matmul>();
    if (matmul.weight.kind == WeightKind::kGateUp) {
      const int32_t halves = mlp_halves(program, op);
      matmul.out_features = op.outputs[0].columns = halves * widened(matmul.out_features / halves);
    } else if (matmul.weight.kind == WeightKind::kDown) {
      matmul.in_features = op.inputs[0].columns = widened(matmul.in_features);
    }
  }
  return program;
}

// Adapters of the GEMMs whose sizes the kernels take: not of the shared expert's gate.
Program gain_wide_adapters(Program program) {
  program = gain_adapters(std::move(program));
  for (Op& op : program.ops) {
    if (op.kind != OpKind::kMatmul) continue;
    auto& matmul = op.as<Matmul>();
    matmul.adapters &= matmul.in_features % 8 == 0 && matmul.out_features % 8 == 0;
  }
  return program;
}

// Collects the parts of one MoE block.
class MoeBlockFinder {
 public:
  MoeBlockFinder(const Program& program, size_t route) : program_(program), route_(route) {}

  std::optional<Alternative> find() {
    if (route_ == 0 || !take_norm(program_.ops[route_ - 1])) return std::nullopt;
    block_.route = program_.ops[route_].as<MoeRoute>();
    for (size_t i = route_ + 1; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      if (op.layer != program_.ops[route_].layer || !take(op)) return std::nullopt;
      if (op.kind == OpKind::kMoeCombine) return finish(i);
    }
    return std::nullopt;
  }

 private:
  bool take_norm(const Op& op) {
    if (op.kind != OpKind::kNorm || op.outputs[0] != program_.ops[route_].inputs[0] ||
        op.inputs[0] == op.outputs[0] || op.as<Norm>().spec.kind == NormSpec::Kind::kLayer) {
      return false;
    }
    block_.norm = op.as<Norm>();
    return true;
  }

  bool take(const Op& op) {
    switch (op.kind) {
      case OpKind::kMoeMatmul:
        (gate_up_ == nullptr ? gate_up_ : down_) = &op;
        return true;
      case OpKind::kActivation:
        if (op.inputs[0].buffer == pair_buffer()) {
          block_.experts.activation = op.as<Activation>();
        } else {
          block_.shared_activation = op.as<Activation>();
        }
        return true;
      case OpKind::kMatmul:
        return take_shared(op);
      case OpKind::kMoeCombine:
        block_.experts.combine = op.as<MoeCombine>();
        return true;
      default:
        return false;
    }
  }
  BufferId pair_buffer() const { return gate_up_ == nullptr ? -1 : gate_up_->outputs[0].buffer; }

  bool take_shared(const Op& op) {
    const auto& matmul = op.as<Matmul>();
    if (matmul.weight.kind == WeightKind::kSharedGate) {
      block_.shared_gate = matmul.weight;
      return true;
    }
    if (matmul.bias || matmul.residual || matmul.norm || matmul.adapters) return false;
    if (block_.shared_gate_up.weight) {
      block_.shared_down = matmul;
      return true;
    }
    block_.shared_gate_up = matmul;
    if (matmul.activation) block_.shared_activation = *matmul.activation;
    shared_inner_ = op.outputs[0];
    return true;
  }

  std::optional<Alternative> finish(size_t combine) {
    MoeExperts& experts = block_.experts;
    if (gate_up_ == nullptr || down_ == nullptr || !experts.activation ||
        !experts.activation->gated || (experts.combine.shared && !shared_is_like_experts())) {
      return std::nullopt;
    }
    experts.gate_up = gate_up_->as<MoeMatmul>();
    experts.down = down_->as<MoeMatmul>();
    const Op& last = program_.ops[combine];
    const Op& norm = program_.ops[route_ - 1];
    Op op{.kind = OpKind::kMoeBlock, .layer = last.layer};
    op.inputs = {norm.inputs[0]};
    if (experts.combine.residual) op.inputs.push_back(last.inputs.back());
    op.outputs = {last.outputs[0], norm.outputs[0], gate_up_->outputs[0]};
    if (experts.combine.shared) op.outputs.push_back(shared_inner_);
    op.attributes = block_;
    op.dependent_launch = true;
    return Alternative{route_ - 1, combine + 1, std::move(op)};
  }

  bool shared_is_like_experts() const {
    const Activation &a = block_.shared_activation, &b = *block_.experts.activation;
    return block_.shared_down.weight && a.gated && a.kind == b.kind && a.limit == b.limit;
  }

  const Program& program_;
  const size_t route_;
  const Op *gate_up_ = nullptr, *down_ = nullptr;
  Operand shared_inner_;
  MoeBlock block_;
};

// The first GEMM of a layer's experts and the gated activation behind it.
std::optional<Alternative> find_gated_experts(const Program& program, size_t matmul) {
  if (matmul + 1 == program.ops.size()) return std::nullopt;
  const Op &gate_up = program.ops[matmul], &next = program.ops[matmul + 1];
  if (next.kind != OpKind::kActivation || next.inputs[0] != gate_up.outputs[0] ||
      !next.as<Activation>().gated) {
    return std::nullopt;
  }
  Op op = gate_up;
  op.as<MoeMatmul>().activation = next.as<Activation>();
  op.outputs = {next.outputs[0], gate_up.outputs[0]};
  return Alternative{matmul, matmul + 2, std::move(op)};
}

// Queries in the latent space, their rotated part, rotation and append, attention, values.
constexpr OpKind kLatentAttention[] = {OpKind::kHeadMatmul, OpKind::kHeadCopy,
                                       OpKind::kQkRopeAppend, OpKind::kAttention,
                                       OpKind::kHeadMatmul};

std::optional<Alternative> find_latent_prefill(const Program& program, size_t first) {
  const size_t count = std::size(kLatentAttention);
  if (first + count > program.ops.size()) return std::nullopt;
  const std::span<const Op> ops(program.ops.data() + first, count);
  if (!std::ranges::equal(ops, kLatentAttention, {}, &Op::kind) ||
      ops[0].as<HeadMatmul>().weight.kind != WeightKind::kQueryToLatent ||
      !ops[3].as<Attention>().latent) {
    return std::nullopt;
  }
  const auto &absorb = ops[0].as<HeadMatmul>(), &values = ops[4].as<HeadMatmul>();
  Op op{.kind = OpKind::kLatentPrefill, .layer = ops[0].layer};
  op.inputs = {ops[0].inputs[0], ops[0].outputs[0]};
  op.outputs = {ops[4].outputs[0], ops[3].outputs[0]};
  op.attributes = LatentPrefill{.weight = values.weight,
                                .heads = absorb.heads,
                                .nope_dim = absorb.in_features,
                                .rope_dim = ops[1].as<HeadCopy>().count,
                                .value_dim = values.out_features,
                                .rank = absorb.out_features,
                                .scale = ops[3].as<Attention>().scale};
  op.dependent_launch = true;
  return Alternative{first, first + count, std::move(op)};
}

}  // namespace

std::vector<Alternative> find_alternatives(const Program& program) {
  std::vector<Alternative> out;
  const auto add = [&](std::optional<Alternative> found) {
    if (found) out.push_back(std::move(*found));
  };
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].kind == OpKind::kMoeRoute) add(MoeBlockFinder(program, i).find());
    if (program.ops[i].kind == OpKind::kMoeMatmul) add(find_gated_experts(program, i));
    if (program.ops[i].kind == OpKind::kHeadMatmul) add(find_latent_prefill(program, i));
  }
  return out;
}

Program encoder_passes(Program program) {
  program = fuse_residual(attend_rows(widen_mlp(widen_patches(std::move(program)))));
  const auto merges = [](const Op& op) { return std::holds_alternative<MergeRows>(op.attributes); };
  // Where rows are merged all of them are wanted.
  if (std::ranges::none_of(program.ops, merges)) {
    program = drop_unwanted_rows(std::move(program), Selection::kAfterAttention);
  }
  return remove_unused_buffers(std::move(program));
}

Program gpu_passes(Program program, bool adapters, bool all_rows) {
  if (adapters) program = gain_wide_adapters(std::move(program));
  const auto takes = [](const Matmul& matmul, const Activation& activation) {
    return !matmul.adapters && activation.gated && activation.kind == kernels::Activation::kSilu;
  };
  program = fuse_activation(std::move(program), takes);
  program = attend_new_tokens(fuse_qk_rope_append(fuse_moe_combine(std::move(program))));
  program = drop_unwanted_rows(fuse_residual(std::move(program)),
                               all_rows ? Selection::kBehindLayers : Selection::kAfterAttention);
  program = fuse_all_reduce(std::move(program));
  program = fuse_norm(std::move(program), [](const Norm& norm, const Matmul& matmul) {
    // The norm of the queries' latent is in place; its GEMM takes the library's kernels. Adapters
    // read the normalised rows too.
    return norm.spec.kind == NormSpec::Kind::kRms && !matmul.adapters &&
           matmul.weight.kind != WeightKind::kLatentQ;
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

// Behind rows of the stage before no kernel stands for the first operation, so the second one is
// what waits for all that was enqueued before.
Program allow_dependent_launch(Program program) {
  const Op& first = program.ops.front();
  const bool no_kernel =
      first.kind == OpKind::kInput && first.as<Input>().kind == Input::Kind::kStage;
  for (size_t i = no_kernel ? 2 : 1; i < program.ops.size(); ++i)
    program.ops[i].dependent_launch = true;
  return program;
}

}  // namespace espalier::program
