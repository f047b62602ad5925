#include "models/cuda/adapter_store.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "checkpoint/convert.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

constexpr int64_t kFactorAlignment = 128;  // bytes
// How long a load waits for the steps that may read an adapter which was unloaded.
constexpr std::chrono::seconds kStepWait(30);

int64_t align_up(int64_t bytes) {
  return (bytes + kFactorAlignment - 1) / kFactorAlignment * kFactorAlignment;
}

// Where a module's factors go, in bytes from the adapter's first.
struct FactorPlace {
  int32_t part = 0;
  int64_t a = 0, b = 0;
  int32_t rank = 0;  // padded
};

struct AdapterLayout {
  std::vector<FactorPlace> modules;
  int64_t parts_bytes = 0;  // of the table in front
  int64_t size = 0;
};

Result<AdapterLayout> plan_adapter(const PeftAdapter& file, const AdaptedMatrices& matrices,
                                   DType type) {
  const auto element = static_cast<int64_t>(dtype_size(type));
  AdapterLayout out;
  out.parts_bytes = align_up(int64_t{matrices.count()} * kc::kLoraPartsMax *
                             static_cast<int64_t>(sizeof(kc::LoraPart)));
  out.size = out.parts_bytes;
  for (const PeftModule& module : file.modules()) {
    ESP_ASSIGN_OR_RETURN(const AdaptedModule* to, matrices.modules().find(module));
    FactorPlace& place = out.modules.emplace_back();
    place.part = matrices.part_index(*to);
    place.rank = kc::padded_lora_rank(module.rank());
    place.a = out.size;
    place.b = place.a + align_up(place.rank * to->in_features * element);
    out.size = place.b + align_up(place.rank * to->out_features * element);
  }
  return out;
}

// Elements of rows [first, first + count) to rows of `width`, zeros behind the tensor's own columns
// and rows.
void fill_rows(const CheckpointTensor& tensor, int64_t first, int64_t count, int64_t width,
               DType type, std::byte* out) {
  const auto element = static_cast<int64_t>(dtype_size(type));
  const int64_t columns = tensor.shape[1];
  const int64_t own = std::clamp<int64_t>(tensor.shape[0] - first, 0, count);
  if (columns < width || own < count)
    std::memset(out, 0, static_cast<size_t>(count * width * element));
  if (columns == width && own > 0) {
    copy_slice(tensor, {first, own, 0, columns}, type, out);
    return;
  }
  for (int64_t row = 0; row < own; ++row)
    copy_slice(tensor, {first + row, 1, 0, columns}, type, out + row * width * element);
}

// rows, width: padded.
Status write_factor(const CheckpointTensor& tensor, int64_t rows, int64_t width, DType type,
                    DeviceWriter& writer) {
  const int64_t row_bytes = width * static_cast<int64_t>(dtype_size(type));
  const int64_t most = std::max<int64_t>(1, DeviceWriter::kHalfBytes / row_bytes);
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    ESP_ASSIGN_OR_RETURN(std::byte* const out, writer.next(count * row_bytes));
    fill_rows(tensor, first, count, width, type, out);
  }
  const int64_t bytes = rows * row_bytes;
  ESP_ASSIGN_OR_RETURN(std::byte* const gap, writer.next(align_up(bytes) - bytes));
  std::memset(gap, 0, static_cast<size_t>(align_up(bytes) - bytes));
  return Status();
}

Status write_factors(const PeftAdapter& file, const AdapterLayout& layout, DType type,
                     DeviceWriter& writer) {
  for (size_t i = 0; i < layout.modules.size(); ++i) {
    const PeftModule& module = file.modules()[i];
    const int64_t rank = layout.modules[i].rank;
    ESP_RETURN_IF_ERROR(write_factor(module.a, rank, module.in_features(), type, writer));
    ESP_RETURN_IF_ERROR(write_factor(module.b, module.out_features(), rank, type, writer));
  }
  return Status();
}

// The table of parts, then each module's A and B.
Status write_adapter(const PeftAdapter& file, const AdapterLayout& layout, DType type,
                     std::byte* device, DeviceWriter& writer) {
  std::vector<kc::LoraPart> parts(static_cast<size_t>(layout.parts_bytes) / sizeof(kc::LoraPart));
  for (size_t i = 0; i < layout.modules.size(); ++i) {
    const FactorPlace& place = layout.modules[i];
    parts[static_cast<size_t>(place.part)] = {.a = device + place.a,
                                              .b = device + place.b,
                                              .rank = place.rank,
                                              .scale = file.modules()[i].scale};
  }
  writer.begin(device);
  ESP_ASSIGN_OR_RETURN(std::byte* const table, writer.next(layout.parts_bytes));
  std::memcpy(table, parts.data(), parts.size() * sizeof(kc::LoraPart));
  const Status status = write_factors(file, layout, type, writer);
  const Status ended = writer.finish();
  return status.ok() ? ended : status;
}

}  // namespace

Result<DeviceWriter> DeviceWriter::create() {
  DeviceWriter out;
  ESP_ASSIGN_OR_RETURN(out.stream_, cuda::Stream::create());
  ESP_ASSIGN_OR_RETURN(out.buffer_,
                       cuda::PinnedBuffer::allocate(2 * kHalfBytes, "adapters on their way"));
  for (cuda::Event& event : out.copied_) {
    ESP_ASSIGN_OR_RETURN(event, cuda::Event::create());
  }
  return out;
}

Result<std::byte*> DeviceWriter::next(int64_t size) {
  if (filled_ + size > kHalfBytes) ESP_RETURN_IF_ERROR(flush());
  std::byte* const out = buffer_.data() + half_ * kHalfBytes + filled_;
  filled_ += size;
  return out;
}

// The other half was copied before, so that waiting for its event is short.
Status DeviceWriter::flush() {
  if (filled_ == 0) return Status();
  ESP_RETURN_IF_ERROR(
      cuda::copy_to_device(device_, buffer_.data() + half_ * kHalfBytes, filled_, stream_));
  ESP_RETURN_IF_ERROR(copied_[static_cast<size_t>(half_)].record(stream_));
  device_ += filled_;
  filled_ = 0;
  half_ = 1 - half_;
  return copied_[static_cast<size_t>(half_)].synchronize();
}

Status DeviceWriter::finish() {
  const Status status = flush();
  filled_ = 0;
  const Status ended = stream_.synchronize();
  return status.ok() ? ended : status;
}

CudaAdapterStore::CudaAdapterStore(const AdaptedMatrices& matrices, DType type,
                                   cuda::DeviceBuffer block, DeviceWriter writer)
    : matrices_(matrices),
      type_(type),
      device_(cuda::current_device()),
      block_(std::move(block)),
      writer_(std::move(writer)),
      free_(block_.size_bytes() / kFactorAlignment) {}

Result<std::unique_ptr<CudaAdapterStore>> CudaAdapterStore::create(const AdaptedMatrices& matrices,
                                                                   DType type, int64_t bytes) {
  ESP_ASSIGN_OR_RETURN(cuda::DeviceBuffer block,
                       cuda::DeviceBuffer::allocate(bytes, "adapters (--max-lora-bytes)"));
  ESP_ASSIGN_OR_RETURN(DeviceWriter writer, DeviceWriter::create());
  return std::unique_ptr<CudaAdapterStore>(
      new CudaAdapterStore(matrices, type, std::move(block), std::move(writer)));
}

Result<AdapterInfo> CudaAdapterStore::load(AdapterId id, const std::filesystem::path& folder,
                                           int32_t rank_max) {
  ESP_ASSIGN_OR_RETURN(const PeftAdapter file, open_adapter(folder, rank_max));
  if (kc::padded_lora_rank(file.rank_max()) > matrices_.rank_max())
    return fail(invalid_argument(
        "{}: the rank {} is above the {} that this GPU's scratch has room for; state a larger "
        "--max-lora-rank",
        folder.string(), file.rank_max(), matrices_.rank_max()));
  auto layout = plan_adapter(file, matrices_, type_);
  if (!layout) return fail(layout.error().with_context(folder.string()));
  ESP_RETURN_IF_ERROR(cuda::use_device(device_));
  const std::lock_guard loading(load_mutex_);
  ESP_ASSIGN_OR_RETURN(const Range range, take(layout->size));
  const Status written =
      write_adapter(file, *layout, type_, block_.data() + range.begin * kFactorAlignment, writer_);
  const std::lock_guard lock(mutex_);
  if (!written.ok()) {
    free_.give_back(range.begin, range.size);
    return fail(written);
  }
  loaded_[id] = range;
  return AdapterInfo{.rank = file.rank_max(),
                     .num_modules = static_cast<int32_t>(file.modules().size()),
                     .size_bytes = layout->size};
}

// Adapters that were unloaded give their memory back when their steps have ended, which is soon.
Result<CudaAdapterStore::Range> CudaAdapterStore::take(int64_t size) {
  const int64_t units = size / kFactorAlignment;
  std::unique_lock lock(mutex_);
  std::optional<int64_t> begin;
  const auto fits = [&] {
    give_back_retired();
    begin = free_.take(units);
    return begin.has_value() || retired_.empty();
  };
  step_ended_.wait_for(lock, kStepWait, fits);
  if (begin) return Range{*begin, units};
  return fail(error(StatusCode::kResourceExhausted,
                    "it needs {} adjacent bytes of the GPU's memory; of the {} that --max-lora-bytes "
                    "reserves {} are free, at most {} of them adjacent: unload adapters, or state "
                    "more",
                    size, block_.size_bytes(), free_.num_free() * kFactorAlignment,
                    free_.largest() * kFactorAlignment));
}

void CudaAdapterStore::give_back_retired() {
  std::erase_if(retired_, [&](const Retired& retired) {
    if (retired.last_step > ended_) return false;
    free_.give_back(retired.range.begin, retired.range.size);
    return true;
  });
}

void CudaAdapterStore::unload(AdapterId id) {
  const std::lock_guard lock(mutex_);
  const auto found = loaded_.find(id);
  if (found == loaded_.end()) return;
  retired_.push_back({found->second, launched_});
  loaded_.erase(found);
}

void CudaAdapterStore::begin_step() {
  const std::lock_guard lock(mutex_);
  ++launched_;
}

void CudaAdapterStore::find(std::span<const AdapterId> ids, std::span<const kc::LoraPart*> parts) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto found = loaded_.find(ids[i]);
    parts[i] = found == loaded_.end() ? nullptr
                                      : reinterpret_cast<const kc::LoraPart*>(
                                            block_.data() + found->second.begin * kFactorAlignment);
  }
}

void CudaAdapterStore::end_step() {
  {
    const std::lock_guard lock(mutex_);
    ++ended_;
  }
  step_ended_.notify_all();
}

}  // namespace espalier
