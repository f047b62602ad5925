#include "engine/executor/cuda/cuda_page_copier.h"

#include <utility>

#include "tensor/cuda/device.h"
#include "tensor/cuda/memory.h"

namespace espalier {
namespace {

cuda::DeviceRows rows_of(const PlaneRun& run, PageId page) {
  return {.first = run.page_at(page),
          .pitch = run.pitch,
          .row_bytes = run.page_bytes,
          .num_rows = run.num_planes};
}

}  // namespace

Result<std::unique_ptr<CudaPageCopier>> CudaPageCopier::create(const KvView& view,
                                                               bool stages_steps) {
  std::unique_ptr<CudaPageCopier> copier(new CudaPageCopier);
  copier->stages_steps_ = stages_steps;
  copier->device_ = cuda::current_device();
  ESP_ASSIGN_OR_RETURN(const int64_t pitch_max, cuda::pitch_max());
  ESP_ASSIGN_OR_RETURN(copier->runs_, plane_runs(view, pitch_max));
  for (const PlaneRun& run : copier->runs_) copier->page_bytes_ += run.bytes();
  for (const KvView::Layer& layer : view.layers)
    copier->planes_of_layers_.push_back(layer.v != layer.k ? 2 : 1);
  ESP_ASSIGN_OR_RETURN(copier->device_name_, cuda::device_name(copier->device_));
  ESP_ASSIGN_OR_RETURN(copier->reads_, cuda::Stream::create());
  ESP_ASSIGN_OR_RETURN(copier->writes_, cuda::Stream::create());
  ESP_ASSIGN_OR_RETURN(copier->followed_, cuda::Event::create());
  return copier;
}

CudaPageCopier::~CudaPageCopier() {
  for (const cuda::Stream* stream : {&reads_, &writes_})
    if (stream->get() != nullptr) static_cast<void>(stream->synchronize());
}

// It belongs to the transfer until that is finished.
CudaPageCopier::Slot& CudaPageCopier::take_slot(Transfer& transfer) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    free_.push_back(slots_.size());
    slots_.emplace_back();
  }
  transfer = free_.back();
  free_.pop_back();
  return slots_[transfer];
}

// What fails is returned by finish(); nothing of it is in progress any more.
template <typename CopyRun>
PageCopier::Transfer CudaPageCopier::begin(const cuda::Stream& stream, const CopyRun& copy_run) {
  Transfer transfer = 0;
  Slot& slot = take_slot(transfer);
  const auto enqueue = [&]() -> Status {
    ESP_RETURN_IF_ERROR(cuda::use_device(device_));
    if (slot.done.get() == nullptr) {
      ESP_ASSIGN_OR_RETURN(slot.done, cuda::Event::create());
    }
    int64_t at = 0;  // in the page's bytes
    for (const PlaneRun& run : runs_) {
      ESP_RETURN_IF_ERROR(copy_run(run, at));
      at += run.bytes();
    }
    return slot.done.record(stream);
  };
  slot.status = enqueue();
  if (!slot.status.ok()) static_cast<void>(stream.synchronize());
  return transfer;
}

PageCopier::Transfer CudaPageCopier::begin_read(PageId page, std::span<std::byte> to) {
  return begin(reads_, [&](const PlaneRun& run, int64_t at) {
    return cuda::copy_rows_to_host(to.data() + at, rows_of(run, page), reads_);
  });
}

PageCopier::Transfer CudaPageCopier::begin_write(PageId page, std::span<const std::byte> from) {
  return begin(writes_, [&](const PlaneRun& run, int64_t at) {
    return cuda::copy_rows_to_device(rows_of(run, page), from.data() + at, writes_);
  });
}

Status CudaPageCopier::finish(Transfer transfer) {
  Slot* slot = nullptr;
  {
    const std::lock_guard lock(mutex_);
    slot = &slots_[transfer];
  }
  Status status = slot->status;
  if (status.ok()) status = cuda::use_device(device_);
  if (status.ok()) status = slot->done.synchronize();
  const std::lock_guard lock(mutex_);
  free_.push_back(transfer);
  return status;
}

Status CudaPageCopier::pin(std::span<std::byte> range) {
  ESP_RETURN_IF_ERROR(cuda::use_device(device_));
  return cuda::pin_memory(range.data(), std::ssize(range));
}

void CudaPageCopier::unpin(std::span<std::byte> range) {
  if (cuda::use_device(device_).ok()) cuda::unpin_memory(range.data());
}

Result<PageStaging*> CudaPageCopier::start_staging(int64_t bytes) {
  ESP_RETURN_IF_ERROR(cuda::use_device(device_));
  ESP_ASSIGN_OR_RETURN(staging_,
                       CudaPageStaging::create(runs_, planes_of_layers_, stages_steps_, bytes));
  return staging_.get();
}

Result<std::unique_ptr<MappedStaging>> CudaPageCopier::map_staging(const StagingHandle& handle) {
  ESP_RETURN_IF_ERROR(cuda::use_device(device_));
  return map_cuda_staging(runs_, handle);
}

Status CudaPageCopier::follow(const cuda::Stream& stream) {
  ESP_RETURN_IF_ERROR(followed_.record(stream));
  ESP_RETURN_IF_ERROR(reads_.wait(followed_));
  return writes_.wait(followed_);
}

}  // namespace espalier
