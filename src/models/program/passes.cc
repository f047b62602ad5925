#include "models/program/passes.h"

#include <algorithm>
#include <map>
#include <utility>

#include "models/program/lower.h"

namespace espalier::program {
namespace {

bool same_storage(const Program& program, const Operand& a, const Operand& b) {
  return program.buffer(a).storage == program.buffer(b).storage;
}

bool writes_storage_of(const Program& program, const Op& op, const Operand& operand) {
  return std::ranges::any_of(
      op.outputs, [&](const Operand& output) { return same_storage(program, output, operand); });
}

bool reads(const Op& op, const Operand& operand) {
  return std::ranges::any_of(op.inputs,
                             [&](const Operand& input) { return input.buffer == operand.buffer; });
}

// Whether an operation from `first` on reads the buffer's present contents.
bool is_read_from(const Program& program, size_t first, const Operand& operand) {
  for (size_t i = first; i < program.ops.size(); ++i) {
    if (reads(program.ops[i], operand)) return true;
    if (writes_storage_of(program, program.ops[i], operand)) return false;
  }
  return false;
}

// The readers of `from` from operation `first` on, up to the next write, read `to` instead.
void redirect_reads(Program& program, size_t first, const Operand& from, const Operand& to) {
  for (size_t i = first; i < program.ops.size(); ++i) {
    std::ranges::replace(program.ops[i].inputs, from, to);
    if (writes_storage_of(program, program.ops[i], from)) return;
  }
}

void erase(Program& program, size_t first, size_t count) {
  const auto begin = program.ops.begin() + static_cast<std::ptrdiff_t>(first);
  program.ops.erase(begin, begin + static_cast<std::ptrdiff_t>(count));
}

bool kinds_are(const Program& program, size_t first, std::initializer_list<OpKind> kinds) {
  if (first + kinds.size() > program.ops.size()) return false;
  return std::equal(kinds.begin(), kinds.end(),
                    program.ops.begin() + static_cast<std::ptrdiff_t>(first),
                    [](OpKind kind, const Op& op) { return kind == op.kind; });
}

bool try_fuse_activation(Program& program, size_t index, const TakesActivation& takes) {
  if (!kinds_are(program, index, {OpKind::kMatmul, OpKind::kActivation})) return false;
  const Activation activation = program.ops[index + 1].as<Activation>();
  const Operand in_place = program.ops[index + 1].outputs[0];
  if (program.ops[index + 1].inputs[0] != program.ops[index].outputs[0] ||
      !takes(program.ops[index].as<Matmul>(), activation)) {
    return false;
  }
  const Rows rows = program.buffer(in_place).rows;
  const Operand activated = find_or_add_buffer(program, "activated", activation.dim, rows);
  Op& op = program.ops[index];
  op.as<Matmul>().activation = activation;
  op.outputs = {activated};
  erase(program, index + 1, 1);
  redirect_reads(program, index + 1, in_place, activated);
  return true;
}

// The GEMM of experts as TakesActivation wants to see one.
Matmul as_matmul(const MoeMatmul& moe) {
  return {.weight = moe.weight,
          .bias = moe.bias,
          .in_features = moe.in_features,
          .out_features = moe.out_features};
}

void fuse_activation_of_experts(MoeExperts& experts, const TakesActivation& takes) {
  if (!experts.activation || !takes(as_matmul(experts.gate_up), *experts.activation)) return;
  experts.gate_up.activation = std::exchange(experts.activation, std::nullopt);
}

bool try_fuse_residual(Program& program, size_t index) {
  if (!kinds_are(program, index, {OpKind::kMatmul, OpKind::kResidualAdd})) return false;
  Op& op = program.ops[index];
  const Op& add = program.ops[index + 1];
  auto& matmul = op.as<Matmul>();
  const Operand branch = op.outputs[0];
  if (add.inputs[1] != branch || add.as<ResidualAdd>().scale != 1 || matmul.residual ||
      matmul.activation || is_read_from(program, index + 2, branch)) {
    return false;
  }
  matmul.residual = true;
  op.inputs.push_back(add.inputs[0]);
  op.outputs = {add.outputs[0]};
  erase(program, index + 1, 1);
  return true;
}

bool try_fuse_norm(Program& program, size_t index, const TakesNorm& takes) {
  if (!kinds_are(program, index, {OpKind::kNorm, OpKind::kMatmul})) return false;
  const Op norm = program.ops[index];
  Op& op = program.ops[index + 1];
  if (op.inputs[0] != norm.outputs[0] || !takes(norm.as<Norm>(), op.as<Matmul>()) ||
      is_read_from(program, index + 2, norm.outputs[0])) {
    return false;
  }
  op.as<Matmul>().norm = norm.as<Norm>();
  op.inputs[0] = norm.inputs[0];
  op.outputs.push_back(norm.outputs[0]);
  erase(program, index, 1);
  return true;
}

bool try_fuse_reduced_residual(Program& program, size_t index) {
  if (!kinds_are(program, index, {OpKind::kAllReduce, OpKind::kResidualAdd})) return false;
  Op& op = program.ops[index];
  const Op& add = program.ops[index + 1];
  const Operand branch = op.outputs[0];
  if (add.inputs[1] != branch || add.outputs[0] != add.inputs[0] ||
      add.as<ResidualAdd>().scale != 1 || op.as<AllReduce>().residual ||
      is_read_from(program, index + 2, branch)) {
    return false;
  }
  op.as<AllReduce>().residual = true;
  op.inputs.push_back(add.inputs[0]);
  op.outputs = {add.outputs[0]};
  erase(program, index + 1, 1);
  return true;
}

void try_fuse_reduced_norm(Program& program, size_t index) {
  if (!kinds_are(program, index, {OpKind::kAllReduce, OpKind::kNorm, OpKind::kMatmul})) return;
  Op& op = program.ops[index];
  const Op& norm = program.ops[index + 1];
  if (!op.as<AllReduce>().residual || norm.inputs[0] != op.outputs[0] ||
      norm.as<Norm>().groups != 1 || norm.as<Norm>().spec.kind == NormSpec::Kind::kLayer ||
      same_storage(program, norm.outputs[0], op.inputs[0]) ||
      same_storage(program, norm.outputs[0], op.inputs[1])) {
    return;
  }
  op.as<AllReduce>().norm = norm.as<Norm>();
  op.outputs.push_back(norm.outputs[0]);
  erase(program, index + 1, 1);
}

bool is_head_norm(const Op& op, const Operand& q_or_k, int32_t head_dim) {
  return op.kind == OpKind::kNorm && op.outputs[0] == q_or_k &&
         op.inputs[0].columns == op.as<Norm>().groups * head_dim;
}

// Absorbs the operations in front of the append at `index` that belong to it.
void fuse_append(Program& program, size_t index) {
  Op& op = program.ops[index];
  QkRopeAppend fused{.append = op.as<KvAppend>()};
  const int32_t head_dim = fused.append.head_dim;
  const Operand k = op.inputs[0], q{k.buffer, 0, k.column};
  size_t first = index;
  if (first > 0 && program.ops[first - 1].kind == OpKind::kRope) {
    fused.rope = program.ops[--first].as<Rope>();
  }
  if (first > 0 && is_head_norm(program.ops[first - 1], k, head_dim)) {
    fused.k_norm = program.ops[--first].as<Norm>();
  }
  if (first > 0 && is_head_norm(program.ops[first - 1], q, head_dim)) {
    fused.q_norm = program.ops[--first].as<Norm>();
  }
  op.kind = OpKind::kQkRopeAppend;
  op.inputs.insert(op.inputs.begin(), q);
  op.outputs = {q};
  op.attributes = fused;
  erase(program, first, index - first);
}

void fuse_experts(Program& program, size_t index) {
  const Op gate_up = program.ops[index], activation = program.ops[index + 1];
  const Op down = program.ops[index + 2];
  Op& op = program.ops[index + 3];
  op.kind = OpKind::kMoeExperts;
  op.attributes = MoeExperts{.gate_up = gate_up.as<MoeMatmul>(),
                             .down = down.as<MoeMatmul>(),
                             .activation = activation.as<Activation>(),
                             .combine = op.as<MoeCombine>()};
  op.inputs = {gate_up.inputs[0], gate_up.inputs[1], op.inputs[1]};
  erase(program, index, 3);
}

// The index of the first addition behind `index` in the same layer whose sum is `branch`, or whose
// summand it is.
size_t next_addition(const Program& program, size_t index, const Operand& branch) {
  for (size_t i = index + 1; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const bool adds = op.kind == OpKind::kResidualAdd || op.kind == OpKind::kGatedAdd;
    if (adds && (op.inputs[0] == branch || op.inputs[1] == branch)) return i;
    if (reads(op, branch) || writes_storage_of(program, op, branch)) break;
  }
  return program.ops.size();
}

// The combination moves behind what it depends on: to the place of the addition.
void fuse_addition(Program& program, size_t combine, size_t addition, Op fused) {
  program.ops[addition] = std::move(fused);
  erase(program, combine, 1);
}

bool try_fuse_shared(Program& program, size_t index) {
  const Op& op = program.ops[index];
  const size_t at = next_addition(program, index, op.outputs[0]);
  if (at == program.ops.size() || program.ops[at].inputs[0] != op.outputs[0]) return false;
  const Op& add = program.ops[at];
  Op fused = op;
  auto& combine = fused.as<MoeCombine>();
  if (combine.shared || combine.residual) return false;
  combine.shared = true;
  combine.gate = add.kind == OpKind::kGatedAdd;
  fused.inputs.insert(fused.inputs.end(), add.inputs.begin() + 1, add.inputs.end());
  fuse_addition(program, index, at, std::move(fused));
  return true;
}

bool try_fuse_combined_residual(Program& program, size_t index) {
  const Op& op = program.ops[index];
  const size_t at = next_addition(program, index, op.outputs[0]);
  if (at == program.ops.size() || program.ops[at].kind != OpKind::kResidualAdd ||
      program.ops[at].inputs[1] != op.outputs[0] || op.as<MoeCombine>().residual ||
      is_read_from(program, at + 1, op.outputs[0])) {
    return false;
  }
  Op fused = op;
  fused.as<MoeCombine>().residual = true;
  fused.as<MoeCombine>().scale = program.ops[at].as<ResidualAdd>().scale;
  fused.inputs.push_back(program.ops[at].inputs[0]);
  fused.outputs = program.ops[at].outputs;
  fuse_addition(program, index, at, std::move(fused));
  return true;
}

// Whether states for a draft head are kept behind this operation.
bool keeps_states_behind(const Program& program, size_t index) {
  const auto keeps = [&](const Op& op) {
    return std::ranges::any_of(op.outputs, [&](const Operand& output) {
      return program.buffer(output).name == kKeptStates;
    });
  };
  const auto begin = program.ops.begin() + static_cast<std::ptrdiff_t>(index);
  return std::any_of(begin, program.ops.end(), keeps);
}

// Gives operations behind the selection buffers of wanted rows.
class RowDropper {
 public:
  RowDropper(Program& program, size_t first, size_t last)
      : program_(program), first_(first), last_(last) {}

  void run() {
    for (size_t i = first_; i <= last_; ++i) {
      for (Operand& operand : program_.ops[i].inputs) operand = input(operand);
      if (i == last_) break;
      for (Operand& operand : program_.ops[i].outputs) operand = output(operand);
    }
    Op select{.kind = OpKind::kSelectRows, .layer = program_.ops[first_].layer};
    // The residual, which is needed last, comes first.
    for (auto it = selected_.rbegin(); it != selected_.rend(); ++it) {
      select.inputs.push_back(it->first);
      select.outputs.push_back(it->second);
    }
    program_.ops.insert(program_.ops.begin() + static_cast<std::ptrdiff_t>(first_),
                        std::move(select));
  }

 private:
  Operand input(const Operand& operand) {
    if (const auto twin = twins_.find(operand.buffer); twin != twins_.end()) {
      return {twin->second, operand.column, operand.columns};
    }
    for (const auto& [from, to] : selected_) {
      if (from == operand) return to;
    }
    const Buffer from = program_.buffer(operand);
    Buffer to{from.name + ".wanted", wanted(from.rows), operand.columns, from.type,
              program_.num_storages++};
    const Operand selected{add(std::move(to)), 0, operand.columns};
    selected_.emplace_back(operand, selected);
    if (operand.columns == from.columns) twins_[operand.buffer] = selected.buffer;
    return selected;
  }

  Operand output(const Operand& operand) {
    const auto [twin, is_new] = twins_.try_emplace(operand.buffer);
    if (is_new) {
      Buffer to = program_.buffer(operand);
      to.name += ".wanted";
      to.rows = wanted(to.rows);
      twin->second = add(std::move(to));
    }
    return {twin->second, operand.column, operand.columns};
  }

  static Rows wanted(const Rows& rows) {
    const Rows own{RowCount::kWanted, rows.per_row};
    return rows.count == RowCount::kRankTokens ? rank_rows(own) : own;
  }
  BufferId add(Buffer buffer) {
    program_.buffers.push_back(std::move(buffer));
    return static_cast<BufferId>(program_.buffers.size() - 1);
  }

  Program& program_;
  const size_t first_, last_;  // the first operation of wanted rows; the one that selects outputs
  std::map<BufferId, BufferId> twins_;  // of wanted rows, by the buffer of all
  std::vector<std::pair<Operand, Operand>> selected_;
};

// Renumbers what is used from 0 on.
class Renumbering {
 public:
  int32_t operator()(int32_t id) {
    return new_ids_.try_emplace(id, static_cast<int32_t>(new_ids_.size())).first->second;
  }
  int32_t size() const { return static_cast<int32_t>(new_ids_.size()); }

 private:
  std::map<int32_t, int32_t> new_ids_;
};

}  // namespace

Program fuse_activation(Program program, const TakesActivation& takes) {
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].kind == OpKind::kMoeExperts) {
      fuse_activation_of_experts(program.ops[i].as<MoeExperts>(), takes);
    } else {
      try_fuse_activation(program, i, takes);
    }
  }
  return program;
}

Program fuse_residual(Program program) {
  for (size_t i = 0; i < program.ops.size(); ++i) try_fuse_residual(program, i);
  return program;
}

Program fuse_norm(Program program, const TakesNorm& takes) {
  for (size_t i = 0; i < program.ops.size(); ++i) try_fuse_norm(program, i, takes);
  return program;
}

Program fuse_all_reduce(Program program) {
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (try_fuse_reduced_residual(program, i)) try_fuse_reduced_norm(program, i);
  }
  return program;
}

Program gain_adapters(Program program) {
  for (Op& op : program.ops) {
    if (op.kind == OpKind::kMatmul && op.layer >= 0) op.as<Matmul>().adapters = true;
  }
  return program;
}

Program fuse_qk_rope_append(Program program) {
  for (size_t i = program.ops.size(); i-- > 0;) {
    if (program.ops[i].kind == OpKind::kKvAppend) fuse_append(program, i);
  }
  return program;
}

Program fuse_moe_experts(Program program) {
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (kinds_are(
            program, i,
            {OpKind::kMoeMatmul, OpKind::kActivation, OpKind::kMoeMatmul, OpKind::kMoeCombine})) {
      fuse_experts(program, i);
    }
  }
  return program;
}

Program fuse_moe_combine(Program program) {
  for (size_t i = 0; i < program.ops.size();) {
    const bool fused = program.ops[i].kind == OpKind::kMoeCombine &&
                       (try_fuse_shared(program, i) || try_fuse_combined_residual(program, i));
    if (!fused) ++i;
  }
  return program;
}

Program drop_unwanted_rows(Program program, Selection where) {
  const size_t last = output_begin(program);
  if (last == program.ops.size()) return program;  // a stage hands on all rows
  const auto is_attention = [](const Op& op) { return op.kind == OpKind::kAttention; };
  const auto attention = std::find_if(program.ops.rbegin(), program.ops.rend(), is_attention);
  if (attention == program.ops.rend()) return program;
  auto first = static_cast<size_t>(program.ops.rend() - attention) - 1;
  if (where == Selection::kBehindLayers || keeps_states_behind(program, first)) {
    first = last;
  } else if (where == Selection::kAfterAttention) {
    ++first;
    const Op& next = program.ops[first];
    const bool of_latents = next.kind == OpKind::kHeadMatmul &&
                            next.as<HeadMatmul>().weight.kind == WeightKind::kLatentToValue;
    if (of_latents) ++first;
  }
  RowDropper(program, first, last).run();
  return program;
}

Program drop_pooling(Program program) {
  std::erase_if(program.ops, [](const Op& op) { return op.kind == OpKind::kPool; });
  return remove_unused_buffers(std::move(program));
}

Program remove_unused_buffers(Program program) {
  Renumbering buffers, storages;
  for (Op& op : program.ops) {
    for (Operand& operand : op.inputs) operand.buffer = buffers(operand.buffer);
    for (Operand& operand : op.outputs) operand.buffer = buffers(operand.buffer);
  }
  std::vector<Buffer> used(static_cast<size_t>(buffers.size()));
  const auto count = static_cast<int32_t>(program.buffers.size());
  for (BufferId old = 0; old < count; ++old) {
    const int32_t id = buffers(old);
    if (static_cast<size_t>(id) < used.size()) used[static_cast<size_t>(id)] = program.buffer(old);
  }
  for (Buffer& buffer : used) buffer.storage = storages(buffer.storage);
  program.buffers = std::move(used);
  program.num_storages = storages.size();
  return program;
}

std::vector<WeightId> weights_with_activation(const Program& program) {
  std::vector<WeightId> out;
  for (const Op& op : program.ops) {
    if (op.kind == OpKind::kMatmul && op.as<Matmul>().activation) {
      out.push_back(op.as<Matmul>().weight);
    } else if (op.kind == OpKind::kMoeExperts && op.as<MoeExperts>().gate_up.activation) {
      out.push_back(op.as<MoeExperts>().gate_up.weight);
    }
  }
  return out;
}

}  // namespace espalier::program
