// What requests leave on the device between their steps: sampling parameters, counts of tokens
// seen, the token sampled last.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "kernels/sampling/cuda.h"
#include "seams/forward_batch.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

// Not thread-safe.
class SlotTable {
 public:
  // Entries of logit_bias and of banned_before_min that a request may bring here.
  static constexpr int32_t kMostBias = 4096;
  static constexpr int32_t kMostBanned = 256;

  static Result<SlotTable> create(int32_t max_slots, int32_t vocab_size);

  // Sets a slot up, behind what is on the stream. A request that asks for more than there is room
  // for gets a status, which its entries then fail with.
  Status init(const SlotInit& init, const cuda::Stream& stream);

  const SamplingSpec& spec(SlotId slot) const { return *slots_[static_cast<size_t>(slot)].spec; }
  const Status& status(SlotId slot) const { return slots_[static_cast<size_t>(slot)].status; }
  const kernels::cuda::SlotSampling* sampling() const { return sampling_; }
  int32_t* tokens() const { return tokens_; }
  int64_t device_bytes() const { return block_.size_bytes(); }

 private:
  struct Slot {
    std::shared_ptr<const SamplingSpec> spec;
    Status status;
  };
  SlotTable() = default;
  void lay_out(cuda::Arena& arena, int64_t max_slots);
  Status copy_lists(const SamplingSpec& spec, size_t slot, kernels::cuda::SlotSampling& out,
                    const cuda::Stream& stream);
  Status copy_counts(const SlotInit& init, kernels::cuda::SlotSampling& out,
                     const cuda::Stream& stream);

  int32_t vocab_size_ = 0;
  std::vector<Slot> slots_;
  cuda::DeviceBuffer block_;
  kernels::cuda::SlotSampling* sampling_ = nullptr;  // [max_slots]
  int32_t* tokens_ = nullptr;                        // [max_slots]
  int32_t* bias_ids_ = nullptr;                      // [max_slots, kMostBias]
  float* bias_values_ = nullptr;                     // [max_slots, kMostBias]
  int32_t* banned_ids_ = nullptr;                    // [max_slots, kMostBanned]
  uint16_t* counts_ = nullptr;                       // [max_slots, vocab_size]
};

}  // namespace espalier
