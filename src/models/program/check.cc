#include "models/program/check.h"

#include <algorithm>
#include <string>

#include "models/program/print.h"

namespace espalier::program {
namespace {

// How many inputs and outputs an operation may have.
struct Arity {
  size_t min_inputs = 0, max_inputs = 0, outputs = 0, max_outputs = 0;
};

Arity arity_of(OpKind kind) {
  switch (kind) {
    case OpKind::kEmbed:
    case OpKind::kEmbedPosition:
    case OpKind::kEmbedType:
    case OpKind::kGridPosition:
    case OpKind::kPatches:
    case OpKind::kInput:
    case OpKind::kTilePosition:
    case OpKind::kFill:
    case OpKind::kMegakernel:
      return {0, 0, 1, 1};
    case OpKind::kClassEmbed:
    case OpKind::kAddSpans:
    case OpKind::kAddControl:
    case OpKind::kScale:
    case OpKind::kSoftcap:
    case OpKind::kNorm:
    case OpKind::kHeadMatmul:
    case OpKind::kHeadCopy:
    case OpKind::kRope:
    case OpKind::kActivation:
    case OpKind::kPool:
    case OpKind::kRelu:
    case OpKind::kAllGather:
    case OpKind::kGatherRows:
    case OpKind::kScatterSums:
    case OpKind::kMeanParts:
    case OpKind::kKeepRows:
    case OpKind::kCrossAttention:
      return {1, 1, 1, 1};
    case OpKind::kAllReduce:  // the second output: see fuse_all_reduce
      return {1, 2, 1, 2};
    case OpKind::kMatmul:  // the second output: see fuse_norm
      return {1, 2, 1, 2};
    case OpKind::kMoeBlock:  // the other outputs: see Alternative
      return {1, 2, 1, 4};
    case OpKind::kLatentPrefill:  // the second output: see Alternative
      return {2, 2, 1, 2};
    case OpKind::kKvAppend:
      return {1, 2, 0, 0};
    case OpKind::kBarrier:
      return {1, 2, 0, 0};
    case OpKind::kOutput:
      return {1, 1, 0, 0};
    case OpKind::kAttention:
      return {1, 3, 1, 1};
    case OpKind::kSelectRows:
      return {1, 16, 1, 16};
    case OpKind::kResidualAdd:
    case OpKind::kMoeMatmul:
      return {2, 2, 1, 1};
    case OpKind::kMoeRoute:
      return {1, 1, 2, 2};
    case OpKind::kGatedAdd:
    case OpKind::kMoeExperts:
      return {3, 3, 1, 1};
    case OpKind::kMoeCombine:
      return {3, 6, 1, 1};
    case OpKind::kQkRopeAppend:
      return {2, 3, 1, 2};
  }
  return {};
}

Status check_buffers(const Program& program) {
  for (const Buffer& buffer : program.buffers) {
    if (buffer.columns < 1 || buffer.rows.per_row < 1 || buffer.storage < 0 ||
        buffer.storage >= program.num_storages) {
      return invalid_argument("buffer {} of {} has {} columns, {} rows in storage {} of {}",
                              buffer.name, program.name, buffer.columns, to_string(buffer.rows),
                              buffer.storage, program.num_storages);
    }
  }
  return Status();
}

int32_t query_columns(const Op& op) {
  if (op.kind == OpKind::kCrossAttention)
    return op.as<CrossAttention>().num_heads * op.as<CrossAttention>().head_dim;
  return op.as<Attention>().num_heads * op.as<Attention>().head_dim;
}

class Checker {
 public:
  explicit Checker(const Program& program)
      : program_(program), holds_(static_cast<size_t>(program.num_storages), BufferId{-1}) {}

  Status run() {
    ESP_RETURN_IF_ERROR(check_buffers(program_));
    for (index_ = 0; index_ < program_.ops.size(); ++index_) {
      const Op& op = program_.ops[index_];
      ESP_RETURN_IF_ERROR(check_arity(op));
      for (const Operand& operand : op.inputs) ESP_RETURN_IF_ERROR(check_read(operand));
      for (const Operand& operand : op.outputs) ESP_RETURN_IF_ERROR(check_range(operand));
      ESP_RETURN_IF_ERROR(check_rows(op));
      ESP_RETURN_IF_ERROR(check_columns(op));
      for (const Operand& operand : op.outputs) held(operand) = operand.buffer;
    }
    return Status();
  }

 private:
  template <typename... Args>
  Status refuse(fmt::format_string<Args...> format, Args&&... args) const {
    return invalid_argument("operation {} ({}) of {}: {}", index_,
                            op_name(program_.ops[index_].kind), program_.name,
                            fmt::format(format, std::forward<Args>(args)...));
  }

  Status check_arity(const Op& op) const {
    const Arity arity = arity_of(op.kind);
    if (op.inputs.size() < arity.min_inputs || op.inputs.size() > arity.max_inputs ||
        op.outputs.size() < arity.outputs || op.outputs.size() > arity.max_outputs) {
      return refuse("{} inputs and {} outputs", op.inputs.size(), op.outputs.size());
    }
    return Status();
  }

  Status check_range(const Operand& operand) const {
    if (operand.buffer < 0 || static_cast<size_t>(operand.buffer) >= program_.buffers.size()) {
      return refuse("there is no buffer {}", operand.buffer);
    }
    const Buffer& buffer = program_.buffer(operand);
    if (operand.column < 0 || operand.columns < 1 ||
        operand.column + operand.columns > buffer.columns) {
      return refuse("columns {} to {} of {}, which has {}", operand.column,
                    operand.column + operand.columns, buffer.name, buffer.columns);
    }
    return Status();
  }

  Status check_read(const Operand& operand) {
    ESP_RETURN_IF_ERROR(check_range(operand));
    const BufferId holds = held(operand);
    const std::string& name = program_.buffer(operand).name;
    if (holds < 0) return refuse("{} is read before it is written", name);
    if (holds != operand.buffer) {
      return refuse("{} is read where its storage holds {}", name, program_.buffer(holds).name);
    }
    return Status();
  }

  // A selection changes rows and a pool makes one of many; pairs are of the rows of a token. Rows
  // of a rank become those of all, and the other way round.
  Status check_rows(const Op& op) const {
    if (op.kind == OpKind::kSelectRows || op.kind == OpKind::kPool) return Status();
    if (op.kind == OpKind::kGatherRows) return check_exchange(op.inputs[0], op.outputs[0]);
    if (op.kind == OpKind::kScatterSums) return check_exchange(op.outputs[0], op.inputs[0]);
    const RowCount count = rows_of(program_, op).count;
    const auto differs = [&](const Operand& operand) {
      return program_.buffer(operand).rows.count != count;
    };
    for (const std::vector<Operand>* operands : {&op.inputs, &op.outputs}) {
      const auto found = std::ranges::find_if(*operands, differs);
      if (found == operands->end()) continue;
      return refuse("{} has {} rows beside {}", program_.buffer(*found).name,
                    to_string(program_.buffer(*found).rows), row_count_name(count));
    }
    return Status();
  }

  Status check_exchange(const Operand& own, const Operand& all) const {
    const Rows &rows = program_.buffer(own).rows, &of_all = program_.buffer(all).rows;
    if (of_all == rank_rows(rows) && rows != of_all) return Status();
    return refuse("{} has {} rows beside {}", program_.buffer(all).name, to_string(of_all),
                  to_string(rows));
  }

  Status check_columns(const Op& op) const {
    switch (op.kind) {
      case OpKind::kMatmul:
        return check_matmul(op);
      case OpKind::kMoeMatmul: {
        const auto& a = op.as<MoeMatmul>();
        ESP_RETURN_IF_ERROR(expect(op.inputs[0], a.in_features));
        return expect(op.outputs[0], a.activation ? a.activation->dim : a.out_features);
      }
      case OpKind::kNorm:
        if (op.inputs[0].columns % op.as<Norm>().groups != 0) {
          return refuse("{} columns in {} groups", op.inputs[0].columns, op.as<Norm>().groups);
        }
        return expect(op.outputs[0], op.inputs[0].columns);
      case OpKind::kActivation: {
        const auto& a = op.as<Activation>();
        ESP_RETURN_IF_ERROR(expect(op.inputs[0], (a.gated ? 2 : 1) * a.dim));
        return expect(op.outputs[0], a.dim);
      }
      case OpKind::kClassEmbed:
      case OpKind::kAddSpans:
      case OpKind::kAddControl:
      case OpKind::kScale:
      case OpKind::kSoftcap:
      case OpKind::kRelu:
      case OpKind::kPool:
      case OpKind::kGatherRows:
      case OpKind::kScatterSums:
      case OpKind::kKeepRows:
        return expect(op.outputs[0], op.inputs[0].columns);
      case OpKind::kAllReduce:
        return check_all_reduce(op);
      case OpKind::kResidualAdd:
      case OpKind::kGatedAdd:
        ESP_RETURN_IF_ERROR(expect(op.inputs[1], op.inputs[0].columns));
        return expect(op.outputs[0], op.inputs[0].columns);
      case OpKind::kAttention:
      case OpKind::kCrossAttention:
        ESP_RETURN_IF_ERROR(expect(op.inputs[0], query_columns(op)));
        return expect(op.outputs[0], query_columns(op));
      case OpKind::kKvAppend:
        return check_append(op.as<KvAppend>(), op.inputs);
      case OpKind::kRope:
        return expect(op.inputs[0], op.as<Rope>().heads * op.as<Rope>().head_dim);
      case OpKind::kMeanParts:
        if (op.inputs[0].columns % op.outputs[0].columns == 0) return Status();
        return refuse("parts of {} columns in rows of {}", op.outputs[0].columns,
                      op.inputs[0].columns);
      case OpKind::kSelectRows:
        return check_selection(op);
      default:
        return Status();
    }
  }

  Status check_all_reduce(const Op& op) const {
    const auto& a = op.as<AllReduce>();
    if (a.residual != (op.inputs.size() == 2)) return refuse("a residual without its input");
    if (a.norm.has_value() != (op.outputs.size() == 2) || (a.norm && !a.residual)) {
      return refuse("a norm without a residual or its output");
    }
    if (op.outputs[0] != op.inputs.back()) return refuse("the sum is not in place");
    for (const Operand& output : op.outputs) {
      ESP_RETURN_IF_ERROR(expect(output, op.inputs[0].columns));
    }
    return expect(op.inputs.back(), op.inputs[0].columns);
  }

  Status check_matmul(const Op& op) const {
    const auto& a = op.as<Matmul>();
    if (a.residual != (op.inputs.size() == 2)) return refuse("a residual without its input");
    if (a.adapters && a.activation) return refuse("adapters behind an activation");
    ESP_RETURN_IF_ERROR(expect(op.inputs[0], a.in_features));
    const int32_t columns = a.activation ? a.activation->dim : a.out_features;
    if (a.residual) ESP_RETURN_IF_ERROR(expect(op.inputs[1], columns));
    return expect(op.outputs[0], columns);
  }

  Status check_append(const KvAppend& a, const std::vector<Operand>& new_kv) const {
    for (const Operand& operand : new_kv) {
      ESP_RETURN_IF_ERROR(expect(operand, a.num_kv_heads * a.head_dim));
    }
    return Status();
  }

  Status check_selection(const Op& op) const {
    if (op.inputs.size() != op.outputs.size()) return refuse("inputs and outputs differ");
    const auto* merge = std::get_if<MergeRows>(&op.attributes);
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const int32_t columns = op.inputs[i].columns;
      ESP_RETURN_IF_ERROR(
          expect(op.outputs[i], merge != nullptr ? merge->count * columns : columns));
      // Rows side by side are read as one.
      if (merge != nullptr && columns != program_.buffer(op.inputs[i]).columns) {
        return refuse("columns of {} are merged", program_.buffer(op.inputs[i]).name);
      }
    }
    return Status();
  }

  Status expect(const Operand& operand, int32_t columns) const {
    if (operand.columns == columns) return Status();
    return refuse("{} has {} columns, not {}", to_string(program_, operand), operand.columns,
                  columns);
  }

  BufferId& held(const Operand& operand) {
    return holds_[static_cast<size_t>(program_.buffer(operand).storage)];
  }

  const Program& program_;
  std::vector<BufferId> holds_;  // of each storage the buffer that was written last; -1: none
  size_t index_ = 0;
};

}  // namespace

Status check(const Program& program) { return Checker(program).run(); }

}  // namespace espalier::program
