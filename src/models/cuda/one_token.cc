#include "models/cuda/one_token.h"

#include <limits>
#include <utility>

#include "models/program/gpu_passes.h"
#include "models/rotary_places.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

// Keys and values of a layer up to which one request's layers run as one kernel. That saves 12 us a
// layer, but reads them at 1.6 TB/s where attention by itself does at 3.6: 8 B at 32,768 tokens
// 6.86 ms a step, kernel by kernel 5.77; at 4,096 4.50 and 4.80 (in two runs).
constexpr int64_t kMegakernelKvBytes = int64_t{32} << 20;

}  // namespace

CudaOneToken::CudaOneToken(CudaPlan plan, const program::Program& fused, const DecoderSpec& spec,
                           const CudaWeights& weights, const CudaRopes& ropes)
    : plan_(std::move(plan)),
      spec_(spec),
      weights_(weights),
      megakernel_(fused, spec, weights, ropes.frequencies()) {}

Result<std::unique_ptr<CudaOneToken>> CudaOneToken::create(const program::Program& lowered,
                                                           const program::Program& fused,
                                                           const DecoderSpec& spec,
                                                           const CudaWeights& weights,
                                                           const CudaRopes& ropes) {
  std::unique_ptr<CudaOneToken> out;
  // The kernel's rotary positions are those of the tokens.
  if (has_sections(spec)) return out;
  if (weights.type() != DType::kBFloat16 || weights.has_codes()) return out;
  std::optional<program::Program> program = program::fuse_megakernel(lowered);
  if (!program) return out;
  ESP_ASSIGN_OR_RETURN(CudaPlan plan, CudaPlan::create(std::move(*program)));
  out.reset(new CudaOneToken(std::move(plan), fused, spec, weights, ropes));
  return out;
}

Result<int64_t> CudaOneToken::reserve(const AttentionLimits& limits, bool all_windows,
                                      kc::Linear& linear, CudaLaunchPolicy& policy) {
  context_.reset();
  if (limits.deterministic_context > 0 || limits.kv_type != KvType::kBFloat16 ||
      !kc::megakernel_supports(megakernel_.shape()) ||
      !kc::megakernel_supports_page_size(limits.page_size)) {
    return 0;
  }
  ESP_ASSIGN_OR_RETURN(const size_t bytes, kc::megakernel_workspace_bytes(megakernel_.shape()));
  context_.emplace(spec_, weights_, linear, policy, plan_);
  all_windows_ = all_windows;
  context_max_ = all_windows
                     ? std::numeric_limits<int32_t>::max()
                     : static_cast<int32_t>(kMegakernelKvBytes / megakernel_.kv_bytes_per_token());
  return static_cast<int64_t>(bytes);
}

void CudaOneToken::lay_out(cuda::Arena& arena, std::byte* workspace, int64_t workspace_bytes,
                           const CudaScratch& scratch) {
  if (!context_) return;
  context_->lay_out(arena, {.max_tokens = 1, .max_outputs = 1});
  megakernel_.set_workspace(workspace, workspace_bytes);
  CudaScratch own = scratch;
  own.megakernel = &megakernel_;
  context_->bind(own);
}

bool CudaOneToken::takes(const CudaStep& step) const {
  return on_ && context_ && step.entries.num_tokens == 1 && step.entries.num_entries == 1 &&
         step.num_rows <= 1 && !step.adapters.any() && !step.keeps_states && !step.returns_states &&
         step.slot_controls == nullptr && step.max_prefix_len < context_max_ &&
         (step.window_entries.page_tables == nullptr || all_windows_);
}

Status CudaOneToken::run(const CudaStep& step, const KvView& kv, const cuda::Stream& stream) {
  ++num_steps_;
  context_->begin(step, kv, stream);
  return context_->run(0, plan_.output_begin());
}

}  // namespace espalier
