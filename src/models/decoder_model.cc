#include "models/decoder_model.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "kernels/activation/op.h"
#include "kernels/embedding/op.h"
#include "kernels/linear/op.h"
#include "kernels/norm/op.h"
#include "models/rope_table.h"

namespace espalier {
namespace {

// Rows of logits held at once for input log-probabilities: enough to keep the head's product busy.
constexpr int64_t kLogitBlock = 32;

ModelInfo describe(const DecoderSpec& spec, const DecoderWeights& weights) {
  ModelInfo info = describe_model(spec);
  info.weight_bytes = weights.size_bytes();
  return info;
}

int64_t widest(const DecoderSpec& spec, int64_t (*width)(const LayerSpec&)) {
  int64_t most = 0;
  for (const LayerSpec& layer : spec.layers) most = std::max(most, width(layer));
  return most;
}
int64_t q_width(const LayerSpec& layer) { return layer.attention.q_dim(); }
int64_t qkv_width(const LayerSpec& layer) { return qkv_stride(layer.attention); }
int64_t mlp_width(const LayerSpec& layer) {
  if (!layer.experts) return layer.mlp.intermediate_size;
  const int64_t expert = layer.experts->expert.intermediate_size;
  return layer.experts->shared ? std::max<int64_t>(expert, layer.experts->shared->intermediate_size)
                               : expert;
}
int64_t experts_of(const LayerSpec& layer) {
  return layer.experts ? layer.experts->router.num_experts : 0;
}
int64_t choices_of(const LayerSpec& layer) {
  return layer.experts ? layer.experts->router.top_k : 0;
}
int64_t latent_width(const LayerSpec& layer) {
  if (!layer.attention.latent) return 0;
  const LatentSpec& latent = *layer.attention.latent;
  return latent.query_rank + int64_t{layer.attention.num_heads} *
                                 std::max(latent.nope_dim + latent.rope_dim, latent.value_dim);
}
// What linear() reads: the widest input of any of the layer's products.
int64_t widest_input(const LayerSpec& layer) {
  const AttentionSpec& a = layer.attention;
  const int64_t query_rank = a.latent ? a.latent->query_rank : 0;
  return std::max({mlp_width(layer), int64_t{a.q_dim()}, int64_t{a.output_dim()}, query_rank});
}

Status allocate_floats(int64_t rows, int64_t width, Buffer& out) {
  ESP_ASSIGN_OR_RETURN(out, Buffer::allocate(static_cast<size_t>(rows * width) * sizeof(float)));
  return Status();
}

}  // namespace

ModelInfo describe_model(const DecoderSpec& spec) {
  const AttentionSpec& attention = spec.layers.at(0).attention;
  ModelInfo info;
  info.architecture = spec.architecture;
  info.model_type = spec.model_type;
  info.vocab_size = spec.vocab_size;
  info.context_length = spec.context_length;
  info.num_layers = static_cast<int32_t>(spec.layers.size());
  info.num_kv_heads = attention.num_kv_heads;
  info.head_dim = attention.head_dim;
  info.kv_planes = attention.latent ? 1 : 2;
  for (const LayerSpec& layer : spec.layers) {
    info.window_layers.push_back(layer.attention.sliding_window > 0);
    info.sliding_window = std::max(info.sliding_window, layer.attention.sliding_window);
  }
  if (info.sliding_window == 0) info.window_layers.clear();
  info.num_parameters = spec.num_parameters();
  info.eos_ids = spec.eos_ids;
  if (spec.pooling) {
    info.pooled = PooledInfo{.size = spec.pooled_size(),
                             .all_tokens = spec.pooling->kind == PoolingSpec::Kind::kMean,
                             .normalize = spec.pooling->normalize,
                             .is_scores = !spec.pooling->head.empty(),
                             .labels = spec.pooling->labels};
  }
  return info;
}

void WantedRows::plan(std::span<const BatchEntry> entries) {
  tails_.clear();
  num_rows_ = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const BatchEntry& entry = entries[i];
    int32_t first = entry.num_query_tokens;
    if (entry.sample) first = entry.last_known();
    if (!entry.input_logprob_targets.empty()) first = std::min(first, entry.input_logprob_begin);
    if (entry.pooled_begin >= 0) first = std::min(first, entry.pooled_begin);
    const int32_t count = entry.num_query_tokens - first;
    if (count == 0) continue;
    tails_.push_back({static_cast<int32_t>(i), first, entry.query_begin + first, num_rows_, count});
    num_rows_ += count;
  }
}

DecoderModel::DecoderModel(DecoderSpec spec, DecoderWeights weights,
                           std::unique_ptr<kernels::CpuBackend> backend)
    : spec_(std::move(spec)),
      weights_(std::move(weights)),
      backend_(std::move(backend)),
      info_(describe(spec_, weights_)) {
  for (const RopeSpec& rope : spec_.ropes) {
    rope_frequencies_.push_back(rope_frequencies(rope, spec_.context_length));
  }
}

Result<std::unique_ptr<DecoderModel>> DecoderModel::create(DecoderSpec spec,
                                                           const WeightTypes& types,
                                                           WeightSource& source, WorkPool& pool) {
  ESP_RETURN_IF_ERROR(validate(spec));
  ESP_ASSIGN_OR_RETURN(auto backend, kernels::CpuBackend::create(pool));
  ESP_ASSIGN_OR_RETURN(DecoderWeights weights, load_weights(*backend, spec, types, source));
  return std::unique_ptr<DecoderModel>(
      new DecoderModel(std::move(spec), std::move(weights), std::move(backend)));
}

Status DecoderModel::reserve(int32_t max_tokens, int32_t max_entries) {
  if (max_tokens < 1 || max_entries < 1) {
    return invalid_argument("a batch of {} tokens in {} entries is none", max_tokens, max_entries);
  }
  const int64_t q = widest(spec_, q_width), ffn = widest(spec_, mlp_width);
  const int64_t experts = widest(spec_, experts_of), choices = widest(spec_, choices_of);
  // All rows may go to one expert, and few rows to as many experts as there are choices.
  pass_rows_ =
      std::max(kernels::padded_group_rows(max_tokens),
               kernels::padded_group_rows(1) * std::min(experts, int64_t{max_tokens} * choices));
  const int64_t mlp_rows = experts > 0 ? pass_rows_ : max_tokens;
  int64_t rope_floats = 0;  // cosine and sine of each rope, a token
  for (const auto& frequencies : rope_frequencies_) {
    rope_floats += 2 * static_cast<int64_t>(frequencies.size());
  }
  ESP_RETURN_IF_ERROR(allocate_floats(max_tokens, spec_.hidden_size, hidden_));
  ESP_RETURN_IF_ERROR(allocate_floats(max_tokens, spec_.hidden_size, normed_));
  ESP_RETURN_IF_ERROR(allocate_floats(max_tokens, spec_.hidden_size, branch_));
  ESP_RETURN_IF_ERROR(allocate_floats(max_tokens, widest(spec_, latent_width), latent_q_));
  ESP_RETURN_IF_ERROR(allocate_floats(max_tokens, widest(spec_, qkv_width), qkv_));
  ESP_RETURN_IF_ERROR(allocate_floats(max_tokens, q, attended_));
  ESP_RETURN_IF_ERROR(allocate_floats(mlp_rows, 2 * ffn, mlp_));
  ESP_RETURN_IF_ERROR(allocate_floats(max_tokens, rope_floats, rope_rows_));
  if (!spec_.pooling) {
    ESP_RETURN_IF_ERROR(allocate_floats(max_entries, spec_.vocab_size, logits_));
    ESP_RETURN_IF_ERROR(allocate_floats(std::min<int64_t>(kLogitBlock, max_tokens),
                                        spec_.vocab_size, block_logits_));
  }
  ESP_RETURN_IF_ERROR(backend_->reserve_linear(
      mlp_rows, std::max<int64_t>(widest(spec_, widest_input), spec_.hidden_size)));
  if (experts > 0) {
    ESP_RETURN_IF_ERROR(allocate_floats(max_tokens, experts, expert_logits_));
    ESP_RETURN_IF_ERROR(allocate_floats(max_tokens, choices, expert_weights_));
    ESP_RETURN_IF_ERROR(allocate_floats(pass_rows_, spec_.hidden_size, expert_x_));
    ESP_RETURN_IF_ERROR(allocate_floats(pass_rows_, spec_.hidden_size, expert_y_));
    ESP_RETURN_IF_ERROR(allocate_floats(max_tokens, 1, shared_weights_));
    const auto pairs = static_cast<size_t>(max_tokens * choices);
    expert_ids_.resize(pairs);
    expert_rows_.resize(pairs);
    expert_slots_.resize(pairs);
    expert_begin_.resize(static_cast<size_t>(experts) + 1);
    expert_groups_.reserve(static_cast<size_t>(experts));
  }
  row_index_.resize(static_cast<size_t>(max_tokens));
  std::iota(row_index_.begin(), row_index_.end(), 0);
  wanted_.reserve(static_cast<size_t>(max_entries));
  tail_entries_.resize(static_cast<size_t>(max_entries));
  max_tokens_ = max_tokens;
  max_entries_ = max_entries;
  return Status();
}

ForwardOutput DecoderModel::forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                                    const KvView& kv, const InputLogitsSink& sink) {
  ESP_CHECK(batch.num_tokens() <= max_tokens_ &&
                batch.entries.size() <= static_cast<size_t>(max_entries_),
            "{} tokens in {} entries, reserved {} in {}", batch.num_tokens(), batch.entries.size(),
            max_tokens_, max_entries_);
  ESP_CHECK(token_ids.size() == batch.token_ids.size() &&
            batch.positions.size() == token_ids.size() && kv.layers.size() == spec_.layers.size());
  if (token_ids.empty()) return {};
  wanted_.plan(batch.entries);
  embed(token_ids);
  add_positions(batch.positions);
  fill_rope_tables(batch.positions);

  int64_t rows = batch.num_tokens();
  std::span<const BatchEntry> entries = batch.entries;
  for (size_t layer = 0; layer < spec_.layers.size(); ++layer) {
    project_qkv(layer, rows);
    append_kv(layer, batch, kv);
    if (layer + 1 == spec_.layers.size() && wanted_.num_rows() < rows) {
      keep_wanted_rows(layer, batch);
      rows = wanted_.num_rows();
      entries = std::span(tail_entries_).first(wanted_.tails().size());
    }
    if (rows == 0) return {};
    attend(layer, entries, rows, batch, kv);
    run_mlp(layer, rows);
  }
  if (spec_.pooling) return {.pooled_rows = pooled_rows(batch)};
  const int64_t sampled = sample_logits(batch);
  input_logits(batch, sink);
  return {.sample_logits = {logits_.as<float>(), static_cast<size_t>(sampled * spec_.vocab_size)}};
}

std::vector<float> DecoderModel::finish_pooled(std::span<const float> row) {
  std::vector<float> x(row.begin(), row.end());
  for (size_t i = 0; i < spec_.pooling->head.size(); ++i) {
    const PoolingSpec::HeadLayer& layer = spec_.pooling->head[i];
    if (i > 0) std::ranges::transform(x, x.begin(), [](float v) { return std::max(v, 0.0f); });
    std::vector<float> y(static_cast<size_t>(layer.outputs));
    kernels::linear(*backend_, weights_.pooling_head[i].matrix,
                    {.x = x.data(),
                     .x_stride = std::ssize(x),
                     .y = y.data(),
                     .y_stride = layer.outputs,
                     .rows = 1,
                     .bias = or_null(weights_.pooling_head[i].bias)});
    x = std::move(y);
  }
  return x;
}

// Tails go to the front of normed_ as they are.
std::span<const float> DecoderModel::pooled_rows(const ForwardBatch& batch) {
  int64_t rows = 0;
  for (const WantedRows::Tail& tail : wanted_.tails()) {
    const BatchEntry& entry = batch.entries[static_cast<size_t>(tail.entry)];
    ESP_CHECK(!entry.sample && entry.input_logprob_targets.empty(), "{} does not generate",
              spec_.architecture);
    for (int32_t i = 0; i < tail.count; ++i) pick_row(tail.row + i, rows++);
  }
  float* x = normed_.as<float>();
  apply_norm(*spec_.final_norm, weights_.final_norm, x, x, rows);
  return {x, static_cast<size_t>(rows * spec_.hidden_size)};
}

void DecoderModel::embed(std::span<const TokenId> token_ids) {
  for (const TokenId id : token_ids) {
    ESP_CHECK(id >= 0 && id < spec_.vocab_size, "token {} of a vocabulary of {}", id,
              spec_.vocab_size);
  }
  if (spec_.tied_embeddings || weights_.quantized_embedding.quantized()) {
    const kernels::PackedMatrix& table =
        spec_.tied_embeddings ? weights_.head : weights_.quantized_embedding;
    kernels::gather_packed_rows(*backend_, table, token_ids, hidden_.as<float>(),
                                spec_.hidden_size);
    return;
  }
  kernels::gather_rows(*backend_, {.table = weights_.embedding.data(),
                                   .type = weights_.type,
                                   .dim = spec_.hidden_size,
                                   .ids = token_ids,
                                   .out = hidden_.as<float>(),
                                   .out_stride = spec_.hidden_size});
}

void DecoderModel::add_positions(std::span<const int32_t> positions) {
  const int64_t count = std::ssize(positions) * spec_.hidden_size;
  if (spec_.embedding_scale != 1.0f) {
    kernels::scale(*backend_, hidden_.as<float>(), spec_.embedding_scale, count);
  }
  if (spec_.learned_positions == 0) return;
  kernels::gather_rows(*backend_, {.table = weights_.position_embedding.data(),
                                   .type = weights_.type,
                                   .dim = spec_.hidden_size,
                                   .ids = positions,
                                   .out = branch_.as<float>(),
                                   .out_stride = spec_.hidden_size});
  kernels::add(*backend_, hidden_.as<float>(), branch_.as<float>(), count);
}

void DecoderModel::fill_rope_tables(std::span<const int32_t> positions) {
  float* rows = rope_rows_.as<float>();
  for (size_t i = 0; i < spec_.ropes.size(); ++i) {
    const size_t count = positions.size() * rope_frequencies_[i].size();
    fill_rope_rows(rope_frequencies_[i], static_cast<float>(spec_.ropes[i].attention_factor),
                   positions, rows, rows + count);
    rows += 2 * count;
  }
}

void DecoderModel::apply_norm(const NormSpec& norm, const NormWeights& weights, const float* x,
                              float* y, int64_t rows) {
  const int64_t hidden = spec_.hidden_size;
  if (norm.kind == NormSpec::Kind::kLayer) {
    kernels::layer_norm(*backend_, {.x = x,
                                    .x_stride = hidden,
                                    .y = y,
                                    .y_stride = hidden,
                                    .rows = rows,
                                    .dim = hidden,
                                    .weight = weights.weight.data(),
                                    .bias = weights.bias.data(),
                                    .epsilon = norm.epsilon});
    return;
  }
  kernels::rms_norm(*backend_, {.x = x,
                                .x_stride = hidden,
                                .y = y,
                                .y_stride = hidden,
                                .rows = rows,
                                .dim = hidden,
                                .weight = weights.weight.data(),
                                .epsilon = norm.epsilon});
}

const float* DecoderModel::normed(const std::optional<NormSpec>& norm, const NormWeights& weights,
                                  int64_t rows) {
  if (!norm) return hidden_.as<float>();
  apply_norm(*norm, weights, hidden_.as<float>(), normed_.as<float>(), rows);
  return normed_.as<float>();
}

void DecoderModel::add_branch(const std::optional<NormSpec>& norm, const NormWeights& weights,
                              int64_t rows, bool drop) {
  float* branch = branch_.as<float>();
  if (norm) apply_norm(*norm, weights, branch, branch, rows);
  const int64_t count = rows * spec_.hidden_size;
  if (drop) kernels::scale(*backend_, hidden_.as<float>(), 0, count);
  kernels::add_scaled(*backend_, hidden_.as<float>(), branch, spec_.residual_scale, count);
}

void DecoderModel::keep_wanted_rows(size_t layer, const ForwardBatch& batch) {
  const auto q_floats = static_cast<size_t>(spec_.layers[layer].attention.q_dim());
  const int64_t stride = qkv_stride(spec_.layers[layer].attention);
  const int64_t hidden = spec_.hidden_size;
  size_t index = 0;
  for (const WantedRows::Tail& tail : wanted_.tails()) {
    // Tails move towards the front, in order, so no row is overwritten before it has moved.
    for (int64_t i = 0; i < tail.count; ++i) {
      const int64_t from = tail.source_row + i, to = tail.row + i;
      std::memmove(hidden_.as<float>() + to * hidden, hidden_.as<float>() + from * hidden,
                   static_cast<size_t>(hidden) * sizeof(float));
      std::memmove(qkv_.as<float>() + to * stride, qkv_.as<float>() + from * stride,
                   q_floats * sizeof(float));
    }
    const BatchEntry& entry = batch.entries[static_cast<size_t>(tail.entry)];
    BatchEntry& out = tail_entries_[index++];
    out.num_query_tokens = tail.count;
    out.prefix_len = entry.prefix_len + tail.first_token;
    out.query_begin = tail.row;
    out.page_begin = entry.page_begin;
    out.num_pages = entry.num_pages;
  }
}

void DecoderModel::pick_row(int64_t row, int64_t to) {
  const int64_t hidden = spec_.hidden_size;
  std::memcpy(normed_.as<float>() + to * hidden, hidden_.as<float>() + row * hidden,
              static_cast<size_t>(hidden) * sizeof(float));
}

void DecoderModel::logits_of_picked(int64_t rows, float* out) {
  const int64_t hidden = spec_.hidden_size;
  float* x = normed_.as<float>();
  if (spec_.final_norm) apply_norm(*spec_.final_norm, weights_.final_norm, x, x, rows);
  kernels::linear(
      *backend_, weights_.head,
      {.x = x, .x_stride = hidden, .y = out, .y_stride = spec_.vocab_size, .rows = rows});
  const int64_t count = rows * spec_.vocab_size;
  if (spec_.logits_scale != 1.0f) kernels::scale(*backend_, out, spec_.logits_scale, count);
  if (spec_.logits_softcap > 0) kernels::softcap(*backend_, out, spec_.logits_softcap, count);
}

int64_t DecoderModel::sample_logits(const ForwardBatch& batch) {
  int64_t rows = 0;
  for (const WantedRows::Tail& tail : wanted_.tails()) {
    const BatchEntry& entry = batch.entries[static_cast<size_t>(tail.entry)];
    if (!entry.sample) continue;
    const int32_t last_known = tail.row + entry.last_known() - tail.first_token;
    pick_row(last_known, rows++);
    for (int32_t k = 0; k < entry.num_draft_samples; ++k) {
      pick_row(
          last_known + 1 + batch.draft_samples[static_cast<size_t>(entry.draft_samples_begin + k)],
          rows++);
    }
  }
  if (rows > 0) logits_of_picked(rows, logits_.as<float>());
  return rows;
}

void DecoderModel::input_logits(const ForwardBatch& batch, const InputLogitsSink& sink) {
  struct Picked {
    int32_t entry, target;
  };
  Picked picked[kLogitBlock];
  int64_t rows = 0;
  const auto flush = [&] {
    if (rows > 0) logits_of_picked(rows, block_logits_.as<float>());
    for (int64_t i = 0; i < rows; ++i) {
      sink(picked[i].entry, picked[i].target,
           {block_logits_.as<float>() + i * spec_.vocab_size,
            static_cast<size_t>(spec_.vocab_size)});
    }
    rows = 0;
  };
  const int64_t block = std::min<int64_t>(kLogitBlock, max_tokens_);
  for (const WantedRows::Tail& tail : wanted_.tails()) {
    const BatchEntry& entry = batch.entries[static_cast<size_t>(tail.entry)];
    for (size_t target = 0; target < entry.input_logprob_targets.size(); ++target) {
      const int32_t token = entry.input_logprob_begin + static_cast<int32_t>(target);
      picked[rows] = {tail.entry, static_cast<int32_t>(target)};
      pick_row(tail.row + token - tail.first_token, rows);
      if (++rows == block) flush();
    }
  }
  flush();
}

}  // namespace espalier
