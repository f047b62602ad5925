// The leader's executor: an executor on its own devices. Each step goes to the followers before the
// leader computes its part: on CPUs with its tokens, from the model; on GPUs when it is launched,
// and its tokens are what the ranks' devices have. Nothing above it knows of nodes.
//
// When a node is lost every step in flight, and every later one, fails all of its entries with the
// group's reason. Thread safety as Executor's.
#pragma once

#include <memory>
#include <mutex>

#include "engine/executor/executor.h"
#include "engine/nodes/node_part.h"
#include "nodes/node_group.h"
#include "nodes/step_codec.h"

namespace espalier {

// Sends steps to all followers. send() by one thread, add_copies() by another.
class StepSender {
 public:
  explicit StepSender(nodes::NodeGroup& group) : group_(group) {}
  // Copies that all nodes make before the next step.
  void add_copies(std::span<const PageId> from, std::span<const PageId> to);
  // A failure is the group's.
  void send(const ForwardBatch& batch, std::span<const TokenId> token_ids);

 private:
  nodes::NodeGroup& group_;
  nodes::StepEncoder encoder_;
  std::mutex mutex_;
  nodes::PageCopies pending_, sent_;
};

// The leader's part of a model. Weights stay as they are.
class LeaderModel final : public Model {
 public:
  LeaderModel(std::unique_ptr<Model> part, StepSender& sender)
      : part_(std::move(part)), sender_(sender) {}
  const ModelInfo& info() const override { return part_->info(); }
  Status reserve(int32_t max_tokens, int32_t max_entries) override {
    return part_->reserve(max_tokens, max_entries);
  }
  ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                        const KvView& kv, const InputLogitsSink& input_logits) override {
    sender_.send(batch, token_ids);
    return part_->forward(batch, token_ids, kv, input_logits);
  }
  std::vector<float> finish_pooled(std::span<const float> row) override {
    return part_->finish_pooled(row);
  }

 private:
  const std::unique_ptr<Model> part_;
  StepSender& sender_;
};

// What the executor owns beside the one that it wraps.
struct NodesExecutorParts {
  std::unique_ptr<NodePart> node;
  std::unique_ptr<StepSender> sender;
  std::unique_ptr<Executor> inner;  // on CPUs; last, for it uses all of the above
};

class NodesExecutor final : public Executor {
 public:
  explicit NodesExecutor(NodesExecutorParts parts) : parts_(std::move(parts)) {}

  void launch(const ForwardBatch& batch) override;
  void provide_masks(uint64_t step, const MaskView& masks) override {
    inner().provide_masks(step, masks);
  }
  const StepResult& wait(uint64_t step) override;
  Status copy_pages(std::span<const PageId> from, std::span<const PageId> to) override;
  MemoryPlan memory_plan() const override { return inner().memory_plan(); }
  int32_t draft_samples_max() const override { return inner().draft_samples_max(); }
  bool penalises_draft_tokens() const override { return inner().penalises_draft_tokens(); }
  int32_t chain_max() const override { return inner().chain_max(); }
  bool takes_lengths_from_slots() const override { return inner().takes_lengths_from_slots(); }

 private:
  Executor& inner() const { return parts_.inner ? *parts_.inner : parts_.node->gpu->executor(); }

  NodesExecutorParts parts_;
  StepResult failed_;
};

}  // namespace espalier
