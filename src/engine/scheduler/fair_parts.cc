#include "engine/scheduler/fair_parts.h"

#include <algorithm>

#include "engine/scheduler/wait_queue.h"

namespace espalier {

FairParts::FairParts(const RunningSet& running, int32_t num_pages, const WaitingShare* asking)
    : running_(running), num_pages_(num_pages) {
  for (const Sequence* s : running.slots()) {
    if (s == nullptr || s->queue.share == nullptr) continue;
    if (s->state != SequenceState::kRunning && s->state != SequenceState::kLoading) continue;
    Usage& usage = usage_[s->queue.share];
    ++usage.num_slots;
    usage.num_pages += s->kv.pages.num_pages();
  }
  if (asking != nullptr) usage_.try_emplace(asking);
  for (const auto& [share, usage] : usage_) weight_ += share->weight;
}

FairParts::Usage FairParts::part_of(const WaitingShare* share) const {
  const double part = share->weight / weight_;
  const auto of = [part](size_t whole) {
    return std::max(1, static_cast<int32_t>(static_cast<double>(whole) * part));
  };
  return {.num_slots = of(running_.slots().size()),
          .num_pages = of(static_cast<size_t>(num_pages_))};
}

FairParts::Usage FairParts::usage_of(const WaitingShare* share) const {
  const auto found = usage_.find(share);
  return found == usage_.end() ? Usage() : found->second;
}

bool FairParts::exceeds(const WaitingShare* share) const { return exceeds(share, usage_of(share)); }

bool FairParts::may_take(const WaitingShare* share, int32_t num_pages) const {
  const Usage usage = usage_of(share), part = part_of(share);
  return usage.num_slots == 0 || (usage.num_slots < part.num_slots - slack_of(part.num_slots) &&
                                  usage.num_pages + num_pages <= part.num_pages);
}

std::vector<Sequence*> FairParts::preemptible(int32_t preemptions_max) const {
  std::vector<Sequence*> victims;
  std::map<const WaitingShare*, Usage> left = usage_;
  const std::span<Sequence* const> running = running_.running();
  for (auto it = running.rbegin(); it != running.rend(); ++it) {
    Sequence& s = **it;
    Usage& usage = left[s.queue.share];
    if (!exceeds(s.queue.share, usage)) continue;
    if (usage.num_slots == 1 && s.preemption.count >= preemptions_max) continue;
    --usage.num_slots;
    usage.num_pages -= s.kv.pages.num_pages();
    victims.push_back(&s);
  }
  return victims;
}

}  // namespace espalier
