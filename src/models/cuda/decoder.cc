#include "models/cuda/decoder.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "kernels/activation/cuda.h"
#include "kernels/embedding/cuda.h"
#include "kernels/kv_append/cuda.h"
#include "kernels/norm/cuda.h"
#include "kernels/random/cuda.h"
#include "models/cuda/decoder_parts.h"
#include "models/rope_table.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

int64_t widest(const DecoderSpec& spec, int64_t (*width)(const LayerSpec&)) {
  int64_t most = 0;
  for (const LayerSpec& layer : spec.layers) most = std::max(most, width(layer));
  return most;
}

// Decode steps of so many tokens start each kernel before the one in front of it has ended. With
// one or two, whose products are kernels for few rows, that costs (8 B: 4.65 to 4.79 ms, Qwen3
// 30B-A3B 4.95 to 5.32); three and four gain 9 % (8 B) and 4 to 6 % (experts, softcaps).
constexpr int32_t kEarlyTokens = 3;
// Steps with prompts, too, up to so many tokens (512: 11.48 ms instead of 11.69); beyond, a
// kernel's start is nothing beside it.
constexpr int32_t kEarlyPromptTokens = 1024;
// Keys and values of a layer up to which one request's layers run as one kernel. That saves 12 us a
// layer, but reads them at 1.6 TB/s where attention by itself does at 3.6: 8 B at 32,768 tokens
// 6.86 ms a step, kernel by kernel 5.77; at 4,096 4.50 and 4.80 (in two runs).
constexpr int64_t kStackKvBytes = int64_t{32} << 20;

int64_t gate_up_width(const MlpSpec& mlp) {
  return (mlp.gated && !joins_silu(mlp) ? 2 : 1) * int64_t{mlp.intermediate_size};
}

// The MLP that all tokens pass.
const MlpSpec& mlp_of(const LayerSpec& layer) {
  return layer.experts && layer.experts->shared ? *layer.experts->shared : layer.mlp;
}

int64_t mlp_width(const LayerSpec& layer) {
  if (!layer.experts) return gate_up_width(layer.mlp);
  return layer.experts->shared ? gate_up_width(*layer.experts->shared) : 0;
}

// What of a model this pass has no code for; empty: it has all of it.
std::string_view missing_part(const DecoderSpec& spec) {
  if (spec.pooling) return "vectors of texts (embeddings, classes, rewards)";
  if (spec.faults.linear_activation) return "the fault linear_activation";
  return {};
}

// Every number by which vectors of eight elements are read.
Status check_sizes(const DecoderSpec& spec, const LayerSpec& layer) {
  const auto eights = [&](const char* what, int32_t size) -> Status {
    if (size % 8 == 0) return Status();
    return error(StatusCode::kUnimplemented,
                 "{}: {} is {}, but must be a multiple of 8 on the GPU; use --device cpu",
                 spec.architecture, what, size);
  };
  ESP_RETURN_IF_ERROR(eights("hidden_size", spec.hidden_size));
  ESP_RETURN_IF_ERROR(eights("head_dim", layer.attention.head_dim));
  if (!layer.experts) return eights("intermediate_size", layer.mlp.intermediate_size);
  ESP_RETURN_IF_ERROR(
      eights("the experts' intermediate_size", layer.experts->expert.intermediate_size));
  if (!layer.experts->shared) return Status();
  return eights("the shared expert's intermediate_size", layer.experts->shared->intermediate_size);
}

Status check_latent(const DecoderSpec& spec, const LatentSpec& latent) {
  const auto [queries, rank, nope, rope, value] = std::tuple(
      latent.query_rank, latent.rank, latent.nope_dim, latent.rope_dim, latent.value_dim);
  if ((queries | rank | nope | rope) % 8 == 0 && value % 4 == 0) return Status();
  return error(StatusCode::kUnimplemented,
               "{}: the sizes of latent attention ({}, {}, {}, {}, {}) must be multiples of 8 on "
               "the GPU; use "
               "--device cpu",
               spec.architecture, queries, rank, nope, rope, value);
}

Status check_supported(const DecoderSpec& spec) {
  if (const std::string_view part = missing_part(spec); !part.empty()) {
    return error(StatusCode::kUnimplemented, "{}: {} do not run on the GPU yet; use --device cpu",
                 spec.architecture, part);
  }
  for (const LayerSpec& layer : spec.layers) {
    ESP_RETURN_IF_ERROR(check_sizes(spec, layer));
    if (layer.attention.latent) {
      ESP_RETURN_IF_ERROR(check_latent(spec, *layer.attention.latent));
    }
    const int32_t most = kc::kMaxHeadDim;
    if (layer.attention.head_dim > most) {
      return error(StatusCode::kUnimplemented,
                   "head_dim is {}, but the GPU takes at most {}; use --device cpu",
                   layer.attention.head_dim, most);
    }
  }
  return Status();
}

bool same_shape(const kc::AttentionShape& a, const kc::AttentionShape& b) {
  return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads &&
         a.head_dim == b.head_dim && a.sliding_window == b.sliding_window;
}

}  // namespace

CudaDecoder::CudaDecoder(DecoderSpec spec, PendingCudaWeights weights,
                         std::unique_ptr<kc::Linear> linear)
    : spec_(std::move(spec)),
      weights_(std::move(weights.weights)),
      loader_(std::move(weights.loader)),
      linear_(std::move(linear)),
      info_(describe_model(spec_)) {
  info_.weight_bytes = weights_.block.size_bytes();
}

Result<std::unique_ptr<CudaDecoder>> CudaDecoder::load(const ModelLoadOptions& options) {
  ESP_ASSIGN_OR_RETURN(ModelPlan plan, plan_model(options));
  return load(std::move(plan), options);
}

Result<std::unique_ptr<CudaDecoder>> CudaDecoder::load(ModelPlan plan,
                                                       const ModelLoadOptions& options) {
  ESP_ASSIGN_OR_RETURN(auto model, begin_load(std::move(plan), options));
  ESP_RETURN_IF_ERROR(model->finish_loading());
  return model;
}

Result<std::unique_ptr<CudaDecoder>> CudaDecoder::begin_load(ModelPlan plan,
                                                             const ModelLoadOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  ESP_RETURN_IF_ERROR(validate(plan.spec));
  ESP_RETURN_IF_ERROR(check_supported(plan.spec));
  ESP_ASSIGN_OR_RETURN(PendingCudaWeights weights,
                       load_cuda_weights(plan.spec, plan.type, options));
  ESP_ASSIGN_OR_RETURN(auto linear,
                       kc::Linear::create({.cache_folder = kc::default_linear_cache()}));
  std::unique_ptr<CudaDecoder> model(
      new CudaDecoder(std::move(plan.spec), std::move(weights), std::move(linear)));
  model->load_start_ = start;
  ESP_RETURN_IF_ERROR(model->upload_ropes());
  return model;
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

kc::LaunchOptions CudaDecoder::on(const cuda::Stream& stream) {
  const bool early = std::exchange(next_early_, false) || launches_early_;
  return {.stream = stream.get(), .pdl = early};
}

KvType CudaDecoder::kv_type() const {
  return weights_.type == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16;
}

Status CudaDecoder::upload_ropes() {
  std::vector<std::vector<float>> tables;
  for (const RopeSpec& rope : spec_.ropes) {
    tables.push_back(rope_frequencies(rope, spec_.context_length));
  }
  const auto lay_out = [&](cuda::Arena& arena) {
    rope_frequencies_.clear();
    for (const auto& table : tables) {
      rope_frequencies_.push_back(arena.take<float>(std::ssize(table)));
    }
  };
  cuda::Arena measured;
  lay_out(measured);
  ESP_ASSIGN_OR_RETURN(rope_block_, cuda::DeviceBuffer::allocate(measured.used_bytes(), "ropes"));
  cuda::Arena arena(rope_block_.data());
  lay_out(arena);
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  for (size_t i = 0; i < tables.size(); ++i) {
    ESP_RETURN_IF_ERROR(cuda::copy_to_device(const_cast<float*>(rope_frequencies_[i]),
                                             tables[i].data(), std::ssize(tables[i]) * 4, stream));
  }
  return stream.synchronize();
}

void CudaDecoder::set_deterministic(int32_t max_context) {
  deterministic_context_ = max_context;
  linear_->set_row_invariant();
}

kc::AttentionShape CudaDecoder::shape_of(size_t layer, int32_t page_size) const {
  const AttentionSpec& a = spec_.layers[layer].attention;
  kc::AttentionShape shape{.num_heads = a.num_heads,
                           .num_kv_heads = a.num_kv_heads,
                           .head_dim = a.head_dim,
                           .page_size = page_size,
                           .sliding_window = a.sliding_window,
                           .type = weights_.type};
  if (deterministic_context_ > 0) {
    shape.max_context = deterministic_context_;
    shape.fixed_split = kc::fixed_split(shape, max_entries_, deterministic_context_);
  }
  return shape;
}

Result<std::optional<kc::AttentionShape>> CudaDecoder::shared_attention(int32_t page_size) const {
  for (size_t layer = 0; layer < spec_.layers.size(); ++layer) {
    const kc::AttentionShape shape = shape_of(layer, page_size);
    ESP_ASSIGN_OR_RETURN(const bool shares, kc::shares_segments(shape));
    if (shares) return std::optional(shape);
  }
  return std::optional<kc::AttentionShape>();
}

// Every product that a pass runs, for the sizes of scratch.
std::vector<kc::LinearArgs> CudaDecoder::products() const {
  std::vector<kc::LinearArgs> out;
  const auto add = [&](const CudaMatrix& matrix, bool silu_mul) {
    if (matrix.data == nullptr) return;
    kc::LinearArgs args = product_args(matrix, max_tokens_);
    args.silu_mul = silu_mul;
    if (silu_mul) args.out_features /= 2;
    out.push_back(args);
  };
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const CudaLayerWeights& layer = weights_.layers[i];
    add(layer.qkv, false);
    for (const CudaMatrix* matrix : {&layer.latent.q_a, &layer.latent.q, &layer.latent.kv_a}) {
      add(*matrix, false);
    }
    add(layer.attention_output, false);
    add(layer.gate_up, joins_silu(mlp_of(spec_.layers[i])));
    add(layer.down, false);
  }
  add(weights_.head, false);
  out.back().out_type = DType::kFloat32;
  out.back().rows = max_entries_;
  return out;
}

// Those of the first layer (the others mostly have its shapes) and the head.
std::vector<kc::LinearArgs> CudaDecoder::products_to_tune(float* logits) const {
  constexpr int32_t kRows[] = {1,  2,   3,   4,   8,   12,  16,   24,   32,   48,  64,
                               96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192};
  const CudaLayerWeights& layer = weights_.layers.front();
  std::vector<kc::LinearArgs> out;
  for (const int32_t rows : kRows) {
    if (rows > max_tokens_) break;
    const auto add = [&](const CudaMatrix& matrix, const std::byte* x, std::byte* y,
                         const void* bias, bool residual) -> kc::LinearArgs& {
      kc::LinearArgs& args = out.emplace_back(product_args(matrix, rows));
      args.x = x;
      args.y = y;
      args.bias = bias;
      args.residual = residual ? y : nullptr;
      return args;
    };
    if (layer.qkv.data != nullptr) add(layer.qkv, hidden_, qkv_, layer.qkv_bias, false);
    add(layer.attention_output, attended_, kept_, layer.attention_output_bias, true);
    if (layer.gate_up.data != nullptr) {
      kc::LinearArgs& gate_up = add(layer.gate_up, hidden_, mlp_, layer.gate_up_bias, false);
      gate_up.silu_mul = joins_silu(mlp_of(spec_.layers.front()));
      if (gate_up.silu_mul) gate_up.out_features /= 2;
      gate_up.y_stride = gate_up.out_features;
      add(layer.down, mlp_, kept_, layer.down_bias, true);
    }
    if (rows > max_entries_) continue;
    add(weights_.head, hidden_, reinterpret_cast<std::byte*>(logits), nullptr, false).out_type =
        DType::kFloat32;
  }
  return out;
}

Status CudaDecoder::tune(float* logits, const cuda::Stream& stream) {
  const auto start = std::chrono::steady_clock::now();
  const auto size = static_cast<int64_t>(dtype_size(weights_.type));
  // Not zeros: products of zeros run faster.
  ESP_RETURN_IF_ERROR(kc::draw({.type = weights_.type,
                                .out = hidden_,
                                .count = (reinterpret_cast<std::byte*>(kv_rows_) - hidden_) / size},
                               on(stream)));
  ESP_RETURN_IF_ERROR(linear_->tune(products_to_tune(logits), linear_scratch_,
                                    static_cast<size_t>(linear_scratch_bytes_), stream.get()));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (seconds > 0.1) log_info("matrix products tuned for this GPU seconds={:.2f}", seconds);
  return Status();
}

Status CudaDecoder::reserve(int32_t max_tokens, int32_t max_entries, int32_t page_size) {
  if (max_tokens < 1 || max_entries < 1) {
    return invalid_argument("a batch of {} tokens in {} entries is none", max_tokens, max_entries);
  }
  max_tokens_ = max_tokens;
  max_entries_ = max_entries;
  std::vector<kc::LinearArgs> shapes = products();
  linear_scratch_bytes_ = static_cast<int64_t>(linear_->workspace_bytes(shapes, max_tokens));
  // Few rows are normed on their way into a product.
  for (kc::LinearArgs& args : shapes) args.norm_weight = weights_.final_norm;
  linear_scratch_bytes_ =
      std::max(linear_scratch_bytes_,
               static_cast<int64_t>(linear_->workspace_bytes(shapes, kc::kSmallRows)));
  stack_workspace_bytes_ = 0;
  if (const kc::MegakernelShape shape = stack_shape();
      deterministic_context_ == 0 && kc::megakernel_supports(shape) &&
      kc::megakernel_supports_page_size(page_size)) {
    ESP_ASSIGN_OR_RETURN(const size_t bytes, kc::megakernel_workspace_bytes(shape));
    stack_workspace_bytes_ = static_cast<int64_t>(bytes);
    const int64_t token_bytes = int64_t{4} * shape.num_kv_heads * shape.head_dim;
    stack_context_max_ = all_layers_have_windows()
                             ? std::numeric_limits<int32_t>::max()
                             : static_cast<int32_t>(kStackKvBytes / token_bytes);
  }
  cuda::Arena measured;
  lay_out(measured);
  ESP_RETURN_IF_ERROR(lay_out_attention(measured, page_size));
  scratch_ = {};
  ESP_ASSIGN_OR_RETURN(scratch_, cuda::DeviceBuffer::allocate(measured.used_bytes(), "scratch"));
  cuda::Arena arena(scratch_.data());
  lay_out(arena);
  ESP_RETURN_IF_ERROR(lay_out_attention(arena, page_size));
  // Rows that no entry of a padded step writes are read all the same: finite, so that nothing
  // slower than usual happens.
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(scratch_.data(), 0, scratch_.size_bytes(), stream));
  return stream.synchronize();
}

void CudaDecoder::lay_out(cuda::Arena& arena) {
  const auto size = static_cast<int64_t>(dtype_size(weights_.type));
  const int64_t rows = max_tokens_ * size;
  const int64_t q = widest(spec_, [](const LayerSpec& l) { return int64_t{l.attention.q_dim()}; });
  const int64_t qkv =
      widest(spec_, [](const LayerSpec& l) { return int64_t{qkv_width(l.attention)}; });
  const int64_t ffn = widest(spec_, mlp_width);
  const int64_t latent = widest(spec_, [](const LayerSpec& l) {
    if (!l.attention.latent) return int64_t{0};
    const LatentSpec& of = *l.attention.latent;
    const int64_t queries = int64_t{l.attention.num_heads} * (of.nope_dim + of.rope_dim);
    return std::max<int64_t>(of.query_rank + queries, l.attention.output_dim());
  });
  hidden_ = arena.take<std::byte>(rows * spec_.hidden_size);
  kept_ = arena.take<std::byte>(rows * spec_.hidden_size);
  normed_ = arena.take<std::byte>(rows * spec_.hidden_size);
  qkv_ = arena.take<std::byte>(rows * qkv);
  attended_ = arena.take<std::byte>(rows * q);
  mlp_ = arena.take<std::byte>(rows * std::max(ffn, q));
  latent_q_ = arena.take<std::byte>(rows * latent);
  kv_rows_ = arena.take<int32_t>(max_tokens_);
  window_kv_rows_ = info_.sliding_window > 0 ? arena.take<int32_t>(max_tokens_) : nullptr;
  positions_ = arena.take<int32_t>(max_tokens_);
  lay_out_experts(arena);
  stack_workspace_ =
      stack_workspace_bytes_ > 0 ? arena.take<std::byte>(stack_workspace_bytes_) : nullptr;
  linear_scratch_ = arena.take<std::byte>(linear_scratch_bytes_);
}

Status CudaDecoder::lay_out_attention(cuda::Arena& arena, int32_t page_size) {
  groups_.clear();
  group_of_.clear();
  for (size_t layer = 0; layer < spec_.layers.size(); ++layer) {
    const kc::AttentionShape shape = shape_of(layer, page_size);
    const auto known = std::find_if(groups_.begin(), groups_.end(), [&](const AttentionGroup& g) {
      return same_shape(g.shape, shape);
    });
    group_of_.push_back(static_cast<size_t>(known - groups_.begin()));
    if (known != groups_.end()) continue;
    ESP_ASSIGN_OR_RETURN(const size_t bytes,
                         kc::attention_workspace_bytes(shape, max_entries_, max_tokens_));
    const auto size = static_cast<int64_t>(bytes);
    groups_.push_back({shape, arena.take<std::byte>(size), size});
  }
  return Status();
}

Status CudaDecoder::plan(const CudaStep& step, const KvView& kv, const cuda::Stream& stream) {
  ESP_RETURN_IF_ERROR(kc::token_rows({.entries = step.entries,
                                      .page_size = kv.page_size,
                                      .kv_rows = kv_rows_,
                                      .positions = positions_},
                                     on(stream)));
  if (window_kv_rows_ != nullptr && step.window_entries.page_tables != nullptr) {
    ESP_RETURN_IF_ERROR(kc::token_rows(
        {.entries = step.window_entries, .page_size = kv.page_size, .kv_rows = window_kv_rows_},
        on(stream)));
  }
  for (const AttentionGroup& group : groups_) {
    ESP_RETURN_IF_ERROR(kc::attention_plan(group.shape, entries_of(group.shape, step),
                                           group.workspace,
                                           static_cast<size_t>(group.workspace_bytes), on(stream)));
  }
  return Status();
}

Status CudaDecoder::forward(const CudaStep& step, const KvView& kv, const cuda::Stream& stream) {
  ESP_CHECK(step.entries.num_tokens <= max_tokens_ && step.entries.num_entries <= max_entries_,
            "{} tokens in {} entries, reserved {} in {}", step.entries.num_tokens,
            step.entries.num_entries, max_tokens_, max_entries_);
  launches_early_ = early_launch_ && step.entries.max_query_tokens == 1 &&
                    step.entries.num_tokens >= kEarlyTokens;
  next_early_ = false;
  if (stack_takes(step)) return run_stack(step, kv, stream);
  ESP_RETURN_IF_ERROR(plan(step, kv, stream));
  ESP_RETURN_IF_ERROR(embed(step, stream));
  for (size_t layer = 0; layer < spec_.layers.size(); ++layer) {
    ESP_RETURN_IF_ERROR(run_layer(layer, step, kv, stream));
  }
  return Status();
}

// hidden_ = embedding_scale * embedding[token] (+ position_embedding[position]). Starts when all
// that was enqueued before it has ended, so what starts after it, early or not, finds the plan and
// the cached keys there: AttentionArgs::prefetch_cached_kv.
Status CudaDecoder::embed(const CudaStep& step, const cuda::Stream& stream) {
  const int32_t tokens = step.entries.num_tokens;
  ESP_RETURN_IF_ERROR(kc::gather_rows({.type = weights_.type,
                                       .table = weights_.embedding.data,
                                       .num_rows = spec_.vocab_size,
                                       .dim = spec_.hidden_size,
                                       .ids = step.ids,
                                       .token_slots = step.token_slots,
                                       .slot_tokens = step.slot_tokens,
                                       .out = hidden_,
                                       .out_stride = spec_.hidden_size,
                                       .tokens = tokens},
                                      {.stream = stream.get()}));
  x_ = hidden_;
  if (spec_.embedding_scale != 1) {
    ESP_RETURN_IF_ERROR(kc::scale({.type = weights_.type,
                                   .x = hidden_,
                                   .x_stride = spec_.hidden_size,
                                   .rows = tokens,
                                   .dim = spec_.hidden_size,
                                   .scale = spec_.embedding_scale},
                                  on(stream)));
  }
  if (spec_.learned_positions == 0) return Status();
  ESP_RETURN_IF_ERROR(kc::gather_rows({.type = weights_.type,
                                       .table = weights_.position_embedding.data,
                                       .num_rows = spec_.learned_positions,
                                       .dim = spec_.hidden_size,
                                       .ids = positions_,
                                       .out = normed_,
                                       .out_stride = spec_.hidden_size,
                                       .tokens = tokens},
                                      on(stream)));
  return kc::add_scaled({.type = weights_.type,
                         .x = normed_,
                         .x_stride = spec_.hidden_size,
                         .y = hidden_,
                         .y_stride = spec_.hidden_size,
                         .rows = tokens,
                         .dim = spec_.hidden_size},
                        on(stream));
}

kc::LinearArgs CudaDecoder::product_args(const CudaMatrix& matrix, int32_t rows) const {
  return {.type = weights_.type,
          .out_type = weights_.type,
          .rows = rows,
          .in_features = matrix.in_features,
          .out_features = matrix.out_features,
          .x_stride = matrix.in_features,
          .weights = matrix.data,
          .y_stride = matrix.out_features};
}

Status CudaDecoder::product(const kc::LinearArgs& args, const cuda::Stream& stream) {
  return linear_->run(args, linear_scratch_, static_cast<size_t>(linear_scratch_bytes_),
                      on(stream));
}

Status CudaDecoder::normed_product(const std::optional<NormSpec>& norm, const void* norm_weight,
                                   kc::LinearArgs args, const cuda::Stream& stream) {
  constexpr int32_t kWidestFused = 16384;  // kernels/linear/cuda.h
  if (!norm) return product(args, stream);
  if (norm->kind == NormSpec::Kind::kRms && args.rows <= kc::kSmallRows &&
      args.in_features <= kWidestFused) {
    args.norm_weight = norm_weight;
    args.norm_epsilon = norm->epsilon;
    return product(args, stream);
  }
  ESP_RETURN_IF_ERROR(normalise(*norm, norm_weight, args.x, args.x_stride, normed_,
                                spec_.hidden_size, args.rows, spec_.hidden_size, stream));
  args.x = normed_;
  args.x_stride = spec_.hidden_size;
  return product(args, stream);
}

// No layers where they do not all have one shape, or have parts that the one kernel leaves out.
kc::MegakernelShape CudaDecoder::stack_shape() const {
  const LayerSpec& first = spec_.layers.front();
  const DecoderFaults& faults = spec_.faults;
  if (weights_.type != DType::kBFloat16 || faults.drop_attention_residual ||
      faults.drop_mlp_residual || spec_.embedding_scale != 1 || spec_.residual_scale != 1 ||
      spec_.learned_positions != 0) {
    return {};
  }
  for (const LayerSpec& layer : spec_.layers) {
    const bool same = layer.attention.num_heads == first.attention.num_heads &&
                      layer.mlp.intermediate_size == first.mlp.intermediate_size;
    const AttentionSpec& a = layer.attention;
    const bool more = layer.attention_output_norm || layer.mlp_output_norm || layer.experts ||
                      a.latent || a.sinks || !joins_silu(layer.mlp) ||
                      (a.qk_norm && a.qk_norm->kind != NormSpec::Kind::kRms) ||
                      (layer.attention.qk_norm &&
                       layer.attention.qk_norm_scope != AttentionSpec::NormScope::kHead);
    if (!same || more || !layer.input_norm || !layer.post_attention_norm ||
        layer.input_norm->kind != NormSpec::Kind::kRms ||
        layer.post_attention_norm->kind != NormSpec::Kind::kRms ||
        layer.input_norm->epsilon != layer.post_attention_norm->epsilon) {
      return {};
    }
  }
  return {.num_layers = static_cast<int32_t>(spec_.layers.size()),
          .hidden = spec_.hidden_size,
          .ffn = first.mlp.intermediate_size,
          .num_heads = first.attention.num_heads,
          .num_kv_heads = first.attention.num_kv_heads,
          .head_dim = first.attention.head_dim};
}

bool CudaDecoder::stack_takes(const CudaStep& step) const {
  return stack_on_ && stack_workspace_ != nullptr && step.entries.num_tokens == 1 &&
         step.entries.num_entries == 1 && step.num_rows <= 1 &&
         step.max_prefix_len < stack_context_max_ &&
         (step.window_entries.page_tables == nullptr || all_layers_have_windows());
}

// The one kernel reads one page table.
bool CudaDecoder::all_layers_have_windows() const {
  return std::ranges::all_of(
      spec_.layers, [](const LayerSpec& layer) { return layer.attention.sliding_window > 0; });
}

Status CudaDecoder::run_stack(const CudaStep& step, const KvView& kv, const cuda::Stream& stream) {
  std::vector<kc::MegakernelLayer> layers;
  layers.reserve(spec_.layers.size());
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    const CudaLayerWeights& w = weights_.layers[i];
    const AttentionSpec& a = spec_.layers[i].attention;
    kc::MegakernelLayer& out = layers.emplace_back(
        kc::MegakernelLayer{.input_norm = w.input_norm,
                            .qkv = w.qkv.data,
                            .qkv_bias = w.qkv_bias,
                            .q_norm = w.q_norm,
                            .k_norm = w.k_norm,
                            .output = w.attention_output.data,
                            .output_bias = w.attention_output_bias,
                            .mlp_norm = w.post_attention_norm,
                            .gate_up = w.gate_up.data,
                            .gate_up_bias = w.gate_up_bias,
                            .down = w.down.data,
                            .down_bias = w.down_bias,
                            .k = kv.layers[i].k,
                            .v = kv.layers[i].v,
                            .sliding_window = a.sliding_window,
                            .scale = a.scale,
                            .softcap = a.softcap,
                            .norm_epsilon = spec_.layers[i].input_norm->epsilon});
    if (a.qk_norm) out.qk_epsilon = a.qk_norm->epsilon;
    if (!a.rope) continue;
    const RopeSpec& rope = spec_.ropes[static_cast<size_t>(*a.rope)];
    out.frequencies = rope_frequencies_[static_cast<size_t>(*a.rope)];
    out.attention_factor = static_cast<float>(rope.attention_factor);
    out.rotary_dim = rope.rotary_dim;
    out.interleaved = rope.pairing == RopeSpec::Pairing::kInterleaved ? 1 : 0;
  }
  x_ = hidden_;
  ++num_stack_steps_;
  return kc::megakernel({.shape = stack_shape(),
                         .layers = layers,
                         .ids = step.ids,
                         .token_slots = step.token_slots,
                         .slot_tokens = step.slot_tokens,
                         .embedding = weights_.embedding.data,
                         .vocab_size = spec_.vocab_size,
                         .entries = entries_of(groups_[group_of_[0]].shape, step),
                         .kv = planes_of(kv, 0),
                         .out = hidden_,
                         .workspace = stack_workspace_,
                         .workspace_bytes = static_cast<size_t>(stack_workspace_bytes_)},
                        on(stream));
}

Status CudaDecoder::logits(int32_t first, int32_t count, float* out, const cuda::Stream& stream) {
  ESP_CHECK(count <= max_entries_, "{} rows of logits, reserved {}", count, max_entries_);
  kc::LinearArgs head = product_args(weights_.head, count);
  head.x = x_ + static_cast<int64_t>(first) * spec_.hidden_size *
                    static_cast<int64_t>(dtype_size(weights_.type));
  head.y = out;
  head.out_type = DType::kFloat32;
  ESP_RETURN_IF_ERROR(normed_product(spec_.final_norm, weights_.final_norm, head, stream));
  if (spec_.logits_scale == 1 && spec_.logits_softcap == 0) return Status();
  return kc::scale({.type = DType::kFloat32,
                    .x = out,
                    .x_stride = logits_stride(),
                    .rows = count,
                    .dim = spec_.vocab_size,
                    .scale = spec_.logits_scale,
                    .softcap = spec_.logits_softcap},
                   on(stream));
}

}  // namespace espalier
