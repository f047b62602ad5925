#include "models/cuda/test_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "models/rotary_places.h"

namespace espalier {
namespace {

constexpr int64_t kInputBytes = 16 << 20;
constexpr int64_t kAdapterBytes = 32 << 20;

void must(const Status& status) { ESP_CHECK(status.ok(), "{}", status.to_string()); }
template <typename T>
T must(Result<T> result) {
  ESP_CHECK(result.has_value(), "{}", result.error().to_string());
  return std::move(*result);
}

}  // namespace

CudaTestModel::CudaTestModel(std::unique_ptr<CudaDecoder> decoder)
    : decoder_(std::move(decoder)),
      stream_(must(cuda::Stream::create())),
      inputs_(must(cuda::DeviceBuffer::allocate(kInputBytes, "a test's inputs"))) {}

Status CudaTestModel::reserve(int32_t max_tokens, int32_t max_entries) {
  max_tokens_ = max_tokens;
  max_entries_ = max_entries;
  page_size_ = 0;
  ESP_ASSIGN_OR_RETURN(logits_, cuda::DeviceBuffer::allocate(
                                    4ll * max_entries * decoder_->logits_stride(), "logits"));
  return Status();
}

const KvView& CudaTestModel::device_view(const KvView& host) {
  if (page_size_ != host.page_size) {
    page_size_ = host.page_size;
    must(decoder_->reserve(max_tokens_, max_entries_, page_size_));
  }
  const KvView::Layer& first = host.layers[0];
  if (view_of_ == first.k && view_.layers[0].num_pages == first.num_pages) return view_;
  view_of_ = first.k;
  view_ = host;
  const int64_t plane = (first.plane_bytes() + 255) / 256 * 256;
  const auto planes = static_cast<int64_t>(2 * host.layers.size());
  planes_ = {};
  planes_ = must(cuda::DeviceBuffer::allocate(plane * planes, "a test's keys and values"));
  must(cuda::fill_bytes(planes_.data(), 0xff, planes_.size_bytes(), stream_));
  std::byte* at = planes_.data();
  const bool one_plane = first.v == first.k;
  for (KvView::Layer& layer : view_.layers) {
    layer.k = at;
    layer.v = one_plane ? at : at + plane;
    at += 2 * plane;
  }
  return view_;
}

template <typename T>
const T* CudaTestModel::put(std::span<const T> values) {
  auto* at = inputs_arena_.take<T>(std::ssize(values));
  ESP_CHECK(inputs_arena_.used_bytes() <= kInputBytes);
  must(cuda::copy_to_device(at, values.data(), static_cast<int64_t>(values.size_bytes()), stream_));
  return at;
}
const int32_t* CudaTestModel::put(std::span<const int32_t> values) { return put<int32_t>(values); }

Result<AdapterInfo> CudaTestModel::load_adapter(AdapterId id, const std::filesystem::path& folder,
                                                int32_t rank_max) {
  if (!adapters_) {
    ESP_ASSIGN_OR_RETURN(adapters_, CudaAdapterStore::create(*decoder_->adapted_matrices(),
                                                             decoder_->type(), kAdapterBytes));
  }
  return adapters_->load(id, folder, rank_max);
}

// Rows of an encoder on the CPU.
void CudaTestModel::find_spans(const ForwardBatch& batch) {
  spans_.clear();
  for (const EmbeddingSpan& span : batch.embedding_spans) {
    const auto width = static_cast<size_t>(span.rows->width);
    const std::span<const float> floats(
        span.rows->values.data() + static_cast<size_t>(span.first_row) * width,
        static_cast<size_t>(span.count) * width);
    std::vector<BFloat16> halves;
    if (decoder_->type() == DType::kBFloat16) {
      for (const float value : floats) halves.push_back(to_bfloat16(value));
    }
    const void* const rows = halves.empty()
                                 ? static_cast<const void*>(put(floats))
                                 : static_cast<const void*>(put(std::span<const BFloat16>(halves)));
    spans_.push_back({.token_begin = span.token_begin, .count = span.count, .rows = rows});
  }
}

StepAdapters CudaTestModel::upload_adapters(const ForwardBatch& batch) {
  if (!adapters_) return {};
  std::vector<AdapterId> ids;
  for (const BatchEntry& entry : batch.entries) ids.push_back(entry.adapter);
  std::vector<const kernels::cuda::LoraPart*> parts(ids.size());
  adapters_->find(ids, parts);
  std::vector<kernels::cuda::LoraTile> host(static_cast<size_t>(
      AdapterTiles::capacity(static_cast<int32_t>(batch.entries.size()), batch.num_tokens())));
  const ArrangedTiles& arranged = tiles_.arrange(batch, parts, true, host.data());
  if (arranged.empty()) return {};
  const auto* device = put(std::span<const kernels::cuda::LoraTile>(host));
  return {.tokens = rows_of(arranged.tokens, device), .wanted = rows_of(arranged.wanted, device)};
}

CudaStep CudaTestModel::upload(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                               std::vector<Row>& rows) {
  std::vector<int32_t> query_begin, prefix_len, page_begin, wanted;
  CudaStep step;
  for (const BatchEntry& entry : batch.entries) {
    query_begin.push_back(entry.query_begin);
    prefix_len.push_back(entry.prefix_len);
    page_begin.push_back(entry.page_begin);
    step.entries.max_query_tokens = std::max(step.entries.max_query_tokens, entry.num_query_tokens);
    step.max_prefix_len = std::max(step.max_prefix_len, entry.prefix_len);
    step.expanded.add(entry.prefix_len, entry.num_query_tokens);
  }
  query_begin.push_back(batch.num_tokens());
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const BatchEntry& entry = batch.entries[i];
    if (!entry.sample) continue;
    rows.push_back({static_cast<int32_t>(i), -1});
    wanted.push_back(entry.query_begin + entry.num_query_tokens - 1);
  }
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const BatchEntry& entry = batch.entries[i];
    for (int32_t t = 0; t < static_cast<int32_t>(entry.input_logprob_targets.size()); ++t) {
      rows.push_back({static_cast<int32_t>(i), t});
      wanted.push_back(entry.query_begin + entry.input_logprob_begin + t);
    }
  }
  inputs_arena_ = cuda::Arena(inputs_.data());
  step.ids = put(token_ids);
  step.entries.query_begin = put(query_begin);
  step.entries.prefix_len = put(prefix_len);
  step.entries.page_begin = put(page_begin);
  step.entries.page_tables = put(batch.page_tables);
  step.entries.num_entries = static_cast<int32_t>(batch.entries.size());
  step.entries.num_tokens = batch.num_tokens();
  if (windows_own_pages_) {
    step.window_entries = step.entries;
    step.entries.page_tables = put(std::vector<int32_t>(batch.page_tables.size(), 0));
  }
  step.adapters = upload_adapters(batch);
  find_spans(batch);
  step.spans = spans_;
  if (has_sections(decoder_->placed_weights().spec)) {
    std::vector<int32_t> places(3 * batch.positions.size());
    write_rotary_places(batch, {.token = 3, .component = 1}, places.data());
    step.places = put(places);
  }
  if (const auto& images = decoder_->placed_weights().spec.images;
      images && images->bidirectional && !batch.embedding_spans.empty()) {
    std::vector<int32_t> last_seen(batch.positions.size());
    write_last_seen(batch, last_seen.data());
    step.last_seen = put(last_seen);
  }
  step.rows = put(wanted);
  step.num_rows = static_cast<int32_t>(wanted.size());
  return step;
}

ForwardOutput CudaTestModel::forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                                     const KvView& kv, const InputLogitsSink& input_logits) {
  const KvView& view = device_view(kv);
  std::vector<Row> rows;
  const CudaStep step = upload(batch, token_ids, rows);
  must(decoder_->forward(step, view, stream_));
  const auto vocab = static_cast<size_t>(info().vocab_size);
  const auto stride = static_cast<size_t>(decoder_->logits_stride());
  sample_logits_.clear();
  auto* device = reinterpret_cast<float*>(logits_.data());
  for (int32_t first = 0; first < step.num_rows; first += max_entries_) {
    const int32_t count = std::min(max_entries_, step.num_rows - first);
    must(decoder_->logits(first, count, device, stream_));
    host_rows_.resize(static_cast<size_t>(count) * stride);
    must(cuda::copy_to_host(host_rows_.data(), device, std::ssize(host_rows_) * 4, stream_));
    must(stream_.synchronize());
    for (int32_t i = 0; i < count; ++i) {
      const Row& row = rows[static_cast<size_t>(first + i)];
      const std::span<const float> logits(host_rows_.data() + static_cast<size_t>(i) * stride,
                                          vocab);
      if (row.target < 0) {
        sample_logits_.insert(sample_logits_.end(), logits.begin(), logits.end());
      } else {
        input_logits(row.entry, row.target, logits);
      }
    }
  }
  must(stream_.synchronize());
  return {sample_logits_};
}

}  // namespace espalier
