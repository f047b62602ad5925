#include "models/cuda/buffers.h"

#include <algorithm>
#include <numeric>

namespace espalier {
namespace {

using program::ElementType;
using program::Operand;
using program::RowCount;

int64_t element_size(ElementType type, DType activations) {
  return type == ElementType::kActivation ? static_cast<int64_t>(dtype_size(activations)) : 4;
}

}  // namespace

void CudaBuffers::lay_out(cuda::Arena& arena, const DecoderLimits& limits) {
  const program::Program& program = plan_.program();
  const program::MemoryPlan memory = plan_.place(limits, type_);
  std::byte* base = arena.take<std::byte>(memory.total_bytes);
  activations_ = {base, static_cast<size_t>(memory.total_bytes)};
  own_.clear();
  const program::Buffer* const logits =
      plan_.has_logits() ? &program.buffer(plan_.ops().back().op.outputs[0]) : nullptr;
  for (const program::Buffer& buffer : program.buffers) {
    Memory& own = own_.emplace_back();
    // Of some tokens' logits the GEMM writes a multiple of eight, as of all.
    const bool outputs = buffer.rows.count == RowCount::kOutputs;
    own.stride = outputs ? (buffer.columns + 7) / 8 * 8 : buffer.columns;
    own.element_size = element_size(buffer.type, type_);
    if (buffer.type == ElementType::kActivation) {
      const int64_t offset = memory.offsets[static_cast<size_t>(buffer.storage)];
      if (base != nullptr) own.data = base + offset;
    } else if (&buffer != logits) {
      own.data = arena.take<std::byte>(CudaPlan::max_rows(buffer.rows, limits) * own.stride *
                                       own.element_size);
    }
  }
  now_ = own_;
}

void CudaBuffers::begin(const CudaStep& step, int32_t num_ranks) {
  num_tokens_ = step.entries.num_tokens;
  num_rank_tokens_ = step.rank_tokens.empty()
                         ? num_ranks * num_tokens_
                         : std::reduce(step.rank_tokens.begin(), step.rank_tokens.end());
  num_wanted_ = step.num_rows;
  std::ranges::copy(own_, now_.begin());
  read_alias_ = -1;
}

void CudaBuffers::begin_outputs(int32_t first, int32_t count, float* out, int64_t logits_stride) {
  first_output_ = first;
  num_outputs_ = count;
  Memory& logits = at(plan_.ops().back().op.outputs[0]);
  logits.data = reinterpret_cast<std::byte*>(out);
  logits.stride = logits_stride;
}

int32_t CudaBuffers::num_rows(const Operand& operand) const {
  const program::Rows& rows = plan_.program().buffer(operand).rows;
  switch (rows.count) {
    case RowCount::kTokens:
      return num_tokens_ * rows.per_row;
    case RowCount::kWanted:
      return num_wanted_ * rows.per_row;
    case RowCount::kRankTokens:
      return num_rank_tokens_ * rows.per_row;
    default:
      return num_outputs_ * rows.per_row;
  }
}

const void* CudaBuffers::read(const Operand& operand) const {
  const Memory& memory = at(operand);
  const std::byte* data = operand.buffer == read_alias_ ? read_alias_data_ : memory.data;
  return data + operand.column * memory.element_size;
}

void* CudaBuffers::write(const Operand& operand) const {
  const Memory& memory = at(operand);
  return memory.data + operand.column * memory.element_size;
}

void CudaBuffers::alias(const Operand& operand, const void* data) {
  at(operand).data = static_cast<std::byte*>(const_cast<void*>(data));
}

void CudaBuffers::alias_reads(const Operand& operand, const void* data) {
  read_alias_ = operand.buffer;
  read_alias_data_ = static_cast<const std::byte*>(data);
}

void CudaBuffers::wrote(const Operand& operand) {
  if (operand.buffer == read_alias_) read_alias_ = -1;
}

}  // namespace espalier
