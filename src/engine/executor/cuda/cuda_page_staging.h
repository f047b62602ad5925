// Staging memory on a GPU, which other processes of the host map by CUDA IPC: pages are copied on
// the device, on a stream of their own, and read from there over NVLink or PCIe.
//
// Order. stage() copies what a step has written that was waited for. stage_next_step() copies each
// group of layers behind an event that the step's stream records when it has computed them. Steps
// that are launched later wait on the device for the copies (precede()), for they may write the
// pages.
//
// For the executor's thread; staged pages are for one thread each.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "cache/page_copier.h"
#include "cache/page_staging.h"
#include "seams/staged_pages.h"
#include "tensor/cuda/ipc.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

class CudaPageStaging final : public PageStaging {
 public:
  // On the thread's current device, of `bytes`. planes_of_layers: how many each layer has.
  // stages_steps: stage_next_step() stages. kUnavailable where the system shares no device memory.
  static Result<std::unique_ptr<CudaPageStaging>> create(std::vector<PlaneRun> runs,
                                                         std::span<const int32_t> planes_of_layers,
                                                         bool stages_steps, int64_t bytes);
  // REQUIRES that no staged pages are left.
  ~CudaPageStaging() override;

  const StagingHandle& handle() const override { return handle_; }
  std::unique_ptr<StagedPages> stage(std::span<const PageId> pages) override;
  std::unique_ptr<StagedPages> stage_next_step(std::span<const PageId> pages) override;

  // --- Around the kernels of a step, which the caller enqueues on `step`.
  Status precede(const cuda::Stream& step);
  bool awaits_step() const { return !awaiting_.empty(); }
  // The step has computed the layer's keys and values.
  Status on_append(int32_t layer, const cuda::Stream& step);
  // All of the step has been enqueued, or it has failed: nothing awaits it any more.
  Status end_step(const Status& step_status, const cuda::Stream& step);

 private:
  class Pages;
  // What staged pages and the executor's thread share of one copy: whichever is last gives back the
  // blocks, so that a copy that awaits its step writes into no block of another.
  struct Copies {
    Copies(StagingBlocks& b, std::vector<StagedPart> p) : blocks(b), parts(std::move(p)) {}
    Copies(const Copies&) = delete;
    Copies& operator=(const Copies&) = delete;
    ~Copies() { blocks.give_back(parts); }

    StagingBlocks& blocks;
    const std::vector<StagedPart> parts;
    std::vector<PageId> pages;
    std::vector<PlaneRange> ranges;
    std::vector<cuda::Event> done;  // by range
    size_t num_enqueued = 0;        // ranges; under mutex_, as is status
    Status status;
  };
  CudaPageStaging() = default;
  std::shared_ptr<Copies> make_copies(std::span<const PageId> pages,
                                      std::span<const PlaneRange> ranges);
  Status enqueue(Copies& copies);
  Status enqueue_awaiting(const cuda::Stream& step);
  void report(Copies& copies, const Status& status);
  Status read(const StagedPart& part, int32_t page, std::span<std::byte> to) const;

  int32_t device_ = 0;
  bool stages_steps_ = false;
  std::vector<PlaneRun> runs_;
  PlaneRange all_planes_;
  std::vector<PlaneRange> ranges_;   // groups of layers
  std::vector<int32_t> last_layer_;  // of each group
  StagingHandle handle_;
  cuda::DeviceBuffer memory_;
  std::unique_ptr<StagingBlocks> blocks_;
  cuda::Stream copies_, reads_;
  cuda::Event appended_, last_;
  bool has_new_copies_ = false;  // that no step has waited for
  std::vector<std::shared_ptr<Copies>> awaiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// kUnavailable where the handle opens nothing here: its process has ended, runs on another host or
// in another container, or on a GPU that this one does not reach. On the thread's current device.
Result<std::unique_ptr<MappedStaging>> map_cuda_staging(std::vector<PlaneRun> runs,
                                                        const StagingHandle& handle);

}  // namespace espalier
