#include "speech/cuda/cuda_decoder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "kernels/kv_append/cuda.h"

namespace espalier::speech {
namespace {

namespace kc = kernels::cuda;

constexpr int32_t kPageSize = 16;  // positions
constexpr int32_t kGraphRowsMost = 256;

int32_t pages_of(int32_t positions) { return (positions + kPageSize - 1) / kPageSize; }

}  // namespace

CudaSpeechDecoder::CudaSpeechDecoder(const WhisperSizes& sizes, const CudaWhisperWeights& weights,
                                     CudaLayers& layers, int32_t num_slots)
    : sizes_(sizes),
      weights_(weights),
      layers_(layers),
      num_slots_(num_slots),
      tokens_max_(std::max(sizes.max_target_positions,
                           static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(num_slots))))) {
  tokens_.slot_pages = pages_of(sizes.max_target_positions);
  source_.slot_pages = pages_of(sizes.max_source_positions);
}

Result<std::unique_ptr<CudaSpeechDecoder>> CudaSpeechDecoder::create(
    const WhisperSizes& sizes, const CudaWhisperWeights& weights, CudaLayers& layers,
    int32_t num_slots) {
  ESP_CHECK(num_slots >= 1);
  std::unique_ptr<CudaSpeechDecoder> decoder(
      new CudaSpeechDecoder(sizes, weights, layers, num_slots));
  ESP_RETURN_IF_ERROR(decoder->reserve());
  return decoder;
}

int64_t CudaSpeechDecoder::plane_bytes(const Pages& pages) const {
  return int64_t{num_slots_} * pages.slot_pages * kPageSize * sizes_.width *
         layers_.element_bytes();
}

kc::AttentionShape CudaSpeechDecoder::shape() const {
  return {.num_heads = sizes_.decoder.num_heads,
          .num_kv_heads = sizes_.decoder.num_heads,
          .head_dim = sizes_.head_dim(sizes_.decoder),
          .page_size = kPageSize,
          .type = layers_.type()};
}

kc::KvPlanes CudaSpeechDecoder::planes(const Pages& pages, size_t layer) const {
  std::byte* const keys = pages.planes + static_cast<int64_t>(2 * layer) * plane_bytes(pages);
  return {.type = layers_.type() == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16,
          .k = keys,
          .v = keys + plane_bytes(pages),
          .page_size = kPageSize,
          .num_kv_heads = sizes_.decoder.num_heads,
          .head_dim = sizes_.head_dim(sizes_.decoder),
          .page_stride = int64_t{kPageSize} * sizes_.width,
          .token_stride = sizes_.width,
          .head_stride = sizes_.head_dim(sizes_.decoder)};
}

void CudaSpeechDecoder::lay_out(cuda::Arena& arena) {
  const int64_t bytes = layers_.element_bytes(), width = sizes_.width, tokens = tokens_max_;
  const auto slots = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(num_slots_)));
  device_.lay_out(arena, tokens_max_, slots);
  for (Pages* pages : {&tokens_, &source_}) {
    pages->table = arena.take<int32_t>(int64_t{num_slots_} * pages->slot_pages);
    pages->workspace = arena.take<std::byte>(pages->workspace_bytes);
  }
  positions_ = arena.take<int32_t>(tokens);
  kv_rows_ = arena.take<int32_t>(tokens);
  x_ = arena.take<std::byte>(tokens * width * bytes);
  normed_ = arena.take<std::byte>(tokens * width * bytes);
  wide_ = arena.take<std::byte>(
      tokens * std::max<int64_t>(3 * width, sizes_.decoder.intermediate_size) * bytes);
  logits_ = arena.take<float>(2 * int64_t{slots} * weights_.tokens.outputs);
}

Status CudaSpeechDecoder::reserve() {
  for (auto [pages, entries] :
       {std::pair(&tokens_, num_slots_), std::pair(&source_, tokens_max_)}) {
    const auto most = std::max<int32_t>(
        entries, static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(num_slots_))));
    ESP_ASSIGN_OR_RETURN(const size_t bytes,
                         kc::attention_workspace_bytes(shape(), most, tokens_max_));
    pages->workspace_bytes = static_cast<int64_t>(bytes);
  }
  cuda::Arena measured;
  lay_out(measured);
  ESP_ASSIGN_OR_RETURN(
      block_, cuda::DeviceBuffer::allocate(measured.used_bytes(), "scratch of speech's decoder"));
  cuda::Arena arena(block_.data());
  lay_out(arena);
  const int64_t layers = sizes_.decoder.num_layers;
  const int64_t of_tokens = 2 * layers * plane_bytes(tokens_);
  ESP_ASSIGN_OR_RETURN(pages_block_,
                       cuda::DeviceBuffer::allocate(of_tokens + 2 * layers * plane_bytes(source_),
                                                    "keys and values of speech"));
  tokens_.planes = pages_block_.data();
  source_.planes = pages_block_.data() + of_tokens;
  const auto slots = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(num_slots_)));
  cuda::Arena host;
  host_.lay_out(host, tokens_max_, slots);
  const int64_t table_bytes = int64_t{num_slots_} *
                              std::max(source_.slot_pages, tokens_.slot_pages) *
                              int64_t{sizeof(int32_t)};
  ESP_ASSIGN_OR_RETURN(pinned_, cuda::PinnedBuffer::allocate(
                                    std::max(host.used_bytes(), table_bytes), "steps of speech"));
  cuda::Arena pinned(pinned_.data());
  host_.lay_out(pinned, tokens_max_, slots);
  ESP_ASSIGN_OR_RETURN(
      pinned_logits_,
      cuda::PinnedBuffer::allocate(2 * int64_t{slots} * sizes_.vocab_size * int64_t{sizeof(float)},
                                   "logits of speech"));
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(block_.data(), 0, block_.size_bytes(), layers_.stream()));
  ESP_RETURN_IF_ERROR(
      cuda::fill_bytes(pages_block_.data(), 0, pages_block_.size_bytes(), layers_.stream()));
  return write_tables();
}

// A slot's pages lie one behind the other, so that a GEMM writes all of a slot's keys at once.
Status CudaSpeechDecoder::write_tables() {
  auto* const numbers = reinterpret_cast<int32_t*>(pinned_.data());
  const int32_t most = num_slots_ * std::max(source_.slot_pages, tokens_.slot_pages);
  ESP_CHECK(int64_t{most} * int64_t{sizeof(int32_t)} <= pinned_.size_bytes());
  std::iota(numbers, numbers + most, 0);
  for (const Pages* pages : {&tokens_, &source_}) {
    ESP_RETURN_IF_ERROR(cuda::copy_to_device(
        pages->table, numbers, int64_t{num_slots_} * pages->slot_pages * int64_t{sizeof(int32_t)},
        layers_.stream()));
  }
  return layers_.stream().synchronize();
}

std::vector<kc::LinearArgs> CudaSpeechDecoder::gemms() const {
  std::vector<kc::LinearArgs> out;
  if (weights_.decoder_layers.empty()) return out;
  const DecoderLayerOf<CudaFormat>& layer = weights_.decoder_layers[0];
  // Of a window's rows: from one plane to another, which have room for them.
  const kc::KvPlanes source = planes(source_, 0);
  out.push_back(
      layers_.linear_args(layer.cross.key, source.v, sizes_.max_source_positions, source.k));
  const auto slots = static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(num_slots_)));
  for (int32_t rows = 1; rows <= tokens_max_; rows *= 2) {
    out.push_back(layers_.linear_args(layer.attention.qkv, normed_, rows, wide_));
    out.push_back(layers_.linear_args(layer.attention.output, normed_, rows, x_));
    out.back().residual = x_;
    out.push_back(layers_.linear_args(layer.cross.query, normed_, rows, wide_));
    out.push_back(layers_.linear_args(layer.mlp.up, normed_, rows, wide_));
    out.push_back(layers_.linear_args(layer.mlp.down, wide_, rows, x_));
    out.back().residual = x_;
    if (rows <= 2 * slots)
      out.push_back(layers_.head_args(weights_.tokens, normed_, rows, logits_));
  }
  return out;
}

Status CudaSpeechDecoder::set_source(int32_t slot, const void* rows) {
  const int64_t at =
      int64_t{slot} * source_.slot_pages * kPageSize * sizes_.width * layers_.element_bytes();
  for (size_t i = 0; i < weights_.decoder_layers.size(); ++i) {
    const CrossAttentionOf<CudaFormat>& cross = weights_.decoder_layers[i].cross;
    const kc::KvPlanes kv = planes(source_, i);
    const int32_t positions = sizes_.max_source_positions;
    ESP_RETURN_IF_ERROR(
        layers_.linear(cross.key, rows, positions, static_cast<std::byte*>(kv.k) + at));
    ESP_RETURN_IF_ERROR(
        layers_.linear(cross.value, rows, positions, static_cast<std::byte*>(kv.v) + at));
  }
  return Status();
}

kc::EntryArrays CudaSpeechDecoder::entries_of(const SpeechStepSize& size, bool source) const {
  if (source) {
    return {.query_begin = device_.source_begins,
            .prefix_len = device_.source_prefixes,
            .page_begin = device_.source_pages,
            .page_tables = source_.table,
            .num_entries = size.tokens,
            .num_tokens = size.tokens,
            .max_query_tokens = 1,
            .shared = {}};
  }
  return {.query_begin = device_.begins,
          .prefix_len = device_.prefixes,
          .page_begin = device_.pages,
          .page_tables = tokens_.table,
          .num_entries = size.entries,
          .num_tokens = size.tokens,
          .max_query_tokens = size.tokens_longest,
          .shared = {}};
}

Status CudaSpeechDecoder::embed(const SpeechStepSize& size) {
  const int32_t width = sizes_.width;
  ESP_RETURN_IF_ERROR(layers_.gather({weights_.tokens.data, sizes_.vocab_size, width, width},
                                     device_.ids, size.tokens, x_));
  ESP_RETURN_IF_ERROR(
      layers_.gather({weights_.target_positions, sizes_.max_target_positions, width, width},
                     positions_, size.tokens, normed_));
  return layers_.add(normed_, x_, size.tokens);
}

// Queries are rows of wide_, and results go to normed_.
Status CudaSpeechDecoder::attend(const Pages& pages, size_t layer, bool source,
                                 const SpeechStepSize& size, int64_t q_stride) {
  return kc::attention({.shape = shape(),
                        .entries = entries_of(size, source),
                        .kv = planes(pages, layer),
                        .q = wide_,
                        .q_stride = q_stride,
                        .out = normed_,
                        .out_stride = sizes_.width,
                        .scale = 1 / std::sqrt(static_cast<float>(sizes_.head_dim(sizes_.decoder))),
                        .workspace = pages.workspace,
                        .workspace_bytes = static_cast<size_t>(pages.workspace_bytes)},
                       layers_.launch());
}

Status CudaSpeechDecoder::attend_to_tokens(size_t layer, const SpeechStepSize& size) {
  const SelfAttentionOf<CudaFormat>& weights = weights_.decoder_layers[layer].attention;
  const int64_t part = sizes_.width * layers_.element_bytes(), stride = int64_t{3} * sizes_.width;
  ESP_RETURN_IF_ERROR(layers_.norm(weights.norm, x_, normed_, size.tokens));
  ESP_RETURN_IF_ERROR(layers_.linear(weights.qkv, normed_, size.tokens, wide_));
  ESP_RETURN_IF_ERROR(kc::qk_rope_append({.type = layers_.type(),
                                          .q = wide_,
                                          .q_stride = stride,
                                          .k = wide_ + part,
                                          .k_stride = stride,
                                          .v = wide_ + 2 * part,
                                          .v_stride = stride,
                                          .tokens = size.tokens,
                                          .num_heads = sizes_.decoder.num_heads,
                                          .positions = positions_,
                                          .kv = planes(tokens_, layer),
                                          .kv_rows = kv_rows_},
                                         layers_.launch()));
  ESP_RETURN_IF_ERROR(attend(tokens_, layer, false, size, stride));
  return layers_.linear(weights.output, normed_, size.tokens, x_, true);
}

Status CudaSpeechDecoder::attend_to_source(size_t layer, const SpeechStepSize& size) {
  const CrossAttentionOf<CudaFormat>& weights = weights_.decoder_layers[layer].cross;
  ESP_RETURN_IF_ERROR(layers_.norm(weights.norm, x_, normed_, size.tokens));
  ESP_RETURN_IF_ERROR(layers_.linear(weights.query, normed_, size.tokens, wide_));
  ESP_RETURN_IF_ERROR(attend(source_, layer, true, size, sizes_.width));
  return layers_.linear(weights.output, normed_, size.tokens, x_, true);
}

Status CudaSpeechDecoder::enqueue(const SpeechStepSize& size) {
  ESP_RETURN_IF_ERROR(kc::token_rows({.entries = entries_of(size, false),
                                      .page_size = kPageSize,
                                      .kv_rows = kv_rows_,
                                      .positions = positions_},
                                     layers_.launch()));
  for (const auto& [pages, source] : {std::pair(&tokens_, false), std::pair(&source_, true)}) {
    ESP_RETURN_IF_ERROR(kc::attention_plan(shape(), entries_of(size, source), pages->workspace,
                                           static_cast<size_t>(pages->workspace_bytes),
                                           layers_.launch()));
  }
  ESP_RETURN_IF_ERROR(embed(size));
  for (size_t i = 0; i < weights_.decoder_layers.size(); ++i) {
    ESP_RETURN_IF_ERROR(attend_to_tokens(i, size));
    ESP_RETURN_IF_ERROR(attend_to_source(i, size));
    ESP_RETURN_IF_ERROR(
        layers_.mlp(weights_.decoder_layers[i].mlp, x_, normed_, wide_, size.tokens));
  }
  const int32_t width = sizes_.width;
  ESP_RETURN_IF_ERROR(
      layers_.gather({x_, size.tokens, width, width}, device_.wanted, size.rows, wide_));
  ESP_RETURN_IF_ERROR(layers_.norm(weights_.decoder_norm, wide_, normed_, size.rows));
  return layers_.head(weights_.tokens, normed_, size.rows, logits_);
}

Status CudaSpeechDecoder::run_graph(const SpeechStepSize& size) {
  const auto found = graphs_.find(size.entries);
  if (found != graphs_.end()) return found->second.launch(layers_.stream());
  ESP_ASSIGN_OR_RETURN(cuda::Graph graph, cuda::Graph::capture(layers_.stream(), [&]() -> Status {
                         return enqueue(size);
                       }));
  return graphs_.emplace(size.entries, std::move(graph)).first->second.launch(layers_.stream());
}

// Logits go to pinned memory from the row `first_row` on.
Status CudaSpeechDecoder::run_part(std::span<const DecoderEntry> entries, int64_t first_row) {
  const bool one_each = std::ranges::all_of(entries, [](const DecoderEntry& entry) {
    return entry.tokens.size() == 1 && entry.logits_row < 0;
  });
  const auto rounded = static_cast<int32_t>(std::bit_ceil(entries.size()));
  const bool graph = one_each && rounded <= kGraphRowsMost;
  const SpeechStepSize size =
      write_speech_step(entries, {tokens_.slot_pages, source_.slot_pages},
                        sizes_.max_source_positions, graph ? rounded : 0, host_);
  const std::byte* const end = reinterpret_cast<std::byte*>(host_.source_pages + tokens_max_);
  ESP_RETURN_IF_ERROR(cuda::copy_to_device(
      device_.ids, host_.ids, end - reinterpret_cast<std::byte*>(host_.ids), layers_.stream()));
  ESP_RETURN_IF_ERROR(graph ? run_graph(size) : enqueue(size));
  const int64_t row_bytes = sizes_.vocab_size * int64_t{sizeof(float)};
  const int64_t rows = graph ? std::ssize(entries) : size.rows;
  ESP_RETURN_IF_ERROR(
      cuda::copy_rows_to_host(pinned_logits_.data() + first_row * row_bytes,
                              {.first = reinterpret_cast<std::byte*>(logits_),
                               .pitch = weights_.tokens.outputs * int64_t{sizeof(float)},
                               .row_bytes = row_bytes,
                               .num_rows = rows},
                              layers_.stream()));
  return layers_.stream().synchronize();  // the arrays may be written again
}

Result<std::span<const float>> CudaSpeechDecoder::step(std::span<const DecoderEntry> entries) {
  int64_t row = 0;
  while (!entries.empty()) {
    size_t count = 0;
    int64_t tokens = 0, rows = 0;
    for (; count < entries.size(); ++count) {
      const DecoderEntry& entry = entries[count];
      ESP_CHECK(entry.slot >= 0 && entry.slot < num_slots_ && !entry.tokens.empty() &&
                entry.num_cached + std::ssize(entry.tokens) <= sizes_.max_target_positions);
      tokens += std::ssize(entry.tokens);
      if (tokens > tokens_max_) break;
      rows += entry.logits_row >= 0 ? 2 : 1;
    }
    ESP_RETURN_IF_ERROR(run_part(entries.first(count), row));
    row += rows;
    entries = entries.subspan(count);
  }
  return std::span<const float>(reinterpret_cast<const float*>(pinned_logits_.data()),
                                static_cast<size_t>(row * sizes_.vocab_size));
}

}  // namespace espalier::speech
