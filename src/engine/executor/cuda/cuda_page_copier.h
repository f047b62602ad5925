// Copies pages of a GPU's cache by its DMA units, on a stream for each direction, beside the steps.
// All planes of a page move in one copy of rows where their distances allow it.
//
// Order. What a step writes is saved, and what is loaded is read, after the host has waited for the
// step or the transfer, so streams need no events for it. What else writes or reads pages on the
// device without such a wait has follow() called behind it.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cache/page_copier.h"
#include "engine/executor/cuda/cuda_page_staging.h"
#include "tensor/cuda/stream.h"

namespace espalier {

class CudaPageCopier final : public PageCopier {
 public:
  // Of planes on the thread's current device, which outlive it. kUnimplemented as plane_runs().
  // stages_steps: a step's forward pass writes all layers of its tokens, so that they can be staged
  // one by one (PageStaging::stage_next_step).
  static Result<std::unique_ptr<CudaPageCopier>> create(const KvView& view,
                                                        bool stages_steps = false);
  ~CudaPageCopier() override;  // waits for transfers in progress

  int64_t page_bytes() const override { return page_bytes_; }
  std::string device_name() const override { return device_name_; }
  Transfer begin_read(PageId page, std::span<std::byte> to) override;
  Transfer begin_write(PageId page, std::span<const std::byte> from) override;
  Status finish(Transfer transfer) override;

  bool uses_pinned_memory() const override { return true; }
  Status pin(std::span<std::byte> range) override;
  void unpin(std::span<std::byte> range) override;

  Result<PageStaging*> start_staging(int64_t bytes) override;
  std::string staging_kind() const override { return "cuda-ipc"; }
  Result<std::unique_ptr<MappedStaging>> map_staging(const StagingHandle& handle) override;
  CudaPageStaging* staging() const { return staging_.get(); }  // null: it has not been started

  // Transfers that begin from here on run after what is enqueued on `stream` now. For one thread.
  Status follow(const cuda::Stream& stream);

 private:
  struct Slot {
    cuda::Event done;
    Status status;  // of what was enqueued
  };
  CudaPageCopier() = default;
  Slot& take_slot(Transfer& transfer);
  template <typename CopyRun>
  Transfer begin(const cuda::Stream& stream, const CopyRun& copy_run);

  int32_t device_ = 0;
  std::string device_name_;
  std::vector<PlaneRun> runs_;
  std::vector<int32_t> planes_of_layers_;
  bool stages_steps_ = false;
  int64_t page_bytes_ = 0;
  cuda::Stream reads_, writes_;  // several threads' calls may come in any order
  cuda::Event followed_;
  std::mutex mutex_;        // of what follows
  std::deque<Slot> slots_;  // by transfer; as many as have been in progress at a time
  std::vector<Transfer> free_;
  std::unique_ptr<CudaPageStaging> staging_;
};

}  // namespace espalier
