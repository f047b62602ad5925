#include "models/cuda/decoder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "kernels/moe/cuda.h"
#include "kernels/random/cuda.h"
#include "models/cuda/ops.h"
#include "models/cuda/support.h"
#include "models/program/gpu_passes.h"
#include "models/program/lower.h"
#include "models/program/partition.h"
#include "models/program/passes.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;
using program::Op;

// Decode steps of so many tokens start each kernel before the one in front of it has ended. With
// one or two, whose GEMMs are kernels for few rows, that costs (8 B: 4.65 to 4.79 ms, Qwen3 30B-A3B
// 4.95 to 5.32); three and four gain 9 % (8 B) and 4 to 6 % (experts, softcaps). GEMMs of
// codes are the same kernel for one token as for several.
constexpr int32_t kPdlTokens = 3, kPdlTokensOfCodes = 1;
// Behind a sum over ranks, which waits for the link, the next GEMM prefetches its weights.
constexpr int32_t kPdlTokensOfRanks = 1;

// Of a plan's types those that a GPU holds.
WeightTypes device_types(const ModelPlan& plan) {
  WeightTypes types = plan.type;
  types.e4m3 = plan.weights.e4m3, types.int4 = plan.weights.int4;
  types.nvfp4 = plan.weights.nvfp4;
  types.mxfp4 = plan.weights.mxfp4;
  types.keep_blocks = plan.weights.keep_blocks;
  return types;
}

Result<PendingCudaWeights> load_rank_weights(const ModelPlan& plan, const ModelLoadOptions& options,
                                             const CudaRank& rank) {
  ModelLoadOptions own = options;
  if (rank.ranks().rank > 0) own.progress = [](int64_t, int64_t) {};  // rank 0 reports
  return load_cuda_weights(program::local_spec(plan.spec, rank.ranks()),
                           program::partition_weights(plan.spec, rank.ranks()), device_types(plan),
                           own);
}

Status check_state_support(const DecoderSpec& spec, const ModelLoadOptions& options,
                           const Ranks& ranks) {
  if (!ranks.single())
    return error(StatusCode::kUnimplemented,
                 "{} not returned by GPUs that divide a model: leave {}--tp-size out, or use "
                 "--dp-size for several GPUs",
                 spec.pooling ? "vectors of texts are" : "hidden states are",
                 spec.pooling ? "" : "--enable-return-hidden-states or ");
  if (spec.pooling && options.return_hidden_states)
    return error(StatusCode::kUnimplemented,
                 "{} makes vectors of texts and returns no hidden states: leave "
                 "--enable-return-hidden-states out",
                 spec.architecture);
  return Status();
}

// Where ranks have rows of their own all rows are computed to the end of the layers, so that the
// number of tokens alone says what the ranks exchange.
program::Program gpu_program(const program::Program& lowered, const DecoderSpec& spec) {
  return program::gpu_passes(lowered, /*adapters=*/false, /*all_rows=*/spec.whole_attention);
}

// How many ranks have rows of their own.
int32_t row_ranks(const DecoderSpec& spec, const CudaRank& rank) {
  return spec.whole_attention ? rank.ranks().num_ranks : 1;
}

bool is_output(const CudaPlan& plan, const Op& op) {
  return plan.program().buffer(op.outputs[0]).rows.count == program::RowCount::kOutputs;
}

// GEMMs of the first layer, whose shapes the other layers mostly have, and of the head. Those of
// latents are small beside them and take the library's proposal.
bool is_tuned(const Op& op) {
  if (!is_gemm(op) || op.layer > 0) return false;
  switch (op.as<program::Matmul>().weight.kind) {
    case WeightKind::kLatentQA:
    case WeightKind::kLatentQ:
    case WeightKind::kLatentKvA:
      return false;
    default:
      return true;
  }
}

}  // namespace

namespace {

Result<cuda::DeviceBuffer> upload(const ControlVectors& vectors) {
  const std::span<const std::byte> bytes = std::as_bytes(vectors.values());
  ESP_ASSIGN_OR_RETURN(auto out,
                       cuda::DeviceBuffer::allocate(std::ssize(bytes), "control vectors"));
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  ESP_RETURN_IF_ERROR(cuda::copy_to_device(out.data(), bytes.data(), std::ssize(bytes), stream));
  ESP_RETURN_IF_ERROR(stream.synchronize());
  return out;
}

}  // namespace

CudaDecoder::CudaDecoder(const ModelPlan& whole, const CudaRank& rank, PendingCudaWeights weights,
                         std::unique_ptr<kc::Linear> linear, CudaPlan plan)
    : device_(cuda::current_device()),
      rank_(rank),
      whole_(whole),
      spec_(program::local_spec(whole.spec, rank.ranks())),
      weights_(std::move(weights.weights)),
      loader_(std::move(weights.loader)),
      linear_(std::move(linear)),
      info_(describe_model(whole.spec)),
      plan_(std::move(plan)),
      prologue_(plan_.program(), plan_.alternatives(), weights_.type()),
      limits_(
          {.kv_type = weights_.type() == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16}),
      context_(spec_, weights_, *linear_, policy_, plan_) {
  info_.weight_bytes = weights_.size_bytes();
  info_.num_kv_heads = spec_.layers[0].attention.num_kv_heads;
}

Result<std::unique_ptr<CudaDecoder>> CudaDecoder::load(const ModelLoadOptions& options) {
  ESP_ASSIGN_OR_RETURN(ModelPlan plan, plan_model(options));
  return load(std::move(plan), options);
}

Result<std::unique_ptr<CudaDecoder>> CudaDecoder::load(ModelPlan plan,
                                                       const ModelLoadOptions& options,
                                                       const Rewrite& rewrite) {
  ESP_ASSIGN_OR_RETURN(auto model, begin_load(std::move(plan), options, rewrite));
  ESP_RETURN_IF_ERROR(model->finish_loading());
  return model;
}

Result<std::unique_ptr<CudaDecoder>> CudaDecoder::begin_load(ModelPlan plan,
                                                             const ModelLoadOptions& options,
                                                             const Rewrite& rewrite,
                                                             const CudaRank& rank) {
  const auto start = std::chrono::steady_clock::now();
  const Ranks ranks = rank.ranks();
  ESP_RETURN_IF_ERROR(validate(plan.spec));
  ESP_RETURN_IF_ERROR(program::check_partition(plan.spec, ranks.num_ranks));
  ESP_RETURN_IF_ERROR(check_cuda_support(program::local_spec(plan.spec, ranks)));
  program::Program lowered = program::partition(plan.spec, ranks, program::RankPages::kOwn);
  if (plan.spec.pooling) lowered = program::drop_pooling(std::move(lowered));
  if (rewrite) lowered = rewrite(std::move(lowered));
  ESP_ASSIGN_OR_RETURN(CudaPlan cuda_plan, CudaPlan::create(gpu_program(lowered, plan.spec)));
  ESP_ASSIGN_OR_RETURN(PendingCudaWeights weights, load_rank_weights(plan, options, rank));
  ESP_ASSIGN_OR_RETURN(auto linear,
                       kc::Linear::create({.cache_folder = kc::default_linear_cache()}));
  std::unique_ptr<CudaDecoder> model(
      new CudaDecoder(plan, rank, std::move(weights), std::move(linear), std::move(cuda_plan)));
  model->load_start_ = start;
  ESP_ASSIGN_OR_RETURN(model->constants_.ropes, CudaRopes::upload(model->spec_));
  if (plan.spec.control_vectors != nullptr) {
    ESP_ASSIGN_OR_RETURN(model->constants_.control_vectors, upload(*plan.spec.control_vectors));
  }
  ESP_ASSIGN_OR_RETURN(model->experts_.slots,
                       CudaExpertSlots::create(model->whole_.spec, model->spec_, model->weights_));
  // The router has the same result on ranks that divide the same experts, so the first one counts.
  if (options.expert_counts != nullptr &&
      program::expert_ranks(plan.spec, ranks).slices.rank == 0) {
    ESP_ASSIGN_OR_RETURN(model->experts_.tally, CudaExpertTally::create(model->spec_));
    if (model->experts_.tally != nullptr)
      options.expert_counts->add(model->experts_.tally, expert_places(plan.spec));
  }
  if (options.enable_lora) {
    ESP_CHECK(ranks.single(), "adapters are not divided among ranks");
    ESP_ASSIGN_OR_RETURN(
        model->others_.adapted,
        CudaAdaptedLayers::create(lowered, model->spec_, options.max_lora_rank, model->weights_,
                                  *model->linear_, model->policy_));
  }
  if (options.return_hidden_states || plan.spec.pooling) {
    ESP_RETURN_IF_ERROR(check_state_support(plan.spec, options, ranks));
    ESP_ASSIGN_OR_RETURN(model->others_.states,
                         CudaStateLayers::create(lowered, options.enable_lora, model->spec_,
                                                 model->weights_, *model->linear_, model->policy_));
    model->info_.returns_hidden_states = options.return_hidden_states;
  }
  if (plan.spec.pooling) return model;  // no step samples
  // The kernel of one token's layers has no sums over ranks, and begins with the embedding.
  if (!ranks.single() || !plan.spec.stage.whole()) return model;
  if (!plan.spec.kept_states.empty() || plan.spec.control_vectors != nullptr) {
    // That kernel runs the steps whose states nothing reads, and that add nothing to them.
    plan.spec.kept_states.clear();
    plan.spec.control_vectors.reset();
    lowered = program::partition(plan.spec, ranks, program::RankPages::kOwn);
    if (rewrite) lowered = rewrite(std::move(lowered));
  }
  ESP_ASSIGN_OR_RETURN(model->one_token_,
                       CudaOneToken::create(lowered, program::gpu_passes(lowered), model->spec_,
                                            model->weights_, model->constants_.ropes));
  return model;
}

PlacedWeights CudaDecoder::placed_weights() const {
  return {.spec = spec_,
          .layout = program::partition_weights(whole_.spec, rank_.ranks()),
          .types = device_types(whole_),
          .weights = weights_};
}

Status CudaDecoder::finish_loading() {
  if (!loader_) return Status();
  ESP_RETURN_IF_ERROR(loader_->finish());
  loader_.reset();
  log_info("model loaded device=cuda architecture={} parameters={} weight_bytes={} seconds={:.2f}",
           info_.architecture, info_.num_parameters, info_.weight_bytes,
           std::chrono::duration<double>(std::chrono::steady_clock::now() - load_start_).count());
  return Status();
}

Status CudaDecoder::set_kv_type(KvType type) {
  if (type == limits_.kv_type) return Status();
  if (type != KvType::kFloat8E4M3 || weights_.type() != DType::kBFloat16)
    return error(StatusCode::kUnimplemented,
                 "kv_cache_dtype is {}, but on a GPU keys and values are of the weights' type, or "
                 "fp8_e4m3 beside weights that are not float32; leave it out, or use --device cpu",
                 kv_type_name(type));
  if (info_.kv_planes != 2)
    return error(StatusCode::kUnimplemented,
                 "kv_cache_dtype is fp8_e4m3, which latent attention does not have yet; leave it "
                 "out");
  limits_.kv_type = type;
  return Status();
}

int32_t CudaDecoder::logits_stride() const { return (info_.vocab_size + 7) / 8 * 8; }

void CudaDecoder::set_deterministic(int32_t max_context) {
  limits_.deterministic_context = max_context;
  linear_->set_row_invariant();
}

Result<std::optional<kc::AttentionShape>> CudaDecoder::shared_attention(int32_t page_size) const {
  AttentionLimits limits = limits_;
  limits.page_size = page_size;
  for (size_t layer = 0; layer < prologue_.num_layers(); ++layer) {
    const kc::AttentionShape shape = prologue_.shape_of(layer, limits);
    ESP_ASSIGN_OR_RETURN(const bool shares, kc::shares_segments(shape));
    if (shares) return std::optional(shape);
  }
  return std::optional<kc::AttentionShape>();
}

// Every GEMM of the program, with adapters and without.
std::vector<kc::LinearArgs> CudaDecoder::gemm_shapes() const {
  std::vector<kc::LinearArgs> out;
  const auto add = [&](const CudaPlan& plan) {
    for (const CudaPlan::BoundOp& bound : plan.ops()) {
      if (!is_gemm(bound.op)) continue;
      const bool output = is_output(plan, bound.op);
      out.push_back(matmul_shape(
          weights_, bound.op.as<program::Matmul>(),
          output ? limits_.max_entries : limits_.max_tokens * row_ranks(spec_, rank_)));
      if (output) out.back().out_type = DType::kFloat32;
    }
  };
  add(plan_);
  if (others_.adapted) add(others_.adapted->plan());
  if (others_.states) add(others_.states->plan());
  for (const program::Alternative& alternative : plan_.alternatives()) {
    if (alternative.op.kind != program::OpKind::kLatentPrefill) continue;
    out.push_back(expansion_shape(weights_, alternative.op, limits_.max_tokens,
                                  alternative.op.as<program::LatentPrefill>().heads));
  }
  return out;
}

namespace {

// Few rows are normalised on their way into a GEMM.
int64_t workspace_bytes(const kc::Linear& linear, const CudaWeights& weights,
                        std::vector<kc::LinearArgs> shapes, int32_t max_tokens) {
  const size_t bytes = linear.workspace_bytes(shapes, max_tokens);
  // A stage of a pipeline that is not the last one has no final norm.
  const void* norm = weights.data({WeightKind::kFinalNorm});
  if (norm == nullptr) norm = weights.data({WeightKind::kInputNorm, 0});
  for (kc::LinearArgs& args : shapes) args.norm_weight = norm;
  return static_cast<int64_t>(std::max(bytes, linear.workspace_bytes(shapes, kc::kSmallRows)));
}

void add_gemms_to_tune(const CudaContext& context, const CudaWeights& weights,
                       const AttentionLimits& limits, float* logits, void* sums,
                       std::vector<kc::LinearArgs>& out) {
  const CudaPlan& plan = context.plan();
  constexpr int32_t kRows[] = {1,  2,   3,   4,   8,   12,  16,   24,   32,   48,  64,
                               96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192};
  for (const int32_t rows : kRows) {
    if (rows > limits.max_tokens) break;
    for (const CudaPlan::BoundOp& bound : plan.ops()) {
      const Op& op = bound.op;
      if (!is_tuned(op)) continue;
      const bool output = is_output(plan, op);
      const bool is_part = output && bound.op.outputs[0] != plan.ops().back().op.outputs[0];
      if (output && (rows > limits.max_entries || (!is_part && logits == nullptr))) continue;
      const auto& matmul = op.as<program::Matmul>();
      kc::LinearArgs& args = out.emplace_back(matmul_shape(weights, matmul, rows));
      args.x = context.read(op.inputs[0]);
      args.x_stride = context.stride(op.inputs[0]);
      args.bias = weights.data(matmul.bias);
      args.y = matmul.residual ? sums : context.write(op.outputs[0]);
      args.residual = matmul.residual ? sums : nullptr;
      if (!output) continue;
      if (!is_part) args.y = logits;
      args.y_stride = context.stride(op.outputs[0]);
      args.out_type = DType::kFloat32;
    }
  }
}

}  // namespace

Status CudaDecoder::tune(float* logits, const cuda::Stream& stream) {
  const auto start = std::chrono::steady_clock::now();
  const auto size = static_cast<int64_t>(dtype_size(weights_.type()));
  // Not zeros: GEMMs of zeros run faster.
  const std::span<std::byte> activations = context_.buffers().activations();
  ESP_RETURN_IF_ERROR(kc::draw(
      {.type = weights_.type(), .out = activations.data(), .count = std::ssize(activations) / size},
      {.stream = stream.get()}));
  // Sums that grow with each measurement are no GEMM's input.
  ESP_ASSIGN_OR_RETURN(
      const cuda::DeviceBuffer sums,
      cuda::DeviceBuffer::allocate(int64_t{limits_.max_tokens} * spec_.hidden_size * size,
                                   "sums of GEMMs that are tuned"));
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(sums.data(), 0, sums.size_bytes(), stream));
  const std::span<std::byte> workspace = context_.scratch().gemm_workspace;
  std::vector<kc::LinearArgs> gemms;
  add_gemms_to_tune(context_, weights_, limits_, logits, sums.data(), gemms);
  if (others_.adapted)
    add_gemms_to_tune(others_.adapted->context(), weights_, limits_, logits, sums.data(), gemms);
  ESP_RETURN_IF_ERROR(linear_->tune(gemms, workspace.data(), workspace.size(), stream.get()));
  ESP_RETURN_IF_ERROR(stream.synchronize());
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (seconds > 0.1) log_info("GEMMs tuned for this GPU seconds={:.2f}", seconds);
  return Status();
}

Status CudaDecoder::lay_out(cuda::Arena& arena, int64_t linear_bytes, int64_t megakernel_bytes) {
  const DecoderLimits limits{limits_.max_tokens, limits_.max_entries, row_ranks(spec_, rank_)};
  const cuda::Arena begin = arena;  // one of the plans runs at a time
  context_.lay_out(arena, limits);
  const auto overlay = [&](auto& layers) {
    cuda::Arena overlaid = begin;
    layers.lay_out(overlaid, limits);
    arena.take<std::byte>(std::max<int64_t>(0, overlaid.used_bytes() - arena.used_bytes()));
  };
  if (others_.adapted) overlay(*others_.adapted);
  if (others_.states) overlay(*others_.states);
  prologue_.lay_out(arena, limits_.max_tokens);
  std::byte* megakernel = megakernel_bytes > 0 ? arena.take<std::byte>(megakernel_bytes) : nullptr;
  auto* linear = arena.take<std::byte>(linear_bytes);
  ESP_RETURN_IF_ERROR(prologue_.lay_out_attention(arena, limits_));
  CudaScratch scratch{
      .ropes = constants_.ropes.frequencies(),
      .gemm_workspace = {linear, static_cast<size_t>(linear_bytes)},
      .collective = rank_.collective,
      .expert_tally = experts_.tally.get(),
      .expert_slots = experts_.slots.get(),
      .control_vectors = reinterpret_cast<float*>(constants_.control_vectors.data())};
  prologue_.describe(scratch);
  context_.bind(scratch);
  const CudaScratch adapting =
      others_.adapted ? others_.adapted->bind(arena, limits, scratch) : scratch;
  if (others_.states) others_.states->bind(adapting);
  if (rank_.collective != nullptr) name_collective_buffers(context_);
  if (one_token_) one_token_->lay_out(arena, megakernel, megakernel_bytes, scratch);
  return Status();
}

Status CudaDecoder::reserve(int32_t max_tokens, int32_t max_entries, int32_t page_size) {
  if (max_tokens < 1 || max_entries < 1) {
    return invalid_argument("a batch of {} tokens in {} entries is none", max_tokens, max_entries);
  }
  limits_.max_tokens = max_tokens;
  limits_.max_entries = max_entries;
  limits_.page_size = page_size;
  limits_.context_length = spec_.context_length;
  const int64_t linear_bytes = workspace_bytes(*linear_, weights_, gemm_shapes(),
                                               limits_.max_tokens * row_ranks(spec_, rank_));
  last_context_ = nullptr;
  int64_t megakernel_bytes = 0;
  if (one_token_) {
    ESP_ASSIGN_OR_RETURN(
        megakernel_bytes,
        one_token_->reserve(limits_, prologue_.all_layers_have_windows(), *linear_, policy_));
  }
  cuda::Arena measured;
  ESP_RETURN_IF_ERROR(lay_out(measured, linear_bytes, megakernel_bytes));
  scratch_ = {};
  ESP_ASSIGN_OR_RETURN(scratch_, cuda::DeviceBuffer::allocate(measured.used_bytes(), "scratch"));
  cuda::Arena arena(scratch_.data());
  ESP_RETURN_IF_ERROR(lay_out(arena, linear_bytes, megakernel_bytes));
  // Rows that no entry of a padded step writes are read all the same: finite, so that nothing
  // slower than usual happens.
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(scratch_.data(), 0, scratch_.size_bytes(), stream));
  return stream.synchronize();
}

Status CudaDecoder::forward(const CudaStep& step, const KvView& kv, const cuda::Stream& stream) {
  const kc::EntryArrays& entries = step.entries;
  ESP_CHECK(entries.num_tokens <= limits_.max_tokens && entries.num_entries <= limits_.max_entries,
            "{} tokens in {} entries, reserved {} in {}", entries.num_tokens, entries.num_entries,
            limits_.max_tokens, limits_.max_entries);
  const int32_t pdl_tokens = !rank_.ranks().single() ? kPdlTokensOfRanks
                             : weights_.has_codes()  ? kPdlTokensOfCodes
                                                     : kPdlTokens;
  policy_.step_pdl = policy_.pdl && step.spans.empty() && !step.returns_states &&
                     entries.max_query_tokens <= step.decode_tokens &&
                     entries.num_tokens >= pdl_tokens;
  policy_.next_pdl = false;
  if (one_token_ && step.spans.empty() && one_token_->takes(step)) {
    last_context_ = &one_token_->context();
    return one_token_->run(step, kv, stream);
  }
  ESP_CHECK(others_.adapted || !step.adapters.any(), "the model was loaded without adapters");
  ESP_CHECK(others_.states || !step.returns_states, "the model was loaded without hidden states");
  CudaContext* const other = others_.context_of(step, limits_.deterministic_context > 0);
  CudaContext& context = other != nullptr ? *other : context_;
  last_context_ = &context;
  CudaStep own = step;
  if (!prologue_.expands(step)) own.expanded.rows = 0;
  if (entries.num_tokens > 0)
    ESP_RETURN_IF_ERROR(
        prologue_.run(own, kv.page_size, {.stream = stream.get(), .pdl = policy_.step_pdl}));
  context.begin(own, kv, stream);
  if (step.returns_states) return others_.states->run(own);
  const CudaPlan& plan = context.plan();
  const bool ends_early = step.num_rows == 0 && !spec_.whole_attention;
  return context.run(0, ends_early ? plan.append_end() : plan.output_begin());
}

// Of a deterministic decoder rows without an adapter have one plan, whatever is beside them.
CudaContext* CudaDecoder::OtherPlans::context_of(const CudaStep& step, bool deterministic) const {
  if (step.returns_states) return &states->context();
  const bool adapts = step.adapters.any() || (adapted && deterministic);
  return adapts ? &adapted->context() : nullptr;
}

Status CudaDecoder::finish_states(const void* rows, int32_t count, void* out,
                                  const cuda::Stream& stream) {
  const int32_t dim = spec_.hidden_size;
  if (!spec_.final_norm)
    return kc::copy_parts({.type = type(),
                           .x = rows,
                           .x_stride = dim,
                           .x_head = dim,
                           .y = out,
                           .y_stride = dim,
                           .y_head = dim,
                           .count = dim,
                           .rows = count,
                           .heads = 1},
                          {.stream = stream.get()});
  return normalize_rows(
      weights_, {.spec = *spec_.final_norm, .weight = {WeightKind::kFinalNorm}},
      {.x = rows, .x_stride = dim, .y = out, .y_stride = dim, .rows = count, .dim = dim},
      {.stream = stream.get()});
}

// Not of the last context that was run, for a step may have been replayed from a graph.
const void* CudaDecoder::kept_states(const CudaStep& step) const {
  const CudaContext* const other = others_.context_of(step, limits_.deterministic_context > 0);
  const CudaContext& context = other != nullptr ? *other : context_;
  return context.read(program::find_buffer(context.plan().program(), program::kKeptStates));
}

CudaDecoder::StageRows CudaDecoder::stage_rows() const {
  StageRows rows;
  if (!spec_.stage.embeds) rows.received = context_.write(plan_.ops().front().op.outputs[0]);
  if (!spec_.stage.samples) rows.handed_on = context_.read(plan_.ops().back().op.inputs[0]);
  return rows;
}

Status CudaDecoder::logits(int32_t first, int32_t count, float* out, const cuda::Stream& stream) {
  ESP_CHECK(last_context_ != nullptr && count <= limits_.max_entries,
            "{} rows of logits, reserved {}", count, limits_.max_entries);
  const bool takes_part = plan_.ops().back().op.kind == program::OpKind::kAllGather;
  if (!plan_.has_logits() || (out == nullptr && !takes_part)) return Status();
  return last_context_->run_outputs(first, count, out, logits_stride(), stream);
}

}  // namespace espalier
