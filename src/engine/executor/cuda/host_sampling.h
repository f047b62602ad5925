// Samples of a GPU's step that the host draws: of requests whose sampling reads the order of the
// tokens so far, drops the likeliest tokens by chance (XTC), or calls an operator's processor.
//
// In the order of the step's stream the rows' logits are copied to pinned memory, a function of the
// host draws from them, and a kernel puts the tokens where the next step and the draft head read
// them. So steps are launched ahead as ever; the device waits while the host draws.
//
// Not thread-safe: the executor's thread enqueues. The host's functions run one after the other on
// a thread of the driver's, and end before the step is done; what they use of a slot changes only
// between the slot's steps. A step without such rows costs nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/executor/cuda/step_results.h"
#include "engine/sampling/history_rules.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/token_counts.h"
#include "seams/forward_batch.h"
#include "seams/step_result.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"
#include "tensor/work_pool.h"

namespace espalier {

class HostSampling {
 public:
  struct Limits {
    int32_t max_slots = 0;
    int32_t max_rows = 0;  // that a step samples
    int32_t vocab_size = 0;
    int32_t num_threads = 1;
    int32_t first_cpu = 0;  // WorkPool's
  };
  // One row of a step that the host samples.
  struct Row {
    size_t entry = 0;  // in the batch of rows
    int32_t row = 0;   // among the step's sampled rows
    SlotId slot = -1;
    int32_t output_index = 0;
    bool has_mask = false;
    Status status;
    TokenId token = -1;
    TokenLogprobs logprobs;
  };
  // What one step samples so. Stays where it is until the step is done.
  struct Step {
    // Rows [begin, end) whose logits are in the pinned block.
    struct Part {
      HostSampling* sampling = nullptr;
      Step* step = nullptr;
      size_t begin = 0, end = 0;
    };
    std::vector<Row> rows;
    std::deque<Part> parts;           // does not move what it holds
    cuda::PinnedBuffer tokens;        // [max_rows] int32; -1: the device has sampled the row
    const uint32_t* masks = nullptr;  // [sampled rows, mask_words], of the host; null: none
    int32_t mask_words = 0;

    bool any() const { return !rows.empty(); }
  };
  // What the device has of a step's samples.
  struct Device {
    const float* logits = nullptr;  // [rows, logits_stride]
    int64_t logits_stride = 0;
    const int32_t* row_slots = nullptr;
    int32_t* tokens = nullptr;       // [rows], where a draft head reads them; null: nowhere
    int32_t* slot_tokens = nullptr;  // [slots]
  };

  static Result<std::unique_ptr<HostSampling>> create(const Limits& limits);
  Status allocate(Step& step) const;

  // REQUIRES: no step in flight names the slot.
  void init(const SlotInit& init);
  // Lists the rows of the batch that the host samples.
  void begin(const ForwardBatch& rows, Step& step) const;
  // Enqueues the samples, behind those of the device. REQUIRES: step.any().
  Status enqueue(Step& step, int32_t num_rows, const Device& device, const cuda::Stream& stream);
  // Puts the samples of a step that is done in place of the device's, but for entries with a status
  // in `refused`.
  static void read(Step& step, const std::vector<Status>& refused, StepResult& result);

 private:
  struct Slot {
    std::shared_ptr<const SamplingSpec> spec;  // null: the device samples
    TokenCounts counts;
    TokenHistory history;
  };

  explicit HostSampling(const Limits& limits);
  void sample(const Step::Part& part);
  void sample_row(Sampler& sampler, std::span<const float> logits, const Step& step, Row& row);

  const Limits limits_;
  std::vector<Slot> slots_;
  WorkPool pool_;
  std::vector<Sampler> samplers_;  // of each thread
  cuda::PinnedBuffer logits_;      // of the rows of one part
};

}  // namespace espalier
