// What a stage of a pipeline on GPUs exchanges with the others: rows of hidden states with the next
// one, and the sampled tokens from the last one to the first. Copies and events on the stages' own
// streams; the host waits for nothing.
//
// One thread launches a step on all stages, the first one first, so an event is recorded before
// another stage's stream waits for it. At most Executor::kMaxInFlight steps are in flight, so
// memory is written again when its step has been waited for.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "base/status.h"
#include "engine/executor/executor.h"
#include "seams/forward_batch.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

// Memory of the sender's device that another device reads, for each step in flight.
class StageChannel {
 public:
  // On the thread's current device.
  static Result<StageChannel> create(int64_t size_bytes);
  // Enqueues a copy of what step `step` has made.
  Status send(uint64_t step, const void* from, int64_t size_bytes, const cuda::Stream& stream);
  // What the step has sent. Its send() has returned, or nothing was sent yet.
  Status receive(uint64_t step, void* to, int64_t size_bytes, const cuda::Stream& stream) const;

 private:
  struct Slot {
    cuda::DeviceBuffer memory;
    cuda::Event sent;
  };
  std::array<Slot, Executor::kMaxInFlight> slots_;
};

struct StageLinkConfig {
  bool last = false;
  int64_t row_bytes = 0;
  int32_t max_tokens = 0, max_slots = 0;
};

// One stage's side, for its executor. Not thread-safe.
class StageLink {
 public:
  // On the stage's device, which is the current one.
  static Result<std::unique_ptr<StageLink>> create(const StageLinkConfig& config);
  // before: of the stage before; null of the first one. last: of the stage that samples.
  void connect(const StageLink* before, const StageLink* last) { before_ = before, last_ = last; }

  bool samples() const { return config_.last; }
  // In front of the forward pass of `count` rows: they come to `rows`, or on the first stage the
  // tokens that steps before have sampled to slot_tokens.
  Status receive(const ForwardBatch& batch, void* rows, int32_t count, int32_t* slot_tokens,
                 const cuda::Stream& stream) const;
  // Behind it.
  Status send(uint64_t step, const void* rows, int32_t count, const cuda::Stream& stream);
  // Behind the sampling of the last stage; nothing on others.
  Status send_tokens(uint64_t step, const int32_t* slot_tokens, const cuda::Stream& stream);

 private:
  explicit StageLink(const StageLinkConfig& config) : config_(config) {}

  const StageLinkConfig config_;
  const StageLink* before_ = nullptr;
  const StageLink* last_ = nullptr;
  StageChannel rows_, tokens_;  // to the next stage; to the first one
};

}  // namespace espalier
