#include "engine/executor/cuda/hidden_reader.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/sampling/sampler.h"
#include "tensor/dtype.h"

namespace espalier {
namespace {

// Enough that a copy takes longer than the function behind it takes to begin.
constexpr int64_t kBlockBytes = 4 << 20;

}  // namespace

HiddenReader::HiddenReader(CudaDecoder& model, int32_t max_slots)
    : model_(model),
      hidden_size_(model.info().hidden_size),
      num_layers_(model.info().num_layers),
      pooled_(static_cast<size_t>(max_slots)) {}

Result<std::unique_ptr<HiddenReader>> HiddenReader::create(CudaDecoder& model, int32_t max_slots) {
  std::unique_ptr<HiddenReader> out(new HiddenReader(model, max_slots));
  const int64_t row_bytes = out->hidden_size_ * static_cast<int64_t>(dtype_size(model.type()));
  out->rows_max_ = static_cast<int32_t>(std::max<int64_t>(1, kBlockBytes / row_bytes));
  const int64_t bytes = out->rows_max_ * row_bytes;
  ESP_ASSIGN_OR_RETURN(out->block_, cuda::PinnedBuffer::allocate(bytes, "hidden states"));
  ESP_ASSIGN_OR_RETURN(out->normed_, cuda::DeviceBuffer::allocate(bytes, "hidden states"));
  return out;
}

void HiddenReader::begin(const ForwardBatch& batch, Step& step) const {
  step.entries.clear();
  step.pieces.clear();
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const BatchEntry& entry = batch.entries[i];
    if (entry.pooled_begin >= 0)
      step.entries.push_back({.index = i,
                              .first_row = entry.query_begin + entry.pooled_begin,
                              .num_rows = entry.num_query_tokens - entry.pooled_begin,
                              .layers = {&num_layers_, 1},
                              .pooled_slot = entry.slot,
                              .pooled_end = entry.pooled_end,
                              .sum = std::vector<double>(static_cast<size_t>(hidden_size_))});
    if (entry.hidden_begin < 0) continue;
    const int32_t rows = entry.num_query_tokens - entry.hidden_begin;
    const auto count = static_cast<size_t>(rows * hidden_size_) * entry.hidden_layers.size();
    step.entries.push_back({.index = i,
                            .first_row = entry.query_begin + entry.hidden_begin,
                            .num_rows = rows,
                            .layers = entry.hidden_layers,
                            .states = std::vector<float>(count)});
  }
}

Status HiddenReader::take(Step& step, int32_t index, const void* rows, const cuda::Stream& stream) {
  const int64_t row_bytes = hidden_size_ * static_cast<int64_t>(dtype_size(model_.type()));
  for (Step::Entry& entry : step.entries) {
    const auto layer = std::ranges::find(entry.layers, index) - entry.layers.begin();
    if (layer == std::ssize(entry.layers)) continue;
    const auto* const first = static_cast<const std::byte*>(rows) + entry.first_row * row_bytes;
    ESP_RETURN_IF_ERROR(
        take_rows(step, entry, static_cast<size_t>(layer), first, index == num_layers_, stream));
  }
  return Status();
}

// In runs of as many rows as the block holds: the stream's order keeps it until it has been read.
Status HiddenReader::take_rows(Step& step, Step::Entry& entry, size_t layer, const std::byte* rows,
                               bool last, const cuda::Stream& stream) {
  const int64_t row_bytes = hidden_size_ * static_cast<int64_t>(dtype_size(model_.type()));
  const int64_t to_stride = std::ssize(entry.layers) * hidden_size_;
  for (int32_t begin = 0; begin < entry.num_rows; begin += rows_max_) {
    const int32_t count = std::min(rows_max_, entry.num_rows - begin);
    const void* from = rows + begin * row_bytes;
    if (last) {
      ESP_RETURN_IF_ERROR(model_.finish_states(from, count, normed_.data(), stream));
      from = normed_.data();
    }
    ESP_RETURN_IF_ERROR(cuda::copy_to_host(block_.data(), from, count * row_bytes, stream));
    float* const to =
        entry.states.data() + begin * to_stride + static_cast<int64_t>(layer) * hidden_size_;
    Step::Piece& piece = step.pieces.emplace_back(Step::Piece{
        .reader = this, .entry = &entry, .num_rows = count, .to = to, .to_stride = to_stride});
    const auto take = [](void* data) {
      const auto& own = *static_cast<const Step::Piece*>(data);
      own.reader->take_piece(own);
    };
    ESP_RETURN_IF_ERROR(stream.run_on_host(take, &piece));
  }
  return Status();
}

void HiddenReader::take_piece(const Step::Piece& piece) const {
  const auto take = [&](const auto* rows, const auto& as_float) {
    for (int32_t row = 0; row < piece.num_rows; ++row, rows += hidden_size_) {
      if (piece.entry->pooled_slot < 0) {
        std::transform(rows, rows + hidden_size_, piece.to + row * piece.to_stride, as_float);
        continue;
      }
      std::vector<double>& sum = piece.entry->sum;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += double{as_float(rows[i])};
    }
  };
  if (model_.type() == DType::kBFloat16)
    take(reinterpret_cast<const BFloat16*>(block_.data()),
         [](BFloat16 value) { return to_float(value); });
  else
    take(reinterpret_cast<const float*>(block_.data()), [](float value) { return value; });
}

void HiddenReader::pool(const Step::Entry& entry, EntryResult& result) {
  Pooled& pooled = pooled_[static_cast<size_t>(entry.pooled_slot)];
  pooled.sum.resize(entry.sum.size());
  for (size_t i = 0; i < entry.sum.size(); ++i) pooled.sum[i] += entry.sum[i];
  pooled.num_rows += entry.num_rows;
  if (!entry.pooled_end) return;
  result.pooled.clear();
  for (const double value : pooled.sum)
    result.pooled.push_back(static_cast<float>(value / static_cast<double>(pooled.num_rows)));
  if (!std::ranges::all_of(result.pooled, [](float v) { return std::isfinite(v); }))
    result.status = not_finite_vector();
}

void HiddenReader::read(Step& step, StepResult& result) {
  for (Step::Entry& entry : step.entries) {
    EntryResult& out = result.entries[entry.index];
    if (entry.pooled_slot >= 0)
      pool(entry, out);
    else
      out.hidden_states = std::move(entry.states);
  }
  step.entries.clear();
}

}  // namespace espalier
