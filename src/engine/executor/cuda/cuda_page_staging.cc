#include "engine/executor/cuda/cuda_page_staging.h"

#include <algorithm>
#include <random>
#include <utility>

#include "kernels/page_copy/cuda.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {

constexpr int64_t kStagingBlockBytes = int64_t{32} << 20;
// A group of layers is one part in so many of those that are left: 32 layers make 10 groups, the
// last ones of one layer. Behind the last layer's keys a prompt's step computes one row, in less
// time than the copy of a large group takes.
constexpr size_t kStagedShare = 4;
// From where on a DMA unit is faster: between two H200s it moves copies of 4 MiB at 286 GB/s, the
// kernel the same pages at 325, and the unit those of 32 MiB at 375.
constexpr int64_t kDmaBytesMin = int64_t{16} << 20;

Status copy_nonce(StagingHandle& handle, const cuda::DeviceBuffer& memory,
                  const cuda::Stream& stream) {
  std::random_device device;
  for (uint8_t& byte : handle.nonce) byte = static_cast<uint8_t>(device());
  ESP_RETURN_IF_ERROR(
      cuda::copy_to_device(memory.data(), handle.nonce.data(), handle.nonce.size(), stream));
  return stream.synchronize();
}

}  // namespace

class CudaPageStaging::Pages final : public StagedPages {
 public:
  Pages(CudaPageStaging& staging, std::shared_ptr<Copies> copies)
      : staging_(staging), copies_(std::move(copies)) {}

  std::span<const StagedPart> parts() const override { return copies_->parts; }
  int32_t num_ranges() const override { return static_cast<int32_t>(copies_->ranges.size()); }
  Result<PlaneRange> wait(int32_t range) override {
    const auto index = static_cast<size_t>(range);
    {
      std::unique_lock lock(staging_.mutex_);
      staging_.changed_.wait(
          lock, [&] { return index < copies_->num_enqueued || !copies_->status.ok(); });
      ESP_RETURN_IF_ERROR(copies_->status);
    }
    ESP_RETURN_IF_ERROR(cuda::use_device(staging_.device_));
    ESP_RETURN_IF_ERROR(copies_->done[index].synchronize());
    return copies_->ranges[index];
  }
  Status read(const StagedPart& part, int32_t page, std::span<std::byte> to) override {
    return staging_.read(part, page, to);
  }

 private:
  CudaPageStaging& staging_;
  const std::shared_ptr<Copies> copies_;  // shared with the executor's thread
};

Result<std::unique_ptr<CudaPageStaging>> CudaPageStaging::create(
    std::vector<PlaneRun> runs, std::span<const int32_t> planes_of_layers, bool stages_steps,
    int64_t bytes) {
  std::unique_ptr<CudaPageStaging> staging(new CudaPageStaging);
  staging->stages_steps_ = stages_steps;
  staging->device_ = cuda::current_device();
  staging->runs_ = std::move(runs);
  staging->all_planes_ = {0, num_planes(staging->runs_)};
  int32_t plane = 0;
  for (size_t layer = 0; layer < planes_of_layers.size();) {
    const int32_t begin = plane;
    const size_t left = planes_of_layers.size() - layer;
    for (const size_t end = layer + (left + kStagedShare - 1) / kStagedShare; layer < end; ++layer)
      plane += planes_of_layers[layer];
    staging->ranges_.push_back({begin, plane});
    staging->last_layer_.push_back(static_cast<int32_t>(layer) - 1);
  }
  ESP_ASSIGN_OR_RETURN(staging->memory_,
                       cuda::DeviceBuffer::allocate(bytes, "pages on their way to decode servers"));
  staging->blocks_ =
      std::make_unique<StagingBlocks>(bytes, kStagingBlockBytes, bytes_of_page(staging->runs_));
  // Where copies on one device take multiprocessors, they come before the next GEMM's blocks.
  ESP_ASSIGN_OR_RETURN(staging->copies_, cuda::Stream::create(/*urgent=*/true));
  ESP_ASSIGN_OR_RETURN(staging->reads_, cuda::Stream::create());
  ESP_ASSIGN_OR_RETURN(staging->appended_, cuda::Event::create());
  ESP_ASSIGN_OR_RETURN(staging->last_, cuda::Event::create());
  staging->handle_.kind = "cuda-ipc";
  ESP_ASSIGN_OR_RETURN(staging->handle_.bytes, cuda::share_memory(staging->memory_));
  ESP_RETURN_IF_ERROR(copy_nonce(staging->handle_, staging->memory_, staging->copies_));
  return staging;
}

CudaPageStaging::~CudaPageStaging() {
  for (const cuda::Stream* stream : {&copies_, &reads_})
    if (stream->get() != nullptr) static_cast<void>(stream->synchronize());
}

// Null where no block is free.
std::shared_ptr<CudaPageStaging::Copies> CudaPageStaging::make_copies(
    std::span<const PageId> pages, std::span<const PlaneRange> ranges) {
  std::vector<StagedPart> parts = blocks_->take(static_cast<int32_t>(pages.size()));
  if (parts.empty()) return nullptr;
  auto copies = std::make_shared<Copies>(*blocks_, std::move(parts));
  size_t count = 0;
  for (const StagedPart& part : copies->parts) count += static_cast<size_t>(part.num_pages);
  copies->pages.assign(pages.begin(), pages.begin() + static_cast<std::ptrdiff_t>(count));
  copies->ranges.assign(ranges.begin(), ranges.end());
  copies->done.resize(ranges.size());
  return copies;
}

// The copies of the next range, behind what copies_ waits for by now.
Status CudaPageStaging::enqueue(Copies& copies) {
  const size_t range = copies.num_enqueued;  // changed by this thread alone
  ESP_RETURN_IF_ERROR(copy_parts(
      runs_, copies.parts, copies.ranges[range], copies.pages, [&](const StagedRows& rows) {
        return cuda::copy_rows_on_devices({.to = memory_.data() + rows.staged,
                                           .to_pitch = rows.staged_pitch,
                                           .from = rows.pages,
                                           .from_pitch = rows.pages_pitch,
                                           .row_bytes = rows.row_bytes,
                                           .num_rows = rows.num_rows},
                                          copies_);
      }));
  ESP_ASSIGN_OR_RETURN(copies.done[range], cuda::Event::create());
  ESP_RETURN_IF_ERROR(copies.done[range].record(copies_));
  has_new_copies_ = true;
  return last_.record(copies_);
}

// Readers wait for the range, or learn why it does not come.
void CudaPageStaging::report(Copies& copies, const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (status.ok())
      ++copies.num_enqueued;
    else
      copies.status = status;
  }
  changed_.notify_all();
}

std::unique_ptr<StagedPages> CudaPageStaging::stage(std::span<const PageId> pages) {
  auto copies = make_copies(pages, std::span(&all_planes_, 1));
  if (copies == nullptr) return nullptr;
  Status status = cuda::use_device(device_);
  if (status.ok()) status = enqueue(*copies);
  report(*copies, status);
  return std::make_unique<Pages>(*this, std::move(copies));
}

std::unique_ptr<StagedPages> CudaPageStaging::stage_next_step(std::span<const PageId> pages) {
  if (!stages_steps_) return nullptr;
  auto copies = make_copies(pages, ranges_);
  if (copies == nullptr) return nullptr;
  awaiting_.push_back(copies);
  return std::make_unique<Pages>(*this, std::move(copies));
}

Status CudaPageStaging::precede(const cuda::Stream& step) {
  return std::exchange(has_new_copies_, false) ? step.wait(last_) : Status();
}

// The next range of all that await the step, behind what the step's stream has by now.
Status CudaPageStaging::enqueue_awaiting(const cuda::Stream& step) {
  Status status = appended_.record(step);
  if (status.ok()) status = copies_.wait(appended_);
  for (const auto& copies : awaiting_) {
    if (status.ok()) status = enqueue(*copies);
    report(*copies, status);
  }
  return status;
}

Status CudaPageStaging::on_append(int32_t layer, const cuda::Stream& step) {
  if (awaiting_.empty()) return {};
  const size_t next = awaiting_.front()->num_enqueued;
  if (next >= ranges_.size() || layer != last_layer_[next]) return {};
  return enqueue_awaiting(step);
}

Status CudaPageStaging::end_step(const Status& step_status, const cuda::Stream& step) {
  Status status = step_status;
  while (status.ok() && !awaiting_.empty() && awaiting_.front()->num_enqueued < ranges_.size())
    status = enqueue_awaiting(step);
  if (!status.ok())
    for (const auto& copies : awaiting_) report(*copies, status);
  awaiting_.clear();
  return status;
}

Status CudaPageStaging::read(const StagedPart& part, int32_t page, std::span<std::byte> to) const {
  ESP_RETURN_IF_ERROR(cuda::use_device(device_));
  std::byte* from = memory_.data() + part.block;
  std::byte* at = to.data();
  for (const PlaneRun& run : runs_) {
    const cuda::DeviceRows rows{.first = from + page * run.page_bytes,
                                .pitch = part.block_pages * run.page_bytes,
                                .row_bytes = run.page_bytes,
                                .num_rows = run.num_planes};
    ESP_RETURN_IF_ERROR(cuda::copy_rows_to_host(at, rows, reads_));
    at += run.bytes();
    from += part.block_pages * run.bytes();
  }
  return reads_.synchronize();
}

namespace {

class MappedCudaStaging final : public MappedStaging {
 public:
  MappedCudaStaging(std::vector<PlaneRun> runs, cuda::SharedMemory memory, cuda::Stream stream)
      : device_(cuda::current_device()),
        runs_(std::move(runs)),
        page_bytes_(bytes_of_page(runs_)),
        memory_(std::move(memory)),
        stream_(std::move(stream)) {}
  MappedCudaStaging(const MappedCudaStaging&) = delete;
  MappedCudaStaging& operator=(const MappedCudaStaging&) = delete;
  ~MappedCudaStaging() override { static_cast<void>(cuda::use_device(device_)); }  // unmaps

  Status take(std::span<const StagedPart> parts, PlaneRange planes,
              std::span<const PageId> pages) override {
    ESP_RETURN_IF_ERROR(check_parts(parts, pages.size(), page_bytes_, memory_.size_bytes()));
    ESP_RETURN_IF_ERROR(cuda::use_device(device_));
    const Status copied = enqueue(parts, planes, pages);
    const Status done = stream_.synchronize();
    return copied.ok() ? done : copied;
  }

 private:
  // Neighbouring pages by the DMA units; scattered ones, of which each would be a copy of its own,
  // by a kernel.
  Status enqueue(std::span<const StagedPart> parts, PlaneRange planes,
                 std::span<const PageId> pages) const {
    std::vector<kernels::cuda::CopyRowsArgs::Rows> copies;
    StagedRows first;
    const auto flush = [&] {
      const Status status = kernels::cuda::copy_rows({.copies = copies,
                                                      .from_pitch = first.staged_pitch,
                                                      .to_pitch = first.pages_pitch,
                                                      .row_bytes = first.page_bytes,
                                                      .num_rows = first.num_rows},
                                                     {.stream = stream_.get()});
      copies.clear();
      return status;
    };
    const auto copy = [&](const StagedRows& rows) -> Status {
      const std::byte* const from = memory_.data() + rows.staged;
      if (rows.row_bytes * rows.num_rows >= kDmaBytesMin || rows.page_bytes % 16 != 0)
        return cuda::copy_rows_on_devices({.to = rows.pages,
                                           .to_pitch = rows.pages_pitch,
                                           .from = from,
                                           .from_pitch = rows.staged_pitch,
                                           .row_bytes = rows.row_bytes,
                                           .num_rows = rows.num_rows},
                                          stream_);
      const bool joins = rows.staged_pitch == first.staged_pitch &&
                         rows.pages_pitch == first.pages_pitch &&
                         rows.page_bytes == first.page_bytes && rows.num_rows == first.num_rows;
      if (!copies.empty() && !joins) ESP_RETURN_IF_ERROR(flush());
      if (copies.empty()) first = rows;
      for (int64_t at = 0; at < rows.row_bytes; at += rows.page_bytes)
        copies.push_back({from + at, rows.pages + at});
      return {};
    };
    ESP_RETURN_IF_ERROR(copy_parts(runs_, parts, planes, pages, copy));
    return copies.empty() ? Status() : flush();
  }

  const int32_t device_;
  const std::vector<PlaneRun> runs_;
  const int64_t page_bytes_;
  const cuda::SharedMemory memory_;
  const cuda::Stream stream_;
};

}  // namespace

// The handle comes from another process: the nonce shows that it opened that process's memory.
Result<std::unique_ptr<MappedStaging>> map_cuda_staging(std::vector<PlaneRun> runs,
                                                        const StagingHandle& handle) {
  if (handle.kind != "cuda-ipc")
    return fail(invalid_argument("staging memory of kind '{}' is not a GPU's", handle.kind));
  ESP_ASSIGN_OR_RETURN(cuda::SharedMemory memory, cuda::SharedMemory::open(handle.bytes));
  ESP_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::create());
  decltype(handle.nonce) nonce{};
  if (memory.size_bytes() < kStagingHeadBytes)
    return fail(error(StatusCode::kUnavailable, "a handle of staging memory opens another one"));
  ESP_RETURN_IF_ERROR(cuda::copy_to_host(nonce.data(), memory.data(), nonce.size(), stream));
  ESP_RETURN_IF_ERROR(stream.synchronize());
  if (nonce != handle.nonce)
    return fail(error(StatusCode::kUnavailable, "a handle of staging memory opens another one"));
  return std::make_unique<MappedCudaStaging>(std::move(runs), std::move(memory), std::move(stream));
}

}  // namespace espalier
