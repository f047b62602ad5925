#include "models/cuda/prologue.h"

#include <algorithm>

namespace espalier {
namespace {

namespace kc = kernels::cuda;

bool has_window(const program::Attention& a) { return a.sliding_window > 0; }

bool same_shape(const kc::AttentionShape& a, const kc::AttentionShape& b) {
  return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads &&
         a.head_dim == b.head_dim && a.sliding_window == b.sliding_window;
}

// Prompts of a step are widened up to here: half a gigabyte of workspace for 8 kv heads of 128.
constexpr int32_t kMostWidened = 128 * 1024;

// Enough for one prompt of the longest context, or for prompts that continue prefixes three times
// as long as they are.
int32_t widened_positions(int32_t sliding_window, const AttentionLimits& limits) {
  const int64_t tokens = limits.max_tokens;
  const int64_t context =
      sliding_window > 0 ? std::min(sliding_window, limits.context_length) : limits.context_length;
  return static_cast<int32_t>(
      std::min<int64_t>(kMostWidened, std::max(4 * tokens, tokens + context)));
}

}  // namespace

CudaPrologue::CudaPrologue(const program::Program& program,
                           std::span<const program::Alternative> alternatives, DType type)
    : type_(type), expanded_(alternatives, type) {
  for (const program::Op& op : program.ops) {
    if (op.kind == program::OpKind::kAttention) layers_.push_back(op.as<program::Attention>());
  }
  has_windows_ = std::ranges::any_of(layers_, has_window);
}

bool CudaPrologue::all_layers_have_windows() const {
  return std::ranges::all_of(layers_, has_window);
}

kc::AttentionShape CudaPrologue::shape_of(size_t layer, const AttentionLimits& limits) const {
  const program::Attention& a = layers_[layer];
  kc::AttentionShape shape{.num_heads = a.num_heads,
                           .num_kv_heads = a.num_kv_heads,
                           .head_dim = a.head_dim,
                           .page_size = limits.page_size,
                           .sliding_window = a.sliding_window,
                           .type = type_,
                           .kv_e4m3 = limits.kv_type == KvType::kFloat8E4M3};
  if (shape.kv_e4m3) shape.widened_positions = widened_positions(a.sliding_window, limits);
  if (limits.deterministic_context > 0) {
    shape.max_context = limits.deterministic_context;
    shape.fixed_split = kc::fixed_split(shape, limits.max_entries, limits.deterministic_context);
  }
  return shape;
}

void CudaPrologue::lay_out(cuda::Arena& arena, int32_t max_tokens) {
  kv_rows_ = arena.take<int32_t>(max_tokens);
  window_kv_rows_ = has_windows_ ? arena.take<int32_t>(max_tokens) : nullptr;
  positions_ = arena.take<int32_t>(max_tokens);
}

Status CudaPrologue::lay_out_attention(cuda::Arena& arena, const AttentionLimits& limits) {
  groups_.clear();
  group_of_layer_.clear();
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const kc::AttentionShape shape = shape_of(layer, limits);
    const auto known = std::ranges::find_if(
        groups_, [&](const CudaAttentionGroup& g) { return same_shape(g.shape, shape); });
    group_of_layer_.push_back(static_cast<size_t>(known - groups_.begin()));
    if (known != groups_.end()) continue;
    ESP_ASSIGN_OR_RETURN(const size_t bytes, kc::attention_workspace_bytes(
                                                 shape, limits.max_entries, limits.max_tokens));
    const auto size = static_cast<int64_t>(bytes);
    groups_.push_back({shape, arena.take<std::byte>(size), size});
  }
  return expanded_.lay_out(arena, limits);
}

void CudaPrologue::describe(CudaScratch& out) const {
  out.attention = groups_;
  out.attention_of_layer = group_of_layer_;
  out.expanded = expanded_.scratch();
  out.positions = positions_;
  out.kv_rows = kv_rows_;
  out.window_kv_rows = window_kv_rows_;
}

Status CudaPrologue::run(const CudaStep& step, int32_t page_size,
                         const kc::LaunchOptions& launch) const {
  ESP_RETURN_IF_ERROR(kc::token_rows({.entries = step.entries,
                                      .page_size = page_size,
                                      .kv_rows = kv_rows_,
                                      .positions = positions_},
                                     launch));
  if (step.expanded.rows > 0) {
    ESP_RETURN_IF_ERROR(kc::plan_expanded(step.entries, expanded_.scratch().plan, launch));
  }
  const bool own_pages = step.window_entries.page_tables != nullptr;
  if (window_kv_rows_ != nullptr && own_pages) {
    ESP_RETURN_IF_ERROR(kc::token_rows(
        {.entries = step.window_entries, .page_size = page_size, .kv_rows = window_kv_rows_},
        launch));
  }
  for (const CudaAttentionGroup& group : groups_) {
    const bool windowed = group.shape.sliding_window > 0 && own_pages;
    ESP_RETURN_IF_ERROR(
        kc::attention_plan(group.shape, windowed ? step.window_entries : step.entries,
                           group.workspace, static_cast<size_t>(group.workspace_bytes), launch));
  }
  return Status();
}

}  // namespace espalier
