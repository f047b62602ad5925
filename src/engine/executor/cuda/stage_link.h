// What a stage of a pipeline on a GPU exchanges with its neighbours, from device to device: rows of
// hidden states go to the next stage, and what the last stage samples goes to the first one, whose
// next step begins with it. Where stages have several ranks, each rank of a stage is connected to
// the same rank of its neighbours, for all ranks have the same rows.
//
// All calls enqueue on the calling stage's stream and wait for nothing. A stage copies its rows
// into an inbox of the next stage's device as soon as a buffer of that inbox is free, so it is
// ahead of the next stage by up to kBuffers micro-batches.
//
// Not thread-safe. The stages' parts of a step are enqueued in the order of the stages, step after
// step: an event is then recorded before another stage waits for it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

struct StageLinkConfig {
  std::vector<int32_t> devices;  // of each stage, open; several stages may have the same one
  int64_t rows_bytes = 0;        // the most that a step hands on
  int32_t max_slots = 0;
  int32_t max_in_flight = 1;  // steps
};

class StageLink {
 public:
  static constexpr uint64_t kBuffers = 2;  // of an inbox

  // By stage; connected to each other, so they live and end together. GPUs without peer access
  // exchange through the host's memory.
  static Result<std::vector<std::unique_ptr<StageLink>>> create(const StageLinkConfig& config);

  // Rows of the stage before become `rows`, on this stage's device. REQUIRES: not the first stage.
  Status receive(void* rows, int64_t size_bytes, const cuda::Stream& stream);
  // REQUIRES: not the last stage.
  Status send(const void* rows, int64_t size_bytes, const cuda::Stream& stream);

  // Where the first stage keeps the token that each slot sampled last, [max_slots].
  void set_slot_tokens(int32_t* tokens) { slot_tokens_ = tokens; }
  // Of the last stage: what slots have sampled up to this step, [max_slots], goes to the first one.
  Status send_tokens(uint64_t step, const int32_t* tokens, const cuda::Stream& stream);
  // Of the first stage: what is enqueued from here on finds the tokens that were sampled up to this
  // step. REQUIRES: the step samples, and has been enqueued on all stages.
  Status await_tokens(uint64_t step, const cuda::Stream& stream) const;

  int64_t device_bytes() const { return inbox_.size_bytes(); }

 private:
  StageLink(int32_t device, int32_t max_slots) : device_(device), max_slots_(max_slots) {}
  Status allocate(int64_t rows_bytes, int32_t sender);
  cuda::DeviceBytes buffer(uint64_t index) const {
    return {inbox_.data() + static_cast<int64_t>(index % kBuffers) * buffer_bytes_, device_};
  }

  const int32_t device_;
  const int32_t max_slots_;
  StageLink* next_ = nullptr;  // of the last stage the first one
  int64_t buffer_bytes_ = 0;
  cuda::DeviceBuffer inbox_;  // of the first stage empty
  // Events belong to the device of the stream that records them: `arrived_` to the sender's.
  std::array<cuda::Event, kBuffers> arrived_, taken_;
  uint64_t num_sent_ = 0;  // by the stage before
  uint64_t num_received_ = 0;
  int32_t* slot_tokens_ = nullptr;
  // Of the first stage, recorded by the last one: by step, for those in flight.
  std::vector<cuda::Event> tokens_sent_;
};

}  // namespace espalier
