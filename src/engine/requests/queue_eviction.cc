#include "engine/requests/queue_eviction.h"

#include "base/check.h"

namespace espalier {

void QueueEviction::add(Request request) {
  if (rule_ == QueueEvictionRule::kNone) return;
  by_priority_.emplace(request.priority, request.id);
  Share& share = shares_[request.share];
  share.num_samples += request.num_samples;
  share.waiting.insert(request.id);
  const RequestId id = request.id;
  requests_.emplace(id, std::move(request));
}

void QueueEviction::on_scheduled(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  by_priority_.erase({found->second.priority, id});
  shares_.at(found->second.share).waiting.erase(id);
}

void QueueEviction::remove(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  on_scheduled(id);
  const auto share = shares_.find(found->second.share);
  share->second.num_samples -= found->second.num_samples;
  if (share->second.num_samples == 0) shares_.erase(share);
  requests_.erase(found);
}

std::vector<RequestId> QueueEviction::choose(const Request& newcomer, int64_t num_samples) const {
  ESP_CHECK(num_samples > 0);
  switch (rule_) {
    case QueueEvictionRule::kNone:
      break;
    case QueueEvictionRule::kLowestPriority:
      return choose_by_priority(newcomer, num_samples);
    case QueueEvictionRule::kLargestShare:
      return choose_by_share(newcomer, num_samples);
  }
  return {};
}

std::vector<RequestId> QueueEviction::choose_by_priority(const Request& newcomer,
                                                         int64_t num_samples) const {
  std::vector<RequestId> chosen;
  for (const auto& [priority, id] : by_priority_) {
    if (priority >= newcomer.priority) break;
    chosen.push_back(id);
    if ((num_samples -= samples_of(id)) <= 0) return chosen;
  }
  return {};
}

std::vector<RequestId> QueueEviction::choose_by_share(const Request& newcomer,
                                                      int64_t num_samples) const {
  struct Left {
    int64_t num_samples;
    std::set<RequestId, std::greater<>>::const_iterator next, end;
  };
  std::vector<Left> left;
  int64_t own = newcomer.num_samples;
  for (const auto& [name, share] : shares_) {
    if (name == newcomer.share)
      own += share.num_samples;
    else
      left.push_back({share.num_samples, share.waiting.begin(), share.waiting.end()});
  }
  std::vector<RequestId> chosen;
  while (true) {
    Left* largest = nullptr;
    for (Left& share : left)
      if (share.next != share.end &&
          (largest == nullptr || share.num_samples > largest->num_samples))
        largest = &share;
    if (largest == nullptr) return {};
    const RequestId id = *largest->next++;
    if (largest->num_samples - samples_of(id) < own) continue;
    largest->num_samples -= samples_of(id);
    chosen.push_back(id);
    if ((num_samples -= samples_of(id)) <= 0) return chosen;
  }
}

}  // namespace espalier
