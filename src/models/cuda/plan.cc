#include "models/cuda/plan.h"

#include <algorithm>
#include <utility>

#include "models/program/check.h"
#include "models/program/lower.h"

namespace espalier {

bool appends(const program::Op& op) {
  return op.kind == program::OpKind::kKvAppend || op.kind == program::OpKind::kQkRopeAppend;
}

namespace {

bool keeps_states(const program::Program& program, const program::Op& op) {
  return !op.outputs.empty() && program.buffer(op.outputs[0]).name == program::kKeptStates;
}

// The GPU's norms of single heads are those of the kernel that appends.
CudaOp runs(const program::Op& op) {
  const bool of_groups = op.kind == program::OpKind::kNorm && op.as<program::Norm>().groups > 1;
  return of_groups ? nullptr : cuda_op(op.kind);
}

}  // namespace

Result<CudaPlan> CudaPlan::create(program::Program program) {
  ESP_RETURN_IF_ERROR(program::check(program));
  CudaPlan plan;
  plan.alternatives_ = program::find_alternatives(program);
  for (const program::Op& op : program.ops) {
    const CudaOp run = runs(op);
    if (run == nullptr) {
      return fail(error(StatusCode::kUnimplemented,
                        "{}: the GPU does not run the operation {}; use --device cpu", program.name,
                        program::op_name(op.kind)));
    }
    plan.ops_.push_back({run, op});
    const bool outlives =
        appends(op) || keeps_states(program, op) || op.kind == program::OpKind::kOutput;
    if (outlives) plan.append_end_ = plan.ops_.size();
  }
  for (size_t i = 0; i < plan.alternatives_.size(); ++i) {
    plan.ops_[plan.alternatives_[i].first].alternative = static_cast<int32_t>(i);
  }
  plan.output_begin_ = program::output_begin(program);
  plan.program_ = std::move(program);
  return plan;
}

int64_t CudaPlan::max_rows(const program::Rows& rows, const DecoderLimits& limits) {
  const bool outputs = rows.count == program::RowCount::kOutputs;
  const bool of_ranks = rows.count == program::RowCount::kRankTokens;
  return int64_t{outputs ? limits.max_outputs : limits.max_tokens} * rows.per_row *
         (of_ranks ? limits.num_ranks : 1);
}

program::MemoryPlan CudaPlan::place(const DecoderLimits& limits, DType type) const {
  std::vector<int64_t> bytes(static_cast<size_t>(program_.num_storages), 0);
  for (const program::Buffer& buffer : program_.buffers) {
    if (buffer.type != program::ElementType::kActivation) continue;
    int64_t& size = bytes[static_cast<size_t>(buffer.storage)];
    size = std::max(size, max_rows(buffer.rows, limits) * buffer.columns *
                              static_cast<int64_t>(dtype_size(type)));
  }
  return program::place_storages(program_, bytes, alternatives_);
}

}  // namespace espalier
