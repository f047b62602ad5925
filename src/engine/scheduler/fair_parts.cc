#include "engine/scheduler/fair_parts.h"

#include <algorithm>

namespace espalier {

FairParts::FairParts(const RunningSet& running, int32_t num_pages, const WaitingShare* asking)
    : running_(running) {
  for (const Sequence* s : running.slots()) {
    if (s == nullptr || s->queue.share == nullptr) continue;
    if (s->state != SequenceState::kRunning && s->state != SequenceState::kLoading) continue;
    Usage& usage = usage_[s->queue.share];
    ++usage.num_slots;
    usage.num_pages += s->kv.pages.num_pages();
  }
  if (asking != nullptr) usage_.try_emplace(asking);
  const auto num_shares = std::max<int32_t>(1, static_cast<int32_t>(usage_.size()));
  slots_part_ = std::max<int32_t>(1, static_cast<int32_t>(running.slots().size()) / num_shares);
  pages_part_ = std::max<int32_t>(1, num_pages / num_shares);
}

FairParts::Usage FairParts::usage_of(const WaitingShare* share) const {
  const auto found = usage_.find(share);
  return found == usage_.end() ? Usage() : found->second;
}

bool FairParts::exceeds(const WaitingShare* share) const { return exceeds(usage_of(share)); }

bool FairParts::may_take(const WaitingShare* share, int32_t num_pages) const {
  const Usage usage = usage_of(share);
  return usage.num_slots == 0 ||
         (usage.num_slots < slots_part_ && usage.num_pages + num_pages <= pages_part_);
}

std::vector<Sequence*> FairParts::preemptible(int32_t preemptions_max) const {
  std::vector<Sequence*> victims;
  std::map<const WaitingShare*, Usage> left = usage_;
  const std::span<Sequence* const> running = running_.running();
  for (auto it = running.rbegin(); it != running.rend(); ++it) {
    Sequence& s = **it;
    Usage& usage = left[s.queue.share];
    if (!exceeds(usage)) continue;
    if (usage.num_slots == 1 && s.preemption.count >= preemptions_max) continue;
    --usage.num_slots;
    usage.num_pages -= s.kv.pages.num_pages();
    victims.push_back(&s);
  }
  return victims;
}

}  // namespace espalier
