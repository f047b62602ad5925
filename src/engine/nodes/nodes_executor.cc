#include "engine/nodes/nodes_executor.h"

namespace espalier {
namespace {

constexpr Duration kSendWait = std::chrono::seconds(60);

}  // namespace

void StepSender::add_copies(std::span<const PageId> from, std::span<const PageId> to) {
  const std::lock_guard lock(mutex_);
  pending_.from.insert(pending_.from.end(), from.begin(), from.end());
  pending_.to.insert(pending_.to.end(), to.begin(), to.end());
}

void StepSender::send(const ForwardBatch& batch, std::span<const TokenId> token_ids) {
  {
    const std::lock_guard lock(mutex_);
    std::swap(pending_, sent_);
    pending_.from.clear();
    pending_.to.clear();
  }
  if (!group_.ok()) return;
  const std::string_view payload = encoder_.encode(batch, token_ids, sent_);
  for (int32_t i = 0; i < group_.num_links(); ++i) {
    const Status status = group_.link(i).send(nodes::MessageType::kStep, payload, kSendWait);
    if (!status.ok()) return static_cast<void>(group_.set_broken(status));
  }
}

void NodesExecutor::launch(const ForwardBatch& batch) {
  if (parts_.node->gpu) parts_.sender->send(batch, batch.token_ids);
  inner().launch(batch);
}

const StepResult& NodesExecutor::wait(uint64_t step) {
  const StepResult& result = inner().wait(step);
  const nodes::NodeGroup& group = *parts_.node->group;
  if (group.ok()) return result;
  failed_ = result;
  const Status why = group.status();
  for (EntryResult& entry : failed_.entries) entry.status = why;
  return failed_;
}

// The next step may be one that was launched before this call: it touches none of these pages.
Status NodesExecutor::copy_pages(std::span<const PageId> from, std::span<const PageId> to) {
  parts_.sender->add_copies(from, to);
  return inner().copy_pages(from, to);
}

}  // namespace espalier
