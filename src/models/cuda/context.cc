#include "models/cuda/context.h"

#include <algorithm>
#include <utility>

#include "kernels/linear/quantize_rows.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;
using program::Op;
using program::Operand;
using program::OpKind;

// Of the largest layer of experts; a program without experts needs none.
CudaExpertScratch lay_out_experts(const program::Program& program, const CudaWeights& weights,
                                  int64_t max_tokens, cuda::Arena& arena) {
  int64_t experts = 0, top_k = 0;
  for (const Op& op : program.ops) {
    if (op.kind != OpKind::kMoeRoute) continue;
    const kernels::RouterSpec& router = op.as<program::MoeRoute>().router;
    experts = std::max<int64_t>(experts, router.num_experts);
    top_k = std::max<int64_t>(top_k, router.top_k);
  }
  CudaExpertScratch out;
  if (experts == 0) return out;
  const int64_t pairs = max_tokens * top_k;
  out.scores = arena.take<float>(max_tokens * experts);
  out.shared_gate = arena.take<float>(max_tokens);
  out.plan = {.slots = arena.take<int32_t>(pairs),
              .pairs = arena.take<int32_t>(pairs),
              .begins = arena.take<int32_t>(experts + 1),
              .tiles = arena.take<int32_t>(experts + 1)};
  int64_t rounded = 0, scales = pairs;
  for (const Op& op : program.ops) {
    if (op.kind != program::OpKind::kMoeMatmul) continue;
    const auto& matmul = op.as<program::MoeMatmul>();
    if (weights.at(matmul.weight).scales == nullptr) continue;
    const bool by_token = matmul.weight.kind == WeightKind::kExpertGateUp;
    const int64_t rows = by_token ? max_tokens : pairs;
    rounded = std::max(rounded, rows * matmul.in_features);
    if (!weights.at(matmul.weight).format.codes.block_scales) continue;
    scales = std::max(scales, kernels::cuda::scale_blocks(matmul.in_features) *
                                  kernels::cuda::group_scale_stride(rows));
  }
  if (rounded == 0) return out;
  out.rounded = arena.take<uint8_t>(rounded);
  out.rounded_scales = arena.take<float>(scales);
  return out;
}

}  // namespace

void CudaContext::lay_out(cuda::Arena& arena, const DecoderLimits& limits) {
  buffers_.lay_out(arena, limits);
  experts_ = lay_out_experts(plan_.program(), weights_,
                             int64_t{limits.max_tokens} * limits.num_ranks, arena);
}

void CudaContext::begin(const CudaStep& step, const KvView& kv, const cuda::Stream& stream) {
  step_ = step;
  kv_ = &kv;
  stream_ = stream.get();
  const bool own_rows = spec_.whole_attention && scratch_.collective != nullptr;
  buffers_.begin(step, own_rows ? scratch_.collective->ranks().num_ranks : 1);
}

Status CudaContext::run(size_t first, size_t last) {
  for (size_t i = first; i < last;) {
    const CudaPlan::BoundOp& bound = plan_.ops()[i];
    if (bound.alternative >= 0) {
      const program::Alternative& alternative =
          plan_.alternatives()[static_cast<size_t>(bound.alternative)];
      ESP_ASSIGN_OR_RETURN(const bool ran, run_alternative(alternative));
      if (ran) {
        i = alternative.last;
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
  // Ranks without rows of their own take part in sums.
  if (num_rows(op.kind == OpKind::kScatterSums ? op.inputs[0] : result) == 0) return Status();
  ESP_RETURN_IF_ERROR(bound.run(*this, op));
  if (op.kind != OpKind::kSelectRows) buffers_.wrote(result);
  if (step_.on_append != nullptr && appends(op)) return (*step_.on_append)(op.layer);
  return Status();
}

Result<bool> CudaContext::run_alternative(const program::Alternative& alternative) {
  const Op& op = alternative.op;
  if (op.kind == OpKind::kLatentPrefill) {
    if (step_.expanded.rows == 0) return false;
    ESP_RETURN_IF_ERROR(run_short_entries(alternative));
    ESP_RETURN_IF_ERROR(cuda_op(op.kind)(*this, op));
    return true;
  }
  const bool block = op.kind == OpKind::kMoeBlock;
  ESP_ASSIGN_OR_RETURN(const bool runs,
                       block ? runs_moe_block(*this, op) : runs_gated_experts(*this, op));
  if (runs) ESP_RETURN_IF_ERROR(cuda_op(op.kind)(*this, op));
  return runs;
}

// Of latent attention all operations for the short entries, whose values the long entries' are then
// written between; without short entries the rotation and the append alone.
Status CudaContext::run_short_entries(const program::Alternative& alternative) {
  leaves_out_long_entries_ = true;
  Status status;
  for (size_t i = alternative.first; i < alternative.last && status.ok(); ++i) {
    const CudaPlan::BoundOp& bound = plan_.ops()[i];
    const bool prepares =
        bound.op.kind == OpKind::kHeadCopy || bound.op.kind == OpKind::kQkRopeAppend;
    if (prepares || step_.expanded.has_short_entries) status = run_op(bound);
  }
  leaves_out_long_entries_ = false;
  return status;
}

Status CudaContext::run_outputs(int32_t first, int32_t count, float* out, int64_t logits_stride,
                                const cuda::Stream& stream) {
  stream_ = stream.get();
  buffers_.begin_outputs(first, count, out, logits_stride);
  return run(plan_.output_begin(), plan_.ops().size());
}

kc::LaunchOptions CudaContext::launch(const Op& op) {
  const bool pdl = std::exchange(policy_.next_pdl, false) || policy_.step_pdl;
  return {.stream = stream_, .pdl = pdl && op.dependent_launch};
}

Status CudaContext::linear(const kc::LinearArgs& args, const Op& op) {
  const std::span<std::byte> workspace = scratch_.gemm_workspace;
  return linear_.run(args, workspace.data(), workspace.size(), launch(op));
}

const CudaAttentionGroup& CudaContext::attention_group(const Op& op) const {
  return scratch_.attention[scratch_.attention_of_layer[static_cast<size_t>(op.layer)]];
}

bool CudaContext::has_own_pages(int32_t sliding_window) const {
  return sliding_window > 0 && step_.window_entries.page_tables != nullptr;
}

const kc::EntryArrays& CudaContext::entries(int32_t sliding_window) const {
  return has_own_pages(sliding_window) ? step_.window_entries : step_.entries;
}

const int32_t* CudaContext::kv_rows(int32_t sliding_window) const {
  return has_own_pages(sliding_window) ? scratch_.window_kv_rows : scratch_.kv_rows;
}

}  // namespace espalier
