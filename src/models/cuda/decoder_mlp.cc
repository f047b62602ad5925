// The MLP blocks of CudaDecoder, dense or a mixture of experts, and how a block's result comes back
// into the residual stream.
#include <algorithm>

#include "kernels/activation/cuda.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/cuda_small_batch.h"
#include "kernels/norm/cuda.h"
#include "kernels/router/cuda.h"
#include "models/cuda/decoder.h"
#include "models/cuda/decoder_parts.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

template <typename Size>
int64_t most_of_experts(const DecoderSpec& spec, const Size& size) {
  int64_t most = 0;
  for (const LayerSpec& layer : spec.layers) {
    if (layer.experts) most = std::max<int64_t>(most, size(*layer.experts));
  }
  return most;
}

}  // namespace

void CudaDecoder::lay_out_experts(cuda::Arena& arena) {
  const int64_t count =
      most_of_experts(spec_, [](const ExpertsSpec& e) { return e.router.num_experts; });
  experts_ = {};
  if (count == 0) return;
  const int64_t tokens = max_tokens_, size = static_cast<int64_t>(dtype_size(weights_.type));
  const int64_t choices =
      tokens * most_of_experts(spec_, [](const ExpertsSpec& e) { return e.router.top_k; });
  const int64_t ffn =
      most_of_experts(spec_, [](const ExpertsSpec& e) { return e.expert.intermediate_size; });
  experts_.scores = arena.take<float>(tokens * count);
  experts_.experts = arena.take<int32_t>(choices);
  experts_.weights = arena.take<float>(choices);
  experts_.plan = {.slots = arena.take<int32_t>(choices),
                   .pairs = arena.take<int32_t>(choices),
                   .begins = arena.take<int32_t>(count + 1),
                   .tiles = arena.take<int32_t>(count + 1)};
  experts_.shared_gate = arena.take<float>(tokens);
  experts_.gate_up = arena.take<std::byte>(choices * 2 * ffn * size);
  experts_.down = arena.take<std::byte>(choices * spec_.hidden_size * size);
  experts_.shared = arena.take<std::byte>(tokens * spec_.hidden_size * size);
}

// x += mlp(norm(x))
Status CudaDecoder::run_mlp(size_t layer, int32_t rows, const cuda::Stream& stream) {
  const LayerSpec& spec = spec_.layers[layer];
  const CudaLayerWeights& weights = weights_.layers[layer];
  if (spec.experts) return run_experts(layer, rows, stream);
  ESP_ASSIGN_OR_RETURN(const kc::LinearArgs down,
                       run_gate_up(spec.mlp, weights, spec.post_attention_norm, x_, rows, stream));
  return add_branch(down, spec.mlp_output_norm, weights.mlp_output_norm,
                    spec_.faults.drop_mlp_residual, stream);
}

// SiLU and the multiplication are the product's own; other activations come behind it.
Result<kc::LinearArgs> CudaDecoder::run_gate_up(const MlpSpec& spec,
                                                const CudaLayerWeights& weights,
                                                const std::optional<NormSpec>& norm,
                                                const std::byte* x, int32_t rows,
                                                const cuda::Stream& stream) {
  kc::LinearArgs gate_up = product_args(weights.gate_up, rows);
  gate_up.x = x;
  gate_up.y = mlp_;
  gate_up.bias = weights.gate_up_bias;
  gate_up.silu_mul = joins_silu(spec);
  if (gate_up.silu_mul) gate_up.out_features /= 2;
  gate_up.y_stride = gate_up.out_features;
  ESP_RETURN_IF_ERROR(normed_product(norm, weights.post_attention_norm, gate_up, stream));
  kc::LinearArgs down = product_args(weights.down, rows);
  down.x = mlp_;
  down.x_stride = gate_up.y_stride;
  down.bias = weights.down_bias;
  if (gate_up.silu_mul) return down;
  const auto size = static_cast<int64_t>(dtype_size(weights_.type));
  ESP_RETURN_IF_ERROR(kc::gated({.type = weights_.type,
                                 .gate = mlp_,
                                 .gate_stride = gate_up.y_stride,
                                 .up = spec.gated ? mlp_ + spec.intermediate_size * size : nullptr,
                                 .up_stride = gate_up.y_stride,
                                 .y = mlp_,
                                 .y_stride = gate_up.y_stride,
                                 .rows = rows,
                                 .dim = spec.intermediate_size,
                                 .activation = spec.activation,
                                 .limit = spec.activation_limit},
                                on(stream)));
  return down;
}

// x += sum over a row's experts of weight * mlp(norm(x)), and what is shared.
Status CudaDecoder::run_experts(size_t layer, int32_t rows, const cuda::Stream& stream) {
  const LayerSpec& layer_spec = spec_.layers[layer];
  const ExpertsSpec& spec = *layer_spec.experts;
  const CudaLayerWeights& weights = weights_.layers[layer];
  const DecoderFaults& faults = spec_.faults;
  const int32_t hidden = spec_.hidden_size;
  const bool direct = !layer_spec.mlp_output_norm;
  auto* stream_x = const_cast<std::byte*>(x_);
  const bool keeps = direct && !faults.drop_mlp_residual;
  std::byte* to = direct || faults.drop_mlp_residual ? stream_x : normed_;
  const bool shared = spec.shared && !faults.drop_shared_expert;
  const kc::SmallBatchMoeArgs few = small_batch_moe_args(layer, rows, to, keeps);
  ESP_ASSIGN_OR_RETURN(const bool takes, takes_small_batch_moe(layer, few));
  if (takes) {
    kc::LaunchOptions launch = on(stream);
    launch.pdl |= early_launch_;
    ESP_RETURN_IF_ERROR(kc::small_batch_moe(few, launch));
    next_early_ = early_launch_;
    return direct ? Status() : finish_experts(layer, to, rows, stream);
  }
  const std::byte* x = x_;
  if (layer_spec.post_attention_norm) {
    ESP_RETURN_IF_ERROR(normalise(*layer_spec.post_attention_norm, weights.post_attention_norm, x_,
                                  hidden, normed_, hidden, rows, hidden, stream));
    x = normed_;
  }
  if (!faults.drop_experts) {
    ESP_RETURN_IF_ERROR(run_chosen(spec, weights.experts, x, rows, stream));
  }
  if (shared) {
    if (spec.shared_gate) {
      ESP_RETURN_IF_ERROR(kc::score({.type = weights_.type,
                                     .x = x,
                                     .x_stride = hidden,
                                     .weights = weights.experts.shared_gate,
                                     .y = experts_.shared_gate,
                                     .rows = rows,
                                     .dim = hidden,
                                     .outputs = 1},
                                    on(stream)));
    }
    ESP_ASSIGN_OR_RETURN(kc::LinearArgs down,
                         run_gate_up(*spec.shared, weights, std::nullopt, x, rows, stream));
    down.y = experts_.shared;
    ESP_RETURN_IF_ERROR(product(down, stream));
  }
  ESP_RETURN_IF_ERROR(kc::combine({.type = weights_.type,
                                   .x = experts_.down,
                                   .slots = experts_.plan.slots,
                                   .weights = experts_.weights,
                                   .top_k = faults.drop_experts ? 0 : spec.router.top_k,
                                   .shared = shared ? experts_.shared : nullptr,
                                   .shared_gate = spec.shared_gate ? experts_.shared_gate : nullptr,
                                   .residual = keeps ? stream_x : nullptr,
                                   .y = to,
                                   .rows = rows,
                                   .dim = hidden,
                                   .scale = keeps ? spec_.residual_scale : 1.0f},
                                  on(stream)));
  return direct ? Status() : finish_experts(layer, to, rows, stream);
}

// x += norm(branch), in place.
Status CudaDecoder::finish_experts(size_t layer, std::byte* branch, int32_t rows,
                                   const cuda::Stream& stream) {
  const int32_t hidden = spec_.hidden_size;
  ESP_RETURN_IF_ERROR(normalise(*spec_.layers[layer].mlp_output_norm,
                                weights_.layers[layer].mlp_output_norm, branch, hidden, branch,
                                hidden, rows, hidden, stream));
  return spec_.faults.drop_mlp_residual ? Status() : add_to_stream(branch, rows, stream);
}

// The layer's experts as one operation; to `to`, on top of x where it `keeps` that.
kc::SmallBatchMoeArgs CudaDecoder::small_batch_moe_args(size_t layer, int32_t rows, std::byte* to,
                                                        bool keeps) const {
  const LayerSpec& layer_spec = spec_.layers[layer];
  const ExpertsSpec& spec = *layer_spec.experts;
  const CudaLayerWeights& weights = weights_.layers[layer];
  kc::SmallBatchMoeArgs args{.type = weights_.type,
                             .rows = rows,
                             .dim = spec_.hidden_size,
                             .x = x_,
                             .router = spec.router,
                             .router_weights = weights.experts.router,
                             .router_bias = weights.experts.router_bias,
                             .correction = weights.experts.router_correction,
                             .ffn = spec.expert.intermediate_size,
                             .activation = spec.expert.activation,
                             .limit = spec.expert.activation_limit,
                             .gate_up = weights.experts.gate_up,
                             .gate_up_bias = weights.experts.gate_up_bias,
                             .down = weights.experts.down,
                             .down_bias = weights.experts.down_bias,
                             .residual = keeps ? x_ : nullptr,
                             .y = to,
                             .scale = keeps ? spec_.residual_scale : 1.0f,
                             .normed = normed_,
                             .scores = experts_.scores,
                             .shared_gate = experts_.shared_gate,
                             .inner = experts_.gate_up,
                             .shared_inner = mlp_};
  if (const auto& norm = layer_spec.post_attention_norm) {
    args.norm_weight = weights.post_attention_norm;
    args.norm_epsilon = norm->epsilon;
    args.norm_offset = norm->kind == NormSpec::Kind::kRmsOneCentred ? 1.0f : 0.0f;
  }
  if (spec.shared && !spec_.faults.drop_shared_expert) {
    args.shared_ffn = spec.shared->intermediate_size;
    args.shared_gate_up = weights.gate_up.data;
    args.shared_down = weights.down.data;
    args.shared_gate_weights = spec.shared_gate ? weights.experts.shared_gate : nullptr;
  }
  return args;
}

// What that operation has no words for goes the way of many rows: layer norms, shared experts
// unlike the others, and steps whose rows may not depend on how many there are.
Result<bool> CudaDecoder::takes_small_batch_moe(size_t layer,
                                                const kc::SmallBatchMoeArgs& args) const {
  const LayerSpec& layer_spec = spec_.layers[layer];
  const ExpertsSpec& spec = *layer_spec.experts;
  const auto& norm = layer_spec.post_attention_norm;
  const auto& shared = spec.shared;
  if (deterministic_context_ > 0 || spec_.faults.drop_experts || !spec.expert.gated ||
      (norm && norm->kind == NormSpec::Kind::kLayer) ||
      (shared && (!shared->gated || shared->bias || shared->activation != spec.expert.activation ||
                  shared->activation_limit != spec.expert.activation_limit))) {
    return false;
  }
  return kc::small_batch_moe_supports(args);
}

// Of every choice what its expert makes of its row: to experts_.down, by slot.
Status CudaDecoder::run_chosen(const ExpertsSpec& spec, const CudaExpertsWeights& weights,
                               const std::byte* x, int32_t rows, const cuda::Stream& stream) {
  const kernels::RouterSpec& router = spec.router;
  const int32_t hidden = spec_.hidden_size, ffn = spec.expert.intermediate_size;
  const int32_t choices = rows * router.top_k;
  ESP_RETURN_IF_ERROR(kc::score({.type = weights_.type,
                                 .x = x,
                                 .x_stride = hidden,
                                 .weights = weights.router,
                                 .bias = weights.router_bias,
                                 .y = experts_.scores,
                                 .rows = rows,
                                 .dim = hidden,
                                 .outputs = router.num_experts},
                                on(stream)));
  ESP_RETURN_IF_ERROR(kc::route({.spec = router,
                                 .logits = experts_.scores,
                                 .rows = rows,
                                 .correction = weights.router_correction,
                                 .experts = experts_.experts,
                                 .weights = experts_.weights},
                                on(stream)));
  ESP_RETURN_IF_ERROR(kc::arrange({.experts = experts_.experts,
                                   .num_pairs = choices,
                                   .num_experts = router.num_experts,
                                   .plan = experts_.plan},
                                  on(stream)));
  ESP_RETURN_IF_ERROR(kc::grouped_linear({.type = weights_.type,
                                          .num_groups = router.num_experts,
                                          .in_features = hidden,
                                          .out_features = 2 * ffn,
                                          .x = x,
                                          .x_stride = hidden,
                                          .weights = weights.gate_up,
                                          .weights_stride = int64_t{2} * ffn * hidden,
                                          .bias = weights.gate_up_bias,
                                          .y = experts_.gate_up,
                                          .y_stride = 2 * ffn,
                                          .plan = &experts_.plan,
                                          .num_pairs = choices,
                                          .pairs_per_row = router.top_k},
                                         on(stream)));
  const auto size = static_cast<int64_t>(dtype_size(weights_.type));
  ESP_RETURN_IF_ERROR(kc::gated({.type = weights_.type,
                                 .gate = experts_.gate_up,
                                 .gate_stride = 2 * ffn,
                                 .up = experts_.gate_up + ffn * size,
                                 .up_stride = 2 * ffn,
                                 .y = experts_.gate_up,
                                 .y_stride = 2 * ffn,
                                 .rows = choices,
                                 .dim = ffn,
                                 .activation = spec.expert.activation,
                                 .limit = spec.expert.activation_limit},
                                on(stream)));
  return kc::grouped_linear({.type = weights_.type,
                             .num_groups = router.num_experts,
                             .in_features = ffn,
                             .out_features = hidden,
                             .x = experts_.gate_up,
                             .x_stride = 2 * ffn,
                             .weights = weights.down,
                             .weights_stride = int64_t{hidden} * ffn,
                             .bias = weights.down_bias,
                             .y = experts_.down,
                             .y_stride = hidden,
                             .plan = &experts_.plan,
                             .num_pairs = choices},
                            on(stream));
}

// In the product itself where nothing comes between.
Status CudaDecoder::add_branch(kc::LinearArgs args, const std::optional<NormSpec>& norm,
                               const void* norm_weight, bool drop_residual,
                               const cuda::Stream& stream) {
  auto* x = const_cast<std::byte*>(x_);
  args.y = x;
  if (!norm && (spec_.residual_scale == 1 || drop_residual)) {
    args.residual = drop_residual ? nullptr : x_;
    return product(args, stream);
  }
  if (!drop_residual) args.y = normed_;
  ESP_RETURN_IF_ERROR(product(args, stream));
  if (norm) {
    ESP_RETURN_IF_ERROR(normalise(*norm, norm_weight, args.y, spec_.hidden_size, args.y,
                                  spec_.hidden_size, args.rows, spec_.hidden_size, stream));
  }
  return drop_residual ? Status() : add_to_stream(normed_, args.rows, stream);
}

Status CudaDecoder::add_to_stream(const std::byte* branch, int32_t rows,
                                  const cuda::Stream& stream) {
  return kc::add_scaled({.type = weights_.type,
                         .x = branch,
                         .x_stride = spec_.hidden_size,
                         .y = const_cast<std::byte*>(x_),
                         .y_stride = spec_.hidden_size,
                         .rows = rows,
                         .dim = spec_.hidden_size,
                         .scale = spec_.residual_scale},
                        on(stream));
}

Status CudaDecoder::normalise(const NormSpec& norm, const void* weight, const void* x,
                              int64_t x_stride, void* y, int64_t y_stride, int32_t rows,
                              int32_t dim, const cuda::Stream& stream) {
  if (norm.kind == NormSpec::Kind::kLayer) {
    const auto size = static_cast<int64_t>(dtype_size(weights_.type));
    return kc::layer_norm({.type = weights_.type,
                           .x = x,
                           .x_stride = x_stride,
                           .weight = weight,
                           .bias = static_cast<const std::byte*>(weight) + dim * size,
                           .y = y,
                           .y_stride = y_stride,
                           .rows = rows,
                           .dim = dim,
                           .epsilon = norm.epsilon},
                          on(stream));
  }
  return kc::rms_norm({.type = weights_.type,
                       .x = x,
                       .x_stride = x_stride,
                       .weight = weight,
                       .weight_offset = norm.kind == NormSpec::Kind::kRmsOneCentred ? 1.0f : 0.0f,
                       .y = y,
                       .y_stride = y_stride,
                       .rows = rows,
                       .dim = dim,
                       .epsilon = norm.epsilon},
                      on(stream));
}

}  // namespace espalier
