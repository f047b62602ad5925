#include "models/program/rank_sums.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace espalier::program {
namespace {

// Of MLPs and experts, whose features are divided among ranks also where attention is whole, and of
// the norm in front of them: where it stands beside a matrix or a router, GPUs compute both at
// once.
bool is_divided(WeightKind kind) {
  switch (kind) {
    case WeightKind::kPostAttentionNorm:
    case WeightKind::kRouter:
    case WeightKind::kExpertGateUp:
    case WeightKind::kExpertDown:
    case WeightKind::kSharedGate:
    case WeightKind::kGateUp:
    case WeightKind::kDown:
      return true;
    default:
      return false;
  }
}

// The buffers of operations that compute the rows of all ranks. What such an operation reads of the
// rank's own rows is gathered, once for as long as these stay.
class RankRowsPlacer {
 public:
  explicit RankRowsPlacer(Program& program) : program_(program) {}

  // Gives the operation buffers of all ranks' rows, where it computes these.
  void place(Op& op, std::vector<Op>& ops) {
    if (!reads_all(op)) {
      for (const Operand& output : op.outputs) overwrite(output);
      return;
    }
    for (Operand& input : op.inputs) input = all_rows_of(input, op.layer, ops);
    for (Operand& output : op.outputs) {
      overwrite(output);
      holds_all_[output.buffer] = true;
      output = twin(output);
    }
  }

  // The rank's own rows of the sum of all ranks' `partial`.
  Op scatter(const Operand& partial, int32_t layer) {
    holds_all_[partial.buffer] = false;
    return {.kind = OpKind::kScatterSums,
            .layer = layer,
            .inputs = {twin(partial)},
            .outputs = {partial}};
  }

 private:
  bool holds_all(const Operand& operand) { return holds_all_[operand.buffer]; }
  bool reads_all(const Op& op) {
    const auto divided = [](WeightId id) { return is_divided(id.kind); };
    return std::ranges::any_of(weights_of(op), divided) ||
           std::ranges::any_of(op.inputs, [&](const Operand& x) { return holds_all(x); });
  }
  void overwrite(const Operand& own) {
    holds_all_[own.buffer] = false;
    std::erase_if(gathered_, [&](const Operand& x) { return x.buffer == own.buffer; });
  }

  Operand twin(const Operand& own) {
    const Buffer from = program_.buffer(own);
    const std::string name = from.name.substr(0, from.name.find('.'));
    const Operand all =
        find_or_add_buffer(program_, "all_" + name, from.columns, rank_rows(from.rows), from.type);
    return {all.buffer, own.column, own.columns};
  }

  Operand all_rows_of(const Operand& own, int32_t layer, std::vector<Op>& ops) {
    const Operand all = twin(own);
    if (holds_all(own) || std::ranges::find(gathered_, own) != gathered_.end()) return all;
    ops.push_back({.kind = OpKind::kGatherRows, .layer = layer, .inputs = {own}, .outputs = {all}});
    gathered_.push_back(own);
    return all;
  }

  Program& program_;
  std::map<BufferId, bool> holds_all_;  // by the rank's own buffer: its twin has been written last
  std::vector<Operand> gathered_;       // whose twins have their rows
};

// An operand is partial from the matrix that makes it until it is summed.
class SumInserter {
 public:
  SumInserter(Program program, const Ranks& ranks, const Ranks& expert_slices, bool whole_attention)
      : program_(std::move(program)),
        ranks_(ranks),
        expert_slices_(expert_slices),
        whole_attention_(whole_attention),
        placer_(program_) {}

  Program run() {
    std::vector<Op> ops;
    for (Op& op : program_.ops) {
      if (!keeps_partial(op)) sum_inputs(op, ops);
      mark(op);
      if (whole_attention_) placer_.place(op, ops);
      ops.push_back(std::move(op));
    }
    program_.ops = std::move(ops);
    return std::move(program_);
  }

 private:
  bool is_column_matrix(WeightId id) const {
    return (id.kind == WeightKind::kAttentionOutput && !whole_attention_) ||
           id.kind == WeightKind::kDown || id.kind == WeightKind::kExpertDown;
  }
  bool is_partial(const Operand& operand) const {
    return std::ranges::find(partial_, operand) != partial_.end();
  }
  // Sums of partial numbers are partial.
  bool keeps_partial(const Op& op) const {
    if (op.kind == OpKind::kMoeCombine) return true;
    const bool adds = op.kind == OpKind::kResidualAdd || op.kind == OpKind::kGatedAdd;
    return adds && is_partial(op.inputs[0]) && is_partial(op.inputs[1]);
  }
  void sum_inputs(const Op& op, std::vector<Op>& ops) {
    for (const Operand& input : op.inputs) {
      const auto found = std::ranges::find(partial_, input);
      if (found == partial_.end()) continue;
      ops.push_back(whole_attention_ ? placer_.scatter(input, op.layer)
                                     : Op{.kind = OpKind::kAllReduce,
                                          .layer = op.layer,
                                          .inputs = {input},
                                          .outputs = {input},
                                          .attributes = AllReduce{}});
      partial_.erase(found);
    }
  }
  // The bias of a sum is added once.
  void mark(Op& op) {
    bool partial = keeps_partial(op);
    for (const Operand& output : op.outputs) std::erase(partial_, output);
    if (op.kind == OpKind::kMatmul) {
      auto& a = op.as<Matmul>();
      partial = is_column_matrix(a.weight);
      if (partial && ranks_.rank > 0) a.bias = {};
    } else if (op.kind == OpKind::kMoeMatmul) {
      auto& a = op.as<MoeMatmul>();
      partial = is_column_matrix(a.weight);
      if (partial && expert_slices_.rank > 0) a.bias = {};
    }
    if (partial) partial_.push_back(op.outputs[0]);
  }

  Program program_;
  const Ranks ranks_;
  const Ranks expert_slices_;  // ranks that divide the same experts
  const bool whole_attention_;
  RankRowsPlacer placer_;  // of program_
  std::vector<Operand> partial_;
};

}  // namespace

Program insert_sums(Program program, const Ranks& ranks, const Ranks& expert_slices,
                    bool whole_attention) {
  return SumInserter(std::move(program), ranks, expert_slices, whole_attention).run();
}

}  // namespace espalier::program
