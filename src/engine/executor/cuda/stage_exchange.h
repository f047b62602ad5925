// What a stage's executor does around its part of a step: takes the rows of the stage before, gives
// its own to the next one, and passes sampled tokens from the last stage to the first.
//
// Not thread-safe: the executor's thread enqueues. Borrows what create() is given.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/executor/cuda/stage_link.h"
#include "models/cuda/decoder.h"
#include "seams/forward_batch.h"
#include "tensor/cuda/stream.h"

namespace espalier {

class StageExchange {
 public:
  // model: after reserve(). slot_tokens: what each slot sampled last, [max_slots], on its device.
  StageExchange(StageLink& link, const CudaDecoder& model, int32_t* slot_tokens, int32_t max_slots);

  bool is_last() const { return rows_.handed_on == nullptr; }

  // In front of the layers of a step of num_tokens rows, its padding included.
  Status begin(const ForwardBatch& batch, int32_t num_tokens, const cuda::Stream& stream);
  // Behind them.
  Status end(int32_t num_tokens, const cuda::Stream& stream);
  // Behind the sampling of a step that samples; nothing on other stages than the last one.
  Status send_tokens(uint64_t step, const cuda::Stream& stream);

 private:
  int64_t bytes(int32_t num_tokens) const { return num_tokens * row_bytes_; }
  Status await_tokens(const ForwardBatch& batch, const cuda::Stream& stream);

  StageLink& link_;
  const CudaDecoder::StageRows rows_;
  const int64_t row_bytes_;
  const int32_t* const slot_tokens_;
  std::vector<uint64_t> sampled_in_;  // of the first stage: of each slot its last step; 0: none
};

}  // namespace espalier
