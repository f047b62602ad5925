#include "models/cuda/expanded_latents.h"

#include <algorithm>

#include "models/cuda/prologue.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

// Rows beyond these are not expanded: a chunk of 8,192 tokens behind 163,840 cached ones fits.
constexpr int64_t kMostRows = 172'032;
// Memory for keys and values: of all heads for steps without long prefixes, and of kFewestHeads
// heads at a time for the longest.
constexpr int64_t kKeysValuesBytes = int64_t{256} << 20;
constexpr int64_t kFewestHeads = 4;

int64_t rounded(int64_t rows) {
  return (rows + kc::kExpandedAlignment - 1) / kc::kExpandedAlignment * kc::kExpandedAlignment;
}

}  // namespace

CudaExpandedLatents::CudaExpandedLatents(std::span<const program::Alternative> alternatives,
                                         DType type)
    : type_(type) {
  const auto found = std::ranges::find_if(alternatives, [](const program::Alternative& a) {
    return a.op.kind == program::OpKind::kLatentPrefill;
  });
  if (found != alternatives.end()) shape_ = found->op.as<program::LatentPrefill>();
}

// Short prompts are rounded up to whole blocks of rows, so a step of them may have four times the
// rows of its tokens.
Status CudaExpandedLatents::lay_out(cuda::Arena& arena, const AttentionLimits& limits) {
  scratch_ = {};
  if (!shape_ || limits.deterministic_context > 0) return Status();
  const kc::LatentHead head{shape_->nope_dim, shape_->rope_dim, shape_->value_dim};
  ESP_ASSIGN_OR_RETURN(const bool expands, kc::expands_latents(head, shape_->rank, type_));
  if (!expands) return Status();
  scratch_.plan = {.row_begin = arena.take<int32_t>(limits.max_entries + 1),
                   .tile_begin = arena.take<int32_t>(limits.max_entries + 1),
                   .counters = arena.take<int32_t>(2)};
  const int64_t tokens = limits.max_tokens;
  scratch_.max_rows =
      std::min(kMostRows, rounded(std::max(4 * tokens, tokens + limits.context_length)));
  const auto size = static_cast<int64_t>(dtype_size(type_));
  scratch_.latents =
      arena.take<std::byte>(scratch_.max_rows * (shape_->rank + shape_->rope_dim) * size);
  const int64_t head_bytes = scratch_.max_rows * (shape_->nope_dim + shape_->value_dim) * size;
  scratch_.keys_values_bytes = std::max(std::min<int64_t>(kFewestHeads, shape_->heads) * head_bytes,
                                        std::min(kKeysValuesBytes, shape_->heads * head_bytes));
  scratch_.keys_values = arena.take<std::byte>(scratch_.keys_values_bytes);
  return Status();
}

}  // namespace espalier
