#include "models/cuda/draft_head.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "kernels/random/cuda.h"
#include "models/cuda/ops.h"
#include "models/cuda/support.h"
#include "models/load_draft_head.h"
#include "models/program/gpu_passes.h"
#include "models/program/lower.h"
#include "models/weight_layout.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

// A pass of at least this many rows launches its kernels early (PDL), as a decoder's step does.
constexpr int32_t kHeadPdlTokens = 3;

DecoderSpec gpu_head_spec(DecoderSpec spec, bool own) {
  spec.draft->own_states = own;
  return spec;
}

Result<CudaPlan> gpu_head_plan(const DecoderSpec& spec, bool own_states) {
  return CudaPlan::create(program::gpu_passes(program::lower(gpu_head_spec(spec, own_states))));
}

Result<std::vector<TokenId>> draft_ids_of(const ModelLoadOptions& options,
                                          const DecoderSpec& spec) {
  if (options.format != LoadFormat::kDummy) {
    ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.draft_path));
    return read_draft_ids(checkpoint, spec);
  }
  std::vector<TokenId> ids(static_cast<size_t>(spec.vocab_size));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

}  // namespace

CudaDraftHead::Pass::Pass(const DecoderSpec& of, CudaPlan bound, const CudaWeights& weights,
                          kc::Linear& linear, CudaLaunchPolicy& policy)
    : spec(of),
      plan(std::move(bound)),
      prologue(plan.program(), plan.alternatives(), weights.type()),
      context(spec, weights, linear, policy, plan) {}

CudaDraftHead::CudaDraftHead(const DecoderSpec& spec, CudaPlan first, CudaPlan next,
                             PendingCudaWeights weights, std::unique_ptr<kc::Linear> linear,
                             const CudaDecoder& target)
    : target_(target),
      weights_(std::move(weights.weights)),
      loader_(std::move(weights.loader)),
      linear_(std::move(linear)),
      policy_({.pdl = true}),
      first_(spec, std::move(first), weights_, *linear_, policy_),
      next_(gpu_head_spec(spec, true), std::move(next), weights_, *linear_, policy_),
      info_{.target_layers = spec.draft->target_layers,
            .draft_vocab_size = spec.vocab_size,
            .num_parameters = spec.num_parameters(),
            .weight_bytes = weights_.size_bytes()} {
  kv_.layers.reserve(1);
}

Result<std::unique_ptr<CudaDraftHead>> CudaDraftHead::load(const DecoderSpec& spec,
                                                           const ModelLoadOptions& options,
                                                           const CudaDecoder& target) {
  ESP_CHECK(spec.draft);
  ESP_RETURN_IF_ERROR(validate(spec));
  ESP_RETURN_IF_ERROR(check_cuda_support(spec));
  ESP_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, draft_ids_of(options, spec));
  ESP_ASSIGN_OR_RETURN(CudaPlan first, gpu_head_plan(spec, false));
  ESP_ASSIGN_OR_RETURN(CudaPlan next, gpu_head_plan(spec, true));
  ModelLoadOptions own = options;
  own.path = options.draft_path;
  own.config_overrides.clear();
  own.progress = [](int64_t, int64_t) {};  // the target's is shown
  ESP_ASSIGN_OR_RETURN(
      PendingCudaWeights weights,
      load_cuda_weights(spec, weight_layout(spec), WeightTypes(target.type()), own));
  if (spec.draft->is_mtp()) {
    const CudaWeights& of_target = target.placed_weights().weights;
    weights.weights.at({WeightKind::kHead}) = of_target.at({WeightKind::kHead});
  }
  ESP_ASSIGN_OR_RETURN(auto linear,
                       kc::Linear::create({.cache_folder = kc::default_linear_cache()}));
  std::unique_ptr<CudaDraftHead> head(new CudaDraftHead(
      spec, std::move(first), std::move(next), std::move(weights), std::move(linear), target));
  ESP_ASSIGN_OR_RETURN(head->ropes_, CudaRopes::upload(spec));
  ESP_RETURN_IF_ERROR(head->upload_ids(ids));
  if (head->loader_) ESP_RETURN_IF_ERROR(head->loader_->finish());
  head->loader_.reset();
  log_info(
      "draft head loaded device=cuda path={} parameters={} weight_bytes={} draft_vocab_size={}",
      options.draft_path.string(), head->info_.num_parameters, head->info_.weight_bytes,
      head->info_.draft_vocab_size);
  return head;
}

Status CudaDraftHead::upload_ids(const std::vector<TokenId>& ids) {
  const auto bytes = std::ssize(ids) * static_cast<int64_t>(sizeof(int32_t));
  ESP_ASSIGN_OR_RETURN(ids_, cuda::DeviceBuffer::allocate(bytes, "ids of draft tokens"));
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  ESP_RETURN_IF_ERROR(cuda::copy_to_device(ids_.data(), ids.data(), bytes, stream));
  return stream.synchronize();
}

DraftKvInfo CudaDraftHead::kv_info() const {
  const AttentionSpec& a = first_.spec.layers[0].attention;
  return {.num_kv_heads = a.num_kv_heads, .head_dim = a.head_dim};
}

kc::AttentionShape CudaDraftHead::attention_shape(int32_t page_size) const {
  AttentionLimits limits = first_.limits;
  limits.kv_type = target_.kv_type();
  limits.page_size = page_size;
  return first_.prologue.shape_of(0, limits);
}

Result<bool> CudaDraftHead::shares_attention(int32_t page_size) const {
  return kc::shares_segments(attention_shape(page_size));
}

// The GEMMs of a pass of `rows` tokens. Pointers are null until the memory is laid out.
std::vector<kc::LinearArgs> CudaDraftHead::gemms(const Pass& pass, int32_t rows,
                                                 float* logits) const {
  std::vector<kc::LinearArgs> out;
  for (const CudaPlan::BoundOp& bound : pass.plan.ops()) {
    if (!is_gemm(bound.op)) continue;
    const bool tokens =
        pass.plan.program().buffer(bound.op.outputs[0]).rows.count == program::RowCount::kTokens;
    const auto& matmul = bound.op.as<program::Matmul>();
    const int32_t most = tokens ? pass.limits.max_tokens : pass.max_outputs;
    kc::LinearArgs& args = out.emplace_back(matmul_shape(weights_, matmul, std::min(rows, most)));
    args.x = pass.context.read(bound.op.inputs[0]);
    args.x_stride = pass.context.stride(bound.op.inputs[0]);
    args.y = pass.context.write(bound.op.outputs[0]);
    args.y_stride = pass.context.stride(bound.op.outputs[0]);
    if (matmul.residual) args.residual = args.y;
    if (&bound != &pass.plan.ops().back()) continue;
    args.out_type = DType::kFloat32;
    args.y = logits;
    args.y_stride = logits_stride();
  }
  return out;
}

Status CudaDraftHead::lay_out(cuda::Arena& arena, int64_t linear_bytes) {
  auto* const linear = arena.take<std::byte>(linear_bytes);
  for (Pass* pass : {&first_, &next_}) {
    pass->context.lay_out(arena, {pass->limits.max_tokens, pass->max_outputs});
    pass->prologue.lay_out(arena, pass->limits.max_tokens);
    ESP_RETURN_IF_ERROR(pass->prologue.lay_out_attention(arena, pass->limits));
    CudaScratch scratch{
        .ropes = ropes_.frequencies(),
        .embedding = target_.placed_weights().weights.data({WeightKind::kEmbedding}),
        .gemm_workspace = {linear, static_cast<size_t>(linear_bytes)}};
    pass->prologue.describe(scratch);
    pass->context.bind(scratch);
  }
  return Status();
}

Status CudaDraftHead::reserve(const Limits& limits) {
  const AttentionLimits attention{.max_tokens = limits.max_tokens,
                                  .max_entries = limits.max_entries,
                                  .page_size = limits.page_size,
                                  .deterministic_context = limits.deterministic_context,
                                  .context_length = target_.info().context_length,
                                  .kv_type = target_.kv_type()};
  first_.limits = next_.limits = attention;
  next_.limits.max_tokens = next_.limits.max_entries = limits.max_chains;
  first_.max_outputs = next_.max_outputs = limits.max_chains;
  cuda::Arena operands;  // GEMMs' operands have their strides then
  ESP_RETURN_IF_ERROR(lay_out(operands, 0));
  std::vector<kc::LinearArgs> shapes = gemms(first_, limits.max_tokens, nullptr);
  const size_t bytes = linear_->workspace_bytes(shapes, limits.max_tokens);
  for (kc::LinearArgs& args : shapes) args.norm_weight = weights_.data({WeightKind::kFinalNorm});
  const auto linear_bytes =
      static_cast<int64_t>(std::max(bytes, linear_->workspace_bytes(shapes, kc::kSmallRows)));
  cuda::Arena measured;
  ESP_RETURN_IF_ERROR(lay_out(measured, linear_bytes));
  ESP_ASSIGN_OR_RETURN(
      scratch_, cuda::DeviceBuffer::allocate(measured.used_bytes(), "scratch of the draft head"));
  cuda::Arena arena(scratch_.data());
  ESP_RETURN_IF_ERROR(lay_out(arena, linear_bytes));
  // Rows that no entry of a padded step writes are read all the same.
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(scratch_.data(), 0, scratch_.size_bytes(), stream));
  return stream.synchronize();
}

Status CudaDraftHead::tune(float* logits, const cuda::Stream& stream) {
  const auto size = static_cast<int64_t>(dtype_size(weights_.type()));
  std::vector<kc::LinearArgs> all;
  constexpr int32_t kRows[] = {1,  2,  3,  4,   8,   12,  16,  24,   32,
                               48, 64, 96, 128, 192, 256, 512, 2048, 8192};
  for (Pass* pass : {&first_, &next_}) {
    // Not zeros: GEMMs of zeros run faster.
    const std::span<std::byte> activations = pass->context.buffers().activations();
    ESP_RETURN_IF_ERROR(kc::draw({.type = weights_.type(),
                                  .out = activations.data(),
                                  .count = std::ssize(activations) / size},
                                 {.stream = stream.get()}));
    for (const int32_t rows : kRows) {
      if (rows > pass->limits.max_tokens) break;
      const std::vector<kc::LinearArgs> shapes = gemms(*pass, rows, logits);
      all.insert(all.end(), shapes.begin(), shapes.end());
    }
  }
  const std::span<std::byte> workspace = first_.context.scratch().gemm_workspace;
  ESP_RETURN_IF_ERROR(linear_->tune(all, workspace.data(), workspace.size(), stream.get()));
  return stream.synchronize();
}

Status CudaDraftHead::draft(CudaStep step, const KvView& kv, float* logits,
                            const cuda::Stream& stream) {
  step.states = target_.kept_states(step);
  step.token_slots = step.slot_tokens = nullptr;
  step.window_entries = {};
  step.spans = {};
  step.expanded = {};
  step.adapters = {};
  ESP_RETURN_IF_ERROR(run(first_, step, kv, logits, stream));
  if (step.num_rows > 0)
    own_states_ =
        first_.context.read(program::find_buffer(first_.plan.program(), program::kNextStates));
  return Status();
}

// The pass computes its states where those that it reads lie, row by row.
Status CudaDraftHead::draft_next(CudaStep step, const KvView& kv, float* logits,
                                 const cuda::Stream& stream) {
  ESP_CHECK(own_states_ != nullptr && step.rows == nullptr, "a pass behind none");
  step.states = own_states_;
  return run(next_, step, kv, logits, stream);
}

Status CudaDraftHead::run(Pass& pass, const CudaStep& step, const KvView& kv, float* logits,
                          const cuda::Stream& stream) {
  const kc::EntryArrays& entries = step.entries;
  ESP_CHECK(entries.num_tokens <= pass.limits.max_tokens &&
                entries.num_entries <= pass.limits.max_entries && step.num_rows <= pass.max_outputs,
            "{} tokens in {} entries and {} rows of a draft head, reserved {} in {} and {}",
            entries.num_tokens, entries.num_entries, step.num_rows, pass.limits.max_tokens,
            pass.limits.max_entries, pass.max_outputs);
  kv_.page_size = kv.page_size;
  kv_.layers.assign(1, kv.layers.back());
  policy_.step_pdl = policy_.pdl && entries.max_query_tokens <= step.decode_tokens &&
                     entries.num_tokens >= kHeadPdlTokens;
  policy_.next_pdl = false;
  ESP_RETURN_IF_ERROR(
      pass.prologue.run(step, kv_.page_size, {.stream = stream.get(), .pdl = policy_.step_pdl}));
  pass.context.begin(step, kv_, stream);
  if (step.num_rows == 0) return pass.context.run(0, pass.plan.append_end());
  ESP_RETURN_IF_ERROR(pass.context.run(0, pass.plan.output_begin()));
  return pass.context.run_outputs(0, step.num_rows, logits, logits_stride(), stream);
}

}  // namespace espalier
