#include "router/policy.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "base/rng.h"
#include "router/cache_aware.h"
#include "router/prefix_hash.h"

namespace espalier::router {

namespace {

class RoundRobin final : public Policy {
 public:
  // The first slot behind the last choice, also where workers were added or removed meanwhile.
  Choice choose(const PolicyRequest& request, std::span<const Candidate> candidates) override {
    WorkerSlot& next = next_[request.role == WorkerRole::kPrefill ? 1 : 0];
    const auto found =
        std::ranges::find_if(candidates, [&](const Candidate& c) { return c.slot >= next; });
    const WorkerSlot slot = found == candidates.end() ? candidates.front().slot : found->slot;
    next = static_cast<WorkerSlot>(slot + 1);
    return {slot, 0};
  }

 private:
  std::array<WorkerSlot, 2> next_{};  // by role, for a request may need a worker of each
};

class Random final : public Policy {
 public:
  explicit Random(uint64_t seed) : rng_(seed) {}
  Choice choose(const PolicyRequest&, std::span<const Candidate> candidates) override {
    return {candidates[rng_.below(candidates.size())].slot, 0};
  }

 private:
  Rng rng_;
};

class PowerOfTwo final : public Policy {
 public:
  explicit PowerOfTwo(uint64_t seed) : rng_(seed) {}
  Choice choose(const PolicyRequest&, std::span<const Candidate> candidates) override {
    const Candidate& one = candidates[rng_.below(candidates.size())];
    const Candidate& other = candidates[rng_.below(candidates.size())];
    return {other.load() < one.load() ? other.slot : one.slot, 0};
  }

 private:
  Rng rng_;
};

class LeastTokens final : public Policy {
 public:
  Choice choose(const PolicyRequest&, std::span<const Candidate> candidates) override {
    const auto load = [](const Candidate& c) {
      return std::pair(static_cast<float>(c.tokens) / c.weight, c.load());
    };
    return {std::ranges::min_element(candidates, {}, load)->slot, 0};
  }
};

Status check_options(const PolicyOptions& options) {
  if (!(options.cache_threshold >= 0 && options.cache_threshold <= 1))
    return invalid_argument("cache-threshold is {}, but must be between 0 and 1",
                            options.cache_threshold);
  if (!(options.balance_rel_threshold >= 1))
    return invalid_argument("balance-rel-threshold is {}, but must be at least 1",
                            options.balance_rel_threshold);
  if (!(options.prefix_hash_load_factor > 1))
    return invalid_argument("prefix-hash-load-factor is {}, but must be above 1",
                            options.prefix_hash_load_factor);
  return {};
}

}  // namespace

const Candidate& least_loaded(std::span<const Candidate> candidates, size_t from) {
  ESP_CHECK(!candidates.empty(), "no candidate");
  const size_t n = candidates.size();
  const Candidate* best = &candidates[from % n];
  for (size_t i = 1; i < n; ++i) {
    const Candidate& c = candidates[(from + i) % n];
    if (c.load() < best->load()) best = &c;
  }
  return *best;
}

WorkerSlot session_worker(std::string_view session, std::span<const Candidate> candidates) {
  const uint64_t hash = name_space_hash(session);
  return std::ranges::max_element(candidates, {},
                                  [&](const Candidate& c) { return mix64(hash ^ mix64(c.id)); })
      ->slot;
}

const std::vector<std::string>& policy_names() {
  static const std::vector<std::string> names = {"round_robin",  "random",      "power_of_two",
                                                 "least_tokens", "prefix_hash", "cache_aware"};
  return names;
}

Result<std::unique_ptr<Policy>> make_policy(const PolicyOptions& options) {
  ESP_RETURN_IF_ERROR(check_options(options));
  if (options.name == "round_robin") return std::make_unique<RoundRobin>();
  if (options.name == "random") return std::make_unique<Random>(options.seed);
  if (options.name == "power_of_two") return std::make_unique<PowerOfTwo>(options.seed);
  if (options.name == "least_tokens") return std::make_unique<LeastTokens>();
  if (options.name == "prefix_hash") return std::make_unique<PrefixHash>(options);
  if (options.name == "cache_aware") return std::make_unique<CacheAware>(options);
  std::string names;
  for (const std::string& name : policy_names()) names += (names.empty() ? "" : ", ") + name;
  return fail(invalid_argument("'{}' is no policy; there are {}", options.name, names));
}

}  // namespace espalier::router
