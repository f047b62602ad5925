// The attention blocks of CudaDecoder: queries, keys and values of x, or latents of them.
#include "kernels/activation/cuda.h"
#include "kernels/embedding/cuda.h"
#include "kernels/kv_append/cuda.h"
#include "kernels/moe/cuda.h"
#include "models/cuda/decoder.h"
#include "models/cuda/decoder_parts.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

}  // namespace

Status CudaDecoder::run_layer(size_t layer, const CudaStep& step, const KvView& kv,
                              const cuda::Stream& stream) {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const int32_t tokens = step.entries.num_tokens;
  ESP_RETURN_IF_ERROR(a.latent ? project_latent(layer, tokens, stream)
                               : project(layer, tokens, stream));
  ESP_RETURN_IF_ERROR(append(layer, step, kv, stream));
  if (step.num_rows == 0 && layer + 1 == spec_.layers.size()) return Status();
  return attend(layer, step, kv, stream);
}

Status CudaDecoder::project(size_t layer, int32_t tokens, const cuda::Stream& stream) {
  const LayerSpec& spec = spec_.layers[layer];
  const CudaLayerWeights& weights = weights_.layers[layer];
  kc::LinearArgs qkv = product_args(weights.qkv, tokens);
  qkv.x = x_;
  qkv.y = qkv_;
  qkv.bias = weights.qkv_bias;
  ESP_RETURN_IF_ERROR(normed_product(spec.input_norm, weights.input_norm, qkv, stream));
  const AttentionSpec& a = spec.attention;
  const bool over_all = a.qk_norm && a.qk_norm_scope == AttentionSpec::NormScope::kAll;
  return over_all ? norm_all_heads(layer, tokens, stream) : Status();
}

Status CudaDecoder::norm_all_heads(size_t layer, int32_t tokens, const cuda::Stream& stream) {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const CudaLayerWeights& weights = weights_.layers[layer];
  const auto norm = [&](std::byte* x, int32_t dim, const void* weight) {
    return normalise(*a.qk_norm, weight, x, qkv_width(a), x, qkv_width(a), tokens, dim, stream);
  };
  ESP_RETURN_IF_ERROR(norm(qkv_, a.q_dim(), weights.q_norm));
  return norm(qkv_ + a.q_dim() * static_cast<int64_t>(dtype_size(weights_.type)), a.kv_dim(),
              weights.k_norm);
}

// qkv_ = for each head [what its query asks of the latent; its part to be rotated], then the latent
// and the part to be rotated that all heads share.
Status CudaDecoder::project_latent(size_t layer, int32_t tokens, const cuda::Stream& stream) {
  const LayerSpec& spec = spec_.layers[layer];
  const AttentionSpec& a = spec.attention;
  const LatentSpec& latent = *a.latent;
  const CudaLatentWeights& weights = weights_.layers[layer].latent;
  const auto size = static_cast<int64_t>(dtype_size(weights_.type));
  const int32_t stride = qkv_width(a), width = latent.nope_dim + latent.rope_dim;
  const std::byte* x = x_;
  if (spec.input_norm) {
    ESP_RETURN_IF_ERROR(normalise(*spec.input_norm, weights_.layers[layer].input_norm, x_,
                                  spec_.hidden_size, normed_, spec_.hidden_size, tokens,
                                  spec_.hidden_size, stream));
    x = normed_;
  }
  std::byte* kv = qkv_ + a.q_dim() * size;
  kc::LinearArgs args = product_args(weights.kv_a, tokens);
  args.x = x;
  args.y = kv;
  args.y_stride = stride;
  ESP_RETURN_IF_ERROR(product(args, stream));
  ESP_RETURN_IF_ERROR(normalise(latent.norm, weights.kv_a_norm, kv, stride, kv, stride, tokens,
                                latent.rank, stream));
  std::byte* q = latent_q_;
  if (latent.query_rank > 0) {
    args = product_args(weights.q_a, tokens);
    args.x = x;
    args.y = q;
    ESP_RETURN_IF_ERROR(product(args, stream));
    ESP_RETURN_IF_ERROR(normalise(latent.norm, weights.q_a_norm, q, latent.query_rank, q,
                                  latent.query_rank, tokens, latent.query_rank, stream));
    x = q;
    q += tokens * latent.query_rank * size;
  }
  args = product_args(weights.q, tokens);
  args.x = x;
  args.y = q;
  ESP_RETURN_IF_ERROR(product(args, stream));
  ESP_RETURN_IF_ERROR(kc::grouped_linear({.type = weights_.type,
                                          .num_groups = a.num_heads,
                                          .in_features = latent.nope_dim,
                                          .out_features = latent.rank,
                                          .x = q,
                                          .x_stride = a.num_heads * width,
                                          .weights = weights.query_to_latent,
                                          .weights_stride = int64_t{latent.rank} * latent.nope_dim,
                                          .y = qkv_,
                                          .y_stride = stride,
                                          .rows = tokens,
                                          .x_group_stride = width,
                                          .y_group_stride = a.head_dim},
                                         on(stream)));
  return kc::copy_parts({.type = weights_.type,
                         .x = q,
                         .x_stride = a.num_heads * width,
                         .x_head = width,
                         .from_begin = latent.nope_dim,
                         .y = qkv_,
                         .y_stride = stride,
                         .y_head = a.head_dim,
                         .to_begin = latent.rank,
                         .count = latent.rope_dim,
                         .rows = tokens,
                         .heads = a.num_heads},
                        on(stream));
}

// Where a step's new keys stay besides their pages, with the values behind them: where they came
// from. Null where attention has no use for them: prompts read them, decode entries read pages.
std::byte* CudaDecoder::new_keys(size_t layer, const CudaStep& step) const {
  const AttentionSpec& a = spec_.layers[layer].attention;
  if (a.latent || step.entries.max_query_tokens == 1) return nullptr;
  return qkv_ + a.q_dim() * static_cast<int64_t>(dtype_size(weights_.type));
}

// Queries are normed and rotated where they lie; keys and values go to their pages.
Status CudaDecoder::append(size_t layer, const CudaStep& step, const KvView& kv,
                           const cuda::Stream& stream) {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const CudaLayerWeights& weights = weights_.layers[layer];
  const auto size = static_cast<int64_t>(dtype_size(weights_.type));
  std::byte* k = qkv_ + a.q_dim() * size;
  const bool in_window_pages = a.sliding_window > 0 && step.window_entries.page_tables != nullptr;
  kc::QkRopeAppendArgs append{.type = weights_.type,
                              .q = qkv_,
                              .q_stride = qkv_width(a),
                              .k = k,
                              .k_stride = qkv_width(a),
                              .new_keys = new_keys(layer, step),
                              .v = a.latent ? nullptr : k + a.kv_dim() * size,
                              .v_stride = qkv_width(a),
                              .tokens = step.entries.num_tokens,
                              .num_heads = a.num_heads,
                              .positions = positions_,
                              .kv = planes_of(kv, layer),
                              .kv_rows = in_window_pages ? window_kv_rows_ : kv_rows_};
  if (a.qk_norm && a.qk_norm_scope == AttentionSpec::NormScope::kHead) {
    append.q_norm = weights.q_norm;
    append.k_norm = weights.k_norm;
    append.epsilon = a.qk_norm->epsilon;
    append.norm_offset = a.qk_norm->kind == NormSpec::Kind::kRmsOneCentred ? 1.0f : 0.0f;
  }
  if (a.rope) {
    const RopeSpec& rope = spec_.ropes[static_cast<size_t>(*a.rope)];
    append.frequencies = rope_frequencies_[static_cast<size_t>(*a.rope)];
    append.rotary_begin = a.latent ? a.latent->rank : 0;
    append.rotary_dim = rope.rotary_dim;
    append.attention_factor = static_cast<float>(rope.attention_factor);
    append.interleaved = rope.pairing == RopeSpec::Pairing::kInterleaved;
  }
  return kc::qk_rope_append(append, on(stream));
}

const kc::EntryArrays& CudaDecoder::entries_of(const kc::AttentionShape& shape,
                                               const CudaStep& step) {
  const bool own = shape.sliding_window > 0 && step.window_entries.page_tables != nullptr;
  return own ? step.window_entries : step.entries;
}

// x += output(attention(q)), then the MLP; in the last layer only of the rows that are wanted.
Status CudaDecoder::attend(size_t layer, const CudaStep& step, const KvView& kv,
                           const cuda::Stream& stream) {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const CudaLayerWeights& weights = weights_.layers[layer];
  const AttentionGroup& group = groups_[group_of_[layer]];
  const auto size = static_cast<int64_t>(dtype_size(weights_.type));
  const std::byte* new_k = new_keys(layer, step);
  ESP_RETURN_IF_ERROR(
      kc::attention({.shape = group.shape,
                     .entries = entries_of(group.shape, step),
                     .kv = planes_of(kv, layer),
                     .new_keys = new_k,
                     .new_values = new_k == nullptr ? nullptr : new_k + a.kv_dim() * size,
                     .new_kv_stride = qkv_width(a),
                     .q = qkv_,
                     .q_stride = qkv_width(a),
                     .out = attended_,
                     .out_stride = a.q_dim(),
                     .scale = a.scale,
                     .softcap = a.softcap,
                     .sinks = weights.sinks,
                     .workspace = group.workspace,
                     .workspace_bytes = static_cast<size_t>(group.workspace_bytes),
                     // embed() ended all before it; and what entries share was computed by
                     // steps before this one, so no entry writes below another's prefix_len.
                     .prefetch_cached_kv = launches_early_},
                    on(stream)));
  kc::LinearArgs output = product_args(weights.attention_output, step.entries.num_tokens);
  output.x = attended_;
  if (layer + 1 == spec_.layers.size() && step.rows != nullptr) {
    ESP_RETURN_IF_ERROR(keep_wanted_rows(layer, step, stream));
    output.rows = step.num_rows;
    output.x = mlp_;
  }
  if (a.latent) {
    ESP_RETURN_IF_ERROR(
        latent_values(layer, static_cast<const std::byte*>(output.x), output.rows, stream));
    output.x = latent_q_;
  }
  output.bias = weights.attention_output_bias;
  ESP_RETURN_IF_ERROR(add_branch(output, spec_.layers[layer].attention_output_norm,
                                 weights.attention_output_norm,
                                 spec_.faults.drop_attention_residual, stream));
  return run_mlp(layer, output.rows, stream);
}

Status CudaDecoder::keep_wanted_rows(size_t layer, const CudaStep& step,
                                     const cuda::Stream& stream) {
  const int32_t q_dim = spec_.layers[layer].attention.q_dim();
  const auto keep = [&](const std::byte* from, int32_t dim, std::byte* to) {
    return kc::gather_rows({.type = weights_.type,
                            .table = from,
                            .num_rows = step.entries.num_tokens,
                            .dim = dim,
                            .ids = step.rows,
                            .out = to,
                            .out_stride = dim,
                            .tokens = step.num_rows},
                           on(stream));
  };
  ESP_RETURN_IF_ERROR(keep(x_, spec_.hidden_size, kept_));
  x_ = kept_;
  return keep(attended_, q_dim, mlp_);
}

// Each head's value from the latent that attention made of those in the cache, [rows, heads *
// value_dim] to latent_q_. What follows the latent in a row (the rotated part) is not read.
Status CudaDecoder::latent_values(size_t layer, const std::byte* attended, int32_t rows,
                                  const cuda::Stream& stream) {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const LatentSpec& latent = *a.latent;
  const auto size = static_cast<int64_t>(dtype_size(weights_.type));
  const auto* kv_b = static_cast<const std::byte*>(weights_.layers[layer].latent.kv_b);
  return kc::grouped_linear(
      {.type = weights_.type,
       .num_groups = a.num_heads,
       .in_features = latent.rank,
       .out_features = latent.value_dim,
       .x = attended,
       .x_stride = a.q_dim(),
       .weights = kv_b + int64_t{latent.nope_dim} * latent.rank * size,
       .weights_stride = int64_t{latent.nope_dim + latent.value_dim} * latent.rank,
       .y = latent_q_,
       .y_stride = a.output_dim(),
       .rows = rows,
       .x_group_stride = a.head_dim,
       .y_group_stride = latent.value_dim},
      on(stream));
}

}  // namespace espalier
