#include "models/cuda/free_ranges.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace espalier {

std::optional<int64_t> FreeRanges::take(int64_t size) {
  ESP_CHECK(size > 0, "a range of {}", size);
  const auto fits = [size](const auto& range) { return range.second >= size; };
  const auto found = std::ranges::find_if(free_, fits);
  if (found == free_.end()) return std::nullopt;
  const auto [begin, available] = *found;
  free_.erase(found);
  if (available > size) free_[begin + size] = available - size;
  return begin;
}

void FreeRanges::give_back(int64_t begin, int64_t size) {
  auto next = free_.lower_bound(begin);
  ESP_CHECK(begin >= 0 && size > 0 && begin + size <= size_ &&
                (next == free_.end() || begin + size <= next->first),
            "[{}, {}) is free or outside", begin, begin + size);
  if (next != free_.end() && next->first == begin + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    ESP_CHECK(before->first + before->second <= begin, "{} is free", begin);
    if (before->first + before->second == begin) {
      before->second += size;
      return;
    }
  }
  free_[begin] = size;
}

int64_t FreeRanges::num_free() const {
  int64_t sum = 0;
  for (const auto& [begin, size] : free_) sum += size;
  return sum;
}

int64_t FreeRanges::largest() const {
  int64_t most = 0;
  for (const auto& [begin, size] : free_) most = std::max(most, size);
  return most;
}

void FreeRanges::check_invariants() const {
  int64_t end = -1;
  for (const auto& [begin, size] : free_) {
    ESP_CHECK(begin > end && size > 0 && begin + size <= size_, "[{}, {})", begin, begin + size);
    end = begin + size;
  }
}

}  // namespace espalier
