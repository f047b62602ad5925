#include "models/cuda/context.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;
using program::ElementType;
using program::Op;
using program::Operand;
using program::RowCount;

int64_t element_size(ElementType type, DType weights) {
  return type == ElementType::kActivation ? static_cast<int64_t>(dtype_size(weights)) : 4;
}

}  // namespace

void CudaContext::lay_out(cuda::Arena& arena, const DecoderLimits& limits) {
  const program::Program& program = plan_.program();
  const program::MemoryPlan memory = plan_.place(limits, type());
  std::byte* base = arena.take<std::byte>(memory.total_bytes);
  activations_ = {base, static_cast<size_t>(memory.total_bytes)};
  home_.clear();
  for (const program::Buffer& buffer : program.buffers) {
    Place& place = home_.emplace_back();
    place.stride = buffer.columns;
    place.element_size = element_size(buffer.type, type());
    if (buffer.type == ElementType::kActivation) {
      const int64_t offset = memory.offsets[static_cast<size_t>(buffer.storage)];
      if (base != nullptr) place.data = base + offset;
    } else if (buffer.rows.count != RowCount::kOutputs) {
      place.data = arena.take<std::byte>(CudaPlan::max_rows(buffer.rows, limits) * buffer.columns *
                                         place.element_size);
    }
  }
  places_ = home_;
  lay_out_experts(arena, limits);
}

void CudaContext::lay_out_experts(cuda::Arena& arena, const DecoderLimits& limits) {
  int64_t experts = 0, top_k = 0;
  for (const Op& op : plan_.program().ops) {
    if (op.kind != program::OpKind::kMoeRoute) continue;
    const kernels::RouterSpec& router = op.as<program::MoeRoute>().router;
    experts = std::max<int64_t>(experts, router.num_experts);
    top_k = std::max<int64_t>(top_k, router.top_k);
  }
  experts_ = {};
  if (experts == 0) return;
  const int64_t pairs = limits.max_tokens * top_k;
  experts_.scores = arena.take<float>(limits.max_tokens * experts);
  experts_.shared_gate = arena.take<float>(limits.max_tokens);
  experts_.plan = {.slots = arena.take<int32_t>(pairs),
                   .pairs = arena.take<int32_t>(pairs),
                   .begins = arena.take<int32_t>(experts + 1),
                   .tiles = arena.take<int32_t>(experts + 1)};
}

void CudaContext::set_workspace(std::byte* data, int64_t bytes) {
  workspace_ = data;
  workspace_bytes_ = bytes;
}

void CudaContext::set_attention(std::span<const CudaAttentionGroup> groups,
                                std::span<const size_t> of_layer) {
  groups_ = groups;
  group_of_layer_ = of_layer;
}

void CudaContext::set_token_rows(const int32_t* positions, const int32_t* kv_rows,
                                 const int32_t* window_kv_rows) {
  positions_ = positions;
  kv_rows_ = kv_rows;
  window_kv_rows_ = window_kv_rows;
}

void CudaContext::begin(const CudaStep& step, const KvView& kv, const cuda::Stream& stream) {
  step_ = step;
  kv_ = &kv;
  stream_ = stream.get();
  std::ranges::copy(home_, places_.begin());
  read_alias_ = -1;
}

Status CudaContext::run(size_t first, size_t last) {
  for (size_t i = first; i < last;) {
    const CudaPlan::BoundOp& bound = plan_.ops()[i];
    if (bound.alternative >= 0) {
      ESP_ASSIGN_OR_RETURN(const bool ran, run_alternative(bound));
      if (ran) {
        i = plan_.alternatives()[static_cast<size_t>(bound.alternative)].last;
        continue;
      }
    }
    ESP_RETURN_IF_ERROR(run_op(bound));
    ++i;
  }
  return Status();
}

Status CudaContext::run_op(const CudaPlan::BoundOp& bound) {
  const Op& op = bound.op;
  const Operand& result = op.outputs.empty() ? op.inputs[0] : op.outputs[0];
  if (num_rows(result) == 0) return Status();
  ESP_RETURN_IF_ERROR(bound.run(*this, op));
  if (op.kind != program::OpKind::kSelectRows && result.buffer == read_alias_) read_alias_ = -1;
  return Status();
}

Result<bool> CudaContext::run_alternative(const CudaPlan::BoundOp& bound) {
  const Op& op = plan_.alternatives()[static_cast<size_t>(bound.alternative)].op;
  ESP_ASSIGN_OR_RETURN(const bool runs, runs_moe_block(*this, op));
  if (runs) ESP_RETURN_IF_ERROR(run_moe_block(*this, op));
  return runs;
}

Status CudaContext::run_outputs(int32_t first, int32_t count, float* out, int64_t logits_stride,
                                const cuda::Stream& stream) {
  stream_ = stream.get();
  first_output_ = first;
  num_outputs_ = count;
  const Operand& logits = plan_.ops().back().op.outputs[0];
  place(logits).data = reinterpret_cast<std::byte*>(out);
  place(logits).stride = logits_stride;
  return run(plan_.output_begin(), plan_.ops().size());
}

int32_t CudaContext::num_rows(const Operand& operand) const {
  const program::Rows& rows = plan_.program().buffer(operand).rows;
  switch (rows.count) {
    case RowCount::kTokens:
      return step_.entries.num_tokens * rows.per_row;
    case RowCount::kWanted:
      return step_.num_rows * rows.per_row;
    default:
      return num_outputs_ * rows.per_row;
  }
}

std::byte* CudaContext::at(std::byte* data, const Operand& operand) const {
  return data + operand.column * place(operand).element_size;
}

const void* CudaContext::read(const Operand& operand) const {
  const bool elsewhere = operand.buffer == read_alias_;
  return at(elsewhere ? const_cast<std::byte*>(read_alias_data_) : place(operand).data, operand);
}

void* CudaContext::write(const Operand& operand) const { return at(place(operand).data, operand); }

int64_t CudaContext::stride(const Operand& operand) const { return place(operand).stride; }

void CudaContext::alias(const Operand& operand, const void* data) {
  place(operand).data = static_cast<std::byte*>(const_cast<void*>(data));
}

void CudaContext::alias_reads(const Operand& operand, const void* data) {
  read_alias_ = operand.buffer;
  read_alias_data_ = static_cast<const std::byte*>(data);
}

kc::LaunchOptions CudaContext::launch(const Op& op) {
  const bool pdl = std::exchange(policy_.next_pdl, false) || policy_.step_pdl;
  return {.stream = stream_, .pdl = pdl && op.dependent_launch};
}

Status CudaContext::linear(const kc::LinearArgs& args, const Op& op) {
  return linear_.run(args, workspace_, static_cast<size_t>(workspace_bytes_), launch(op));
}

const CudaAttentionGroup& CudaContext::attention_group(const Op& op) const {
  return groups_[group_of_layer_[static_cast<size_t>(op.layer)]];
}

const kc::EntryArrays& CudaContext::entries(int32_t sliding_window) const {
  const bool own = sliding_window > 0 && step_.window_entries.page_tables != nullptr;
  return own ? step_.window_entries : step_.entries;
}

const int32_t* CudaContext::kv_rows(int32_t sliding_window) const {
  const bool own = sliding_window > 0 && step_.window_entries.page_tables != nullptr;
  return own ? window_kv_rows_ : kv_rows_;
}

}  // namespace espalier
