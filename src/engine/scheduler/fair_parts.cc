#include "engine/scheduler/fair_parts.h"

#include <algorithm>

namespace espalier {

FairParts::FairParts(const RunningSet& running, int32_t num_pages, const WaitingShare* asking)
    : running_(running) {
  for (const Sequence* s : running.slots()) {
    if (s == nullptr || s->queue.share == nullptr) continue;
    if (s->state != SequenceState::kRunning && s->state != SequenceState::kLoading) continue;
    Held& held = held_[s->queue.share];
    ++held.num_slots;
    held.num_pages += s->kv.pages.num_pages();
  }
  if (asking != nullptr) held_.try_emplace(asking);
  const auto num_shares = std::max<int32_t>(1, static_cast<int32_t>(held_.size()));
  slots_part_ = std::max<int32_t>(1, static_cast<int32_t>(running.slots().size()) / num_shares);
  pages_part_ = std::max<int32_t>(1, num_pages / num_shares);
}

FairParts::Held FairParts::held_by(const WaitingShare* share) const {
  const auto found = held_.find(share);
  return found == held_.end() ? Held() : found->second;
}

bool FairParts::exceeds(const WaitingShare* share) const { return exceeds(held_by(share)); }

bool FairParts::may_take(const WaitingShare* share, int32_t num_pages) const {
  const Held held = held_by(share);
  return held.num_slots == 0 ||
         (held.num_slots < slots_part_ && held.num_pages + num_pages <= pages_part_);
}

std::vector<Sequence*> FairParts::preemptible(int32_t preemptions_max) const {
  std::vector<Sequence*> victims;
  std::map<const WaitingShare*, Held> left = held_;
  const std::span<Sequence* const> running = running_.running();
  for (auto it = running.rbegin(); it != running.rend(); ++it) {
    Sequence& s = **it;
    Held& held = left[s.queue.share];
    if (!exceeds(held)) continue;
    if (held.num_slots == 1 && s.preemption.count >= preemptions_max) continue;
    --held.num_slots;
    held.num_pages -= s.kv.pages.num_pages();
    victims.push_back(&s);
  }
  return victims;
}

}  // namespace espalier
