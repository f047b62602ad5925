#include "router/prefix_hash.h"

#include <algorithm>

#include "base/rng.h"

namespace espalier::router {

namespace {

constexpr uint64_t kPointsPerWorker = 64;
constexpr size_t kBytesPerToken = 4;

}  // namespace

PrefixHash::PrefixHash(const PolicyOptions& options)
    : num_blocks_(std::max<size_t>(
          1, static_cast<size_t>(options.prefix_token_count) * kBytesPerToken / kBlockBytes)),
      load_factor_(options.prefix_hash_load_factor) {}

void PrefixHash::add_points(std::span<const Candidate> candidates) {
  const size_t before = ring_.size();
  for (const Candidate& c : candidates) {
    if (!on_ring_.insert(c.slot)) continue;
    for (uint64_t i = 0; i < kPointsPerWorker; ++i)
      ring_.push_back({mix64(mix64(c.id) + i), c.slot});
  }
  if (ring_.size() != before) std::ranges::sort(ring_, {}, &Point::hash);
}

void PrefixHash::forget_worker(WorkerSlot slot) {
  if (!on_ring_.erase(slot)) return;
  std::erase_if(ring_, [&](const Point& point) { return point.slot == slot; });
}

Choice PrefixHash::choose(const PolicyRequest& request, std::span<const Candidate> candidates) {
  add_points(candidates);
  // The hash of a block is that of all before it. A prompt of no whole block hashes as its name
  // space does.
  const size_t n = std::min(num_blocks_, request.key.size());
  const uint64_t hash = n == 0 ? mix64(request.name_space) : request.key[n - 1];

  double total = 1;  // with this request
  for (const Candidate& c : candidates) total += c.load();
  const double bound = std::ceil(load_factor_ * total / static_cast<double>(candidates.size()));
  const auto begin = std::ranges::lower_bound(ring_, hash, {}, &Point::hash);
  const size_t from = static_cast<size_t>(begin - ring_.begin());
  for (size_t i = 0; i < ring_.size(); ++i) {
    const WorkerSlot slot = ring_[(from + i) % ring_.size()].slot;
    const auto c = std::ranges::lower_bound(candidates, slot, {}, &Candidate::slot);
    if (c != candidates.end() && c->slot == slot && c->load() + 1 <= bound) return {slot, 0};
  }
  return {least_loaded(candidates, 0).slot, 0};  // slow starts make every load exceed the bound
}

}  // namespace espalier::router
