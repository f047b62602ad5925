// The thread behind an executor: takes launched steps in order and runs them one at a time. The
// hand-over of batches, masks and results is here once; what a step does is the executor's.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/executor/executor.h"

namespace espalier {

// launch, provide_masks and wait are Executor's, called from one thread. An idle thread is parked.
class StepThread {
 public:
  // Runs `batch` into `result` (its step is set; entries are as the last use left them), on this
  // thread.
  using Run = std::function<void(const ForwardBatch& batch, StepResult& result)>;

  StepThread(std::string_view name, Run run);
  ~StepThread();  // what was launched is run first
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

  void launch(const ForwardBatch& batch);
  void provide_masks(uint64_t step, const MaskView& masks);
  const StepResult& wait(uint64_t step);

  // From inside run: blocks until the masks of this step are there, if one of its entries has one.
  // Valid until the next step runs. When the executor is being destroyed they may never come: the
  // view is then empty.
  MaskView await_masks(const ForwardBatch& batch);

 private:
  // Results stay valid until the next wait while two further steps run: three slots.
  static constexpr uint64_t kNumSlots = Executor::kMaxInFlight + 1;
  struct InFlightSlot {
    const ForwardBatch* batch = nullptr;
    uint64_t masked_step = 0;  // whose masks these are
    std::vector<uint32_t> mask_words;
    int32_t words_per_mask = 0;
    StepResult result;
  };
  InFlightSlot& slot_of(uint64_t step) { return in_flight_slots_[step % kNumSlots]; }
  void work(std::string_view name);

  const Run run_;
  std::mutex mutex_;
  std::condition_variable launched_changed_, done_changed_, masks_changed_;
  // done_ <= waited-for + kMaxInFlight; done_ <= launched_. Steps are consecutive from the first.
  uint64_t launched_ = 0, done_ = 0, waited_ = 0;
  bool stopping_ = false;
  InFlightSlot in_flight_slots_[kNumSlots];
  std::thread thread_;
};

}  // namespace espalier
