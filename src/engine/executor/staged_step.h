// A step of an executor whose devices are stages of a pipeline: the micro-batches that it is run
// as, each a step of the stages, and its result, made of theirs.
//
// Not thread-safe. Vectors keep their capacity from step to step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "models/micro_batches.h"
#include "seams/forward_batch.h"
#include "seams/step_result.h"

namespace espalier {

class StagedStep {
 public:
  explicit StagedStep(const MicroBatches& how) : micro_batches_(how) {}

  // batch: alive until the last add(). first_step: the first micro-batch's number.
  void begin(const ForwardBatch& batch, int32_t page_size, uint64_t first_step);

  size_t size() const { return micro_batches_.size(); }
  const ForwardBatch& micro_batch(size_t index) const { return micro_batches_[index].batch; }
  // The result of a micro-batch, in their order, each once.
  void add(size_t index, const StepResult& part);
  // Every entry fails with this status, whatever add() brought.
  void fail(const Status& status);
  // Complete after the last add(); valid until begin().
  const StepResult& result() const { return result_; }

 private:
  MicroBatches micro_batches_;
  const ForwardBatch* batch_ = nullptr;
  StepResult result_;
};

}  // namespace espalier
