// The thread of an executor on the host: takes launched steps in order and runs them one at a time.
// It contains the synchronisation of batches, masks and results; the executor brings the function
// that runs a step.
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

// launch(), provide_masks() and wait() have the contracts of Executor's and are called from one
// thread. The thread sleeps while no step is in flight. Owns results; borrows batches.
class StepThread {
 public:
  // Runs `batch` and writes `result`, whose step is set and whose entries are those of an earlier
  // step. Called on the thread of this class.
  using Run = std::function<void(const ForwardBatch& batch, StepResult& result)>;

  StepThread(std::string_view name, Run run);
  ~StepThread();  // runs all launched steps first
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

  void launch(const ForwardBatch& batch);
  void provide_masks(uint64_t step, const MaskView& masks);
  const StepResult& wait(uint64_t step);

  // Called from inside Run: blocks until the masks of this step have been provided, if one of its
  // entries has a mask. The view is valid until the next step runs. It is empty where the
  // destructor runs and the masks have not been provided.
  MaskView await_masks(const ForwardBatch& batch);

 private:
  // Results stay valid until the next wait while two further steps run: three slots.
  static constexpr uint64_t kNumSlots = Executor::kMaxInFlight + 1;
  struct InFlightSlot {
    const ForwardBatch* batch = nullptr;
    uint64_t masked_step = 0;  // the step of these masks
    std::vector<uint32_t> mask_words;
    int32_t words_per_mask = 0;
    StepResult result;
  };
  InFlightSlot& slot_of(uint64_t step) { return in_flight_slots_[step % kNumSlots]; }
  void work(std::string_view name);

  const Run run_;
  std::mutex mutex_;
  std::condition_variable launched_changed_, done_changed_, masks_changed_;
  // Step numbers, consecutive from the first: waited_ <= done_ <= launched_ <= waited_ + 2.
  uint64_t launched_ = 0, done_ = 0, waited_ = 0;
  bool stopping_ = false;
  InFlightSlot in_flight_slots_[kNumSlots];
  std::thread thread_;
};

}  // namespace espalier
