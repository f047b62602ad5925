#include "speech/whisper_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "kernels/attention/op.h"
#include "kernels/kv_append/op.h"

namespace espalier::speech {
namespace {

KvType kv_type_of(DType type) {
  return type == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16;
}

// Of one slot's plane in one layer.
int64_t plane_bytes(const WhisperSizes& sizes, DType type, int32_t positions) {
  return int64_t{positions} * sizes.width * kv_element_bytes(kv_type_of(type));
}

}  // namespace

int64_t WhisperDecoder::slot_bytes(const WhisperSizes& sizes, DType type) {
  return 2 * sizes.decoder.num_layers *
         (plane_bytes(sizes, type, sizes.max_target_positions) +
          plane_bytes(sizes, type, sizes.max_source_positions));
}

Result<std::unique_ptr<WhisperDecoder>> WhisperDecoder::create(const WhisperSizes& sizes,
                                                               const WhisperWeights& weights,
                                                               kernels::CpuBackend& backend,
                                                               int32_t num_slots) {
  ESP_CHECK(num_slots >= 1);
  std::unique_ptr<WhisperDecoder> decoder(new WhisperDecoder(sizes, weights, backend));
  ESP_RETURN_IF_ERROR(decoder->allocate(num_slots));
  return decoder;
}

Status WhisperDecoder::allocate(int32_t num_slots) {
  pages_.resize(static_cast<size_t>(num_slots));
  std::iota(pages_.begin(), pages_.end(), 0);
  for (auto [kv, positions] : {std::pair(&tokens_kv_, sizes_.max_target_positions),
                               std::pair(&source_kv_, sizes_.max_source_positions)}) {
    kv->page_size = positions;
    const int64_t bytes = num_slots * plane_bytes(sizes_, weights_.type, positions);
    for (int32_t i = 0; i < sizes_.decoder.num_layers; ++i) {
      KvView::Layer layer{.type = kv_type_of(weights_.type),
                          .num_pages = num_slots,
                          .num_kv_heads = sizes_.decoder.num_heads,
                          .head_dim = sizes_.head_dim(sizes_.decoder)};
      layer.set_dense_strides(positions);
      for (void** plane : {&layer.k, &layer.v}) {
        ESP_ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(static_cast<size_t>(bytes)));
        planes_.push_back(std::move(buffer));
        *plane = planes_.back().data();
      }
      kv->layers.push_back(layer);
    }
  }
  return Status();
}

void WhisperDecoder::set_source(int32_t slot, std::span<const float> rows) {
  const int32_t positions = sizes_.max_source_positions;
  ESP_CHECK(std::ssize(rows) == int64_t{positions} * sizes_.width);
  float* const keys = source_.reserve(2 * positions, sizes_.width);
  float* const values = keys + int64_t{positions} * sizes_.width;
  const BatchEntry entry{.num_query_tokens = positions, .page_begin = slot, .num_pages = 1};
  for (size_t i = 0; i < weights_.decoder_layers.size(); ++i) {
    const CrossAttentionWeights& cross = weights_.decoder_layers[i].cross;
    linear(backend_, cross.key, rows.data(), keys, positions);
    linear(backend_, cross.value, rows.data(), values, positions);
    kernels::kv_append(backend_, {.k = keys,
                                  .k_stride = sizes_.width,
                                  .v = values,
                                  .v_stride = sizes_.width,
                                  .entries = {&entry, 1},
                                  .page_tables = pages_,
                                  .kv = &source_kv_,
                                  .layer = static_cast<int32_t>(i)});
  }
}

void WhisperDecoder::begin(std::span<const DecoderEntry> entries) {
  ids_.clear(), positions_.clear(), wanted_.clear();
  entries_.clear(), source_entries_.clear();
  for (const DecoderEntry& entry : entries) {
    const auto first = static_cast<int32_t>(ids_.size());
    const auto count = static_cast<int32_t>(entry.tokens.size());
    ESP_CHECK(count >= 1 && entry.num_cached + count <= sizes_.max_target_positions);
    entries_.push_back({.num_query_tokens = count,
                        .prefix_len = entry.num_cached,
                        .query_begin = first,
                        .page_begin = entry.slot,
                        .num_pages = 1});
    for (int32_t i = 0; i < count; ++i) {
      ids_.push_back(entry.tokens[static_cast<size_t>(i)]);
      positions_.push_back(entry.num_cached + i);
      source_entries_.push_back({.num_query_tokens = 1,
                                 .prefix_len = sizes_.max_source_positions - 1,
                                 .query_begin = first + i,
                                 .page_begin = entry.slot,
                                 .num_pages = 1});
    }
    if (entry.logits_row >= 0) wanted_.push_back(first + entry.logits_row);
    wanted_.push_back(first + count - 1);
  }
}

float* WhisperDecoder::embed() {
  const int64_t width = sizes_.width;
  float* const x = x_.reserve(std::ssize(ids_), width);
  kernels::gather_packed_rows(backend_, weights_.tokens, ids_, x, width);
  for (size_t i = 0; i < positions_.size(); ++i) {
    const float* const position = weights_.target_positions.data() + positions_[i] * width;
    float* const row = x + static_cast<int64_t>(i) * width;
    for (int64_t k = 0; k < width; ++k) row[k] += position[k];
  }
  return x;
}

void WhisperDecoder::attend_to_tokens(size_t index, float* x) {
  const SelfAttentionWeights& weights = weights_.decoder_layers[index].attention;
  const int64_t rows = std::ssize(ids_), width = sizes_.width;
  float* const normed = normed_.reserve(rows, width);
  float* const qkv = wide_.reserve(rows, 3 * width);
  layer_norm(backend_, weights.norm, x, normed, rows);
  linear(backend_, weights.qkv, normed, qkv, rows);
  const auto layer = static_cast<int32_t>(index);
  kernels::kv_append(backend_, {.k = qkv + width,
                                .k_stride = 3 * width,
                                .v = qkv + 2 * width,
                                .v_stride = 3 * width,
                                .entries = entries_,
                                .page_tables = pages_,
                                .kv = &tokens_kv_,
                                .layer = layer});
  kernels::attention(backend_,
                     {.q = qkv,
                      .q_stride = 3 * width,
                      .out = normed,
                      .out_stride = width,
                      .heads = sizes_.decoder.num_heads,
                      .entries = entries_,
                      .page_tables = pages_,
                      .kv = &tokens_kv_,
                      .layer = layer,
                      .scale = 1 / std::sqrt(static_cast<float>(sizes_.head_dim(sizes_.decoder)))});
  linear(backend_, weights.output, normed, x, rows, true);
}

void WhisperDecoder::attend_to_source(size_t index, float* x) {
  const CrossAttentionWeights& weights = weights_.decoder_layers[index].cross;
  const int64_t rows = std::ssize(ids_), width = sizes_.width;
  float* const normed = normed_.reserve(rows, width);
  float* const query = wide_.reserve(rows, width);
  layer_norm(backend_, weights.norm, x, normed, rows);
  linear(backend_, weights.query, normed, query, rows);
  kernels::attention(backend_,
                     {.q = query,
                      .q_stride = width,
                      .out = normed,
                      .out_stride = width,
                      .heads = sizes_.decoder.num_heads,
                      .entries = source_entries_,
                      .page_tables = pages_,
                      .kv = &source_kv_,
                      .layer = static_cast<int32_t>(index),
                      .scale = 1 / std::sqrt(static_cast<float>(sizes_.head_dim(sizes_.decoder)))});
  linear(backend_, weights.output, normed, x, rows, true);
}

std::span<const float> WhisperDecoder::logits(const float* x) {
  const int64_t rows = std::ssize(wanted_), width = sizes_.width, vocab = sizes_.vocab_size;
  float* const chosen = wide_.reserve(rows, width);
  for (size_t i = 0; i < wanted_.size(); ++i) {
    std::memcpy(chosen + static_cast<int64_t>(i) * width, x + wanted_[i] * width,
                static_cast<size_t>(width) * sizeof(float));
  }
  float* const normed = normed_.reserve(rows, width);
  layer_norm(backend_, weights_.decoder_norm, chosen, normed, rows);
  float* const out = logits_.reserve(rows, vocab);
  kernels::linear(backend_, weights_.tokens,
                  {.x = normed, .x_stride = width, .y = out, .y_stride = vocab, .rows = rows});
  return {out, static_cast<size_t>(rows * vocab)};
}

std::span<const float> WhisperDecoder::step(std::span<const DecoderEntry> entries) {
  begin(entries);
  const int64_t rows = std::ssize(ids_);
  float* const x = embed();
  for (size_t i = 0; i < weights_.decoder_layers.size(); ++i) {
    attend_to_tokens(i, x);
    attend_to_source(i, x);
    float* const normed = normed_.reserve(rows, sizes_.width);
    float* const wide = wide_.reserve(rows, sizes_.decoder.intermediate_size);
    mlp(backend_, weights_.decoder_layers[i].mlp, x, normed, wide, rows);
  }
  return logits(x);
}

}  // namespace espalier::speech
