// The attention blocks of DecoderModel: from normed rows to queries, keys and values, over the
// cache, and back to the residual stream.
#include <cstring>

#include "kernels/attention/op.h"
#include "kernels/kv_append/op.h"
#include "kernels/linear/op.h"
#include "kernels/norm/op.h"
#include "kernels/rope/op.h"
#include "models/decoder_model.h"

namespace espalier {
// qkv_ = [q; k; v] of every row, normalised and rotated.
void DecoderModel::project_qkv(size_t layer, int64_t rows) {
  const LayerSpec& spec = spec_.layers[layer];
  const AttentionSpec& a = spec.attention;
  if (a.latent) return project_latent(layer, rows);
  const LayerWeights& weights = weights_.layers[layer];
  const int64_t stride = qkv_stride(a);
  float* q = qkv_.as<float>();
  kernels::linear(*backend_, weights.qkv,
                  {.x = normed(spec.input_norm, weights.input_norm, rows),
                   .x_stride = spec_.hidden_size,
                   .y = q,
                   .y_stride = stride,
                   .rows = rows,
                   .bias = or_null(weights.qkv_bias)});
  if (a.qk_norm) {
    norm_heads(a, q, a.num_heads, weights.q_norm, rows);
    norm_heads(a, q + a.q_dim(), a.num_kv_heads, weights.k_norm, rows);
  }
  rotate(a, q, stride, a.num_heads + a.num_kv_heads, a.head_dim, rows);  // k follows q
}

void DecoderModel::norm_heads(const AttentionSpec& a, float* x, int64_t heads,
                              const NormWeights& weights, int64_t rows) {
  const bool all = a.qk_norm_scope == AttentionSpec::NormScope::kAll;
  kernels::rms_norm(*backend_, {.x = x,
                                .x_stride = qkv_stride(a),
                                .y = x,
                                .y_stride = qkv_stride(a),
                                .rows = rows,
                                .groups = all ? 1 : heads,
                                .dim = all ? heads * a.head_dim : a.head_dim,
                                .weight = weights.weight.data(),
                                .epsilon = a.qk_norm->epsilon});
}

// heads of x, [rows, heads, head_dim], by the rows' positions; nothing where there is no rope.
void DecoderModel::rotate(const AttentionSpec& a, float* x, int64_t stride, int64_t heads,
                          int64_t head_dim, int64_t rows) {
  if (!a.rope) return;
  const float* cos = rope_rows_.as<float>();
  for (int32_t i = 0; i < *a.rope; ++i) cos += 2 * rows * std::ssize(rope_frequencies_[i]);
  const RopeSpec& rope = spec_.ropes[*a.rope];
  kernels::rope(*backend_, {.x = x,
                            .x_stride = stride,
                            .heads = heads,
                            .head_dim = head_dim,
                            .positions = std::span(row_index_).first(static_cast<size_t>(rows)),
                            .cos = cos,
                            .sin = cos + rows * (rope.rotary_dim / 2),
                            .rotary_dim = rope.rotary_dim,
                            .interleaved = rope.pairing == RopeSpec::Pairing::kInterleaved});
}

// qkv_ = for each head [what its query asks of the latent; its rotated part], then the latent and
// the rotated part that all heads share.
void DecoderModel::project_latent(size_t layer, int64_t rows) {
  const LayerSpec& spec = spec_.layers[layer];
  const AttentionSpec& a = spec.attention;
  const LatentSpec& latent = *a.latent;
  const LayerWeights& all = weights_.layers[layer];
  const LatentWeights& weights = all.latent;
  const int64_t stride = qkv_stride(a), width = latent.nope_dim + latent.rope_dim;
  const float* x = normed(spec.input_norm, all.input_norm, rows);

  float* kv = qkv_.as<float>() + a.q_dim();
  kernels::linear(
      *backend_, weights.kv_a,
      {.x = x, .x_stride = spec_.hidden_size, .y = kv, .y_stride = stride, .rows = rows});
  const auto norm_latent = [&](float* of, int64_t of_stride, int64_t dim, const NormWeights& norm) {
    kernels::rms_norm(*backend_, {.x = of,
                                  .x_stride = of_stride,
                                  .y = of,
                                  .y_stride = of_stride,
                                  .rows = rows,
                                  .dim = dim,
                                  .weight = norm.weight.data(),
                                  .epsilon = latent.norm.epsilon});
  };
  norm_latent(kv, stride, latent.rank, weights.kv_a_norm);
  rotate(a, kv + latent.rank, stride, 1, latent.rope_dim, rows);

  int64_t x_stride = spec_.hidden_size;
  float* q = latent_q_.as<float>();
  if (latent.query_rank > 0) {
    kernels::linear(
        *backend_, weights.q_a,
        {.x = x, .x_stride = x_stride, .y = q, .y_stride = latent.query_rank, .rows = rows});
    norm_latent(q, latent.query_rank, latent.query_rank, weights.q_a_norm);
    x = q;
    x_stride = latent.query_rank;
    q += rows * latent.query_rank;
  }
  const int64_t q_stride = a.num_heads * width;
  kernels::linear(*backend_, weights.q,
                  {.x = x, .x_stride = x_stride, .y = q, .y_stride = q_stride, .rows = rows});
  rotate(a, q + latent.nope_dim, q_stride, a.num_heads, width, rows);
  for (int64_t head = 0; head < a.num_heads; ++head) {
    const float* from = q + head * width;
    float* to = qkv_.as<float>() + head * a.head_dim;
    kernels::linear(*backend_, weights.query_to_latent[static_cast<size_t>(head)],
                    {.x = from, .x_stride = q_stride, .y = to, .y_stride = stride, .rows = rows});
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(to + row * stride + latent.rank, from + row * q_stride + latent.nope_dim,
                  static_cast<size_t>(latent.rope_dim) * sizeof(float));
    }
  }
}

namespace {

// Layers with a sliding window may have pages of their own.
std::span<const PageId> page_tables_of(const AttentionSpec& a, const ForwardBatch& batch) {
  const bool own = a.sliding_window > 0 && !batch.window_page_tables.empty();
  return own ? batch.window_page_tables : batch.page_tables;
}

}  // namespace

void DecoderModel::append_kv(size_t layer, const ForwardBatch& batch, const KvView& kv) {
  const AttentionSpec& a = spec_.layers[layer].attention;
  const float* k = qkv_.as<float>() + a.q_dim();
  kernels::kv_append(*backend_, {.k = k,
                                 .k_stride = qkv_stride(a),
                                 .v = a.latent ? nullptr : k + a.kv_dim(),
                                 .v_stride = qkv_stride(a),
                                 .entries = batch.entries,
                                 .page_tables = page_tables_of(a, batch),
                                 .kv = &kv,
                                 .layer = static_cast<int32_t>(layer)});
}

// x += output(attention(q))
void DecoderModel::attend(size_t layer, std::span<const BatchEntry> entries, int64_t rows,
                          const ForwardBatch& batch, const KvView& kv) {
  const LayerSpec& spec = spec_.layers[layer];
  const AttentionSpec& a = spec.attention;
  const LayerWeights& weights = weights_.layers[layer];
  kernels::attention(*backend_, {.q = qkv_.as<float>(),
                                 .q_stride = qkv_stride(a),
                                 .out = attended_.as<float>(),
                                 .out_stride = a.q_dim(),
                                 .heads = a.num_heads,
                                 .entries = entries,
                                 .page_tables = page_tables_of(a, batch),
                                 .kv = &kv,
                                 .layer = static_cast<int32_t>(layer),
                                 .scale = a.scale,
                                 .sliding_window = a.sliding_window,
                                 .softcap = a.softcap,
                                 .sinks = or_null(weights.sinks)});
  const bool drop = spec_.faults.drop_attention_residual;
  const bool direct = adds_directly(spec.attention_output_norm);
  kernels::linear(*backend_, weights.attention_output,
                  {.x = a.latent ? latent_values(layer, rows) : attended_.as<float>(),
                   .x_stride = a.output_dim(),
                   .y = direct ? hidden_.as<float>() : branch_.as<float>(),
                   .y_stride = spec_.hidden_size,
                   .rows = rows,
                   .bias = or_null(weights.attention_output_bias),
                   .accumulate = direct && !drop});
  if (!direct) add_branch(spec.attention_output_norm, weights.attention_output_norm, rows, drop);
}

// Each head's value from the latent that attention made of those in the cache, [rows, heads *
// value_dim]. What follows the latent in a row (the rotated part of keys) is not read.
const float* DecoderModel::latent_values(size_t layer, int64_t rows) {
  const AttentionSpec& a = spec_.layers[layer].attention;
  float* values = latent_q_.as<float>();
  for (int64_t head = 0; head < a.num_heads; ++head) {
    kernels::linear(*backend_,
                    weights_.layers[layer].latent.latent_to_value[static_cast<size_t>(head)],
                    {.x = attended_.as<float>() + head * a.head_dim,
                     .x_stride = a.q_dim(),
                     .y = values + head * a.latent->value_dim,
                     .y_stride = a.output_dim(),
                     .rows = rows});
  }
  return values;
}

}  // namespace espalier
