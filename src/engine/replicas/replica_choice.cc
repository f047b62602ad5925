#include "engine/replicas/replica_choice.h"

#include <algorithm>

namespace espalier {
namespace {

// Of a tree for replicas: prefixes of 256 MiB of text.
constexpr PrefixTree::Options kTree = {.max_blocks = size_t{4} << 20,
                                       .max_nodes = size_t{256} << 10};
// A prefix that is shorter than this part of the prompt decides nothing, unless it is the whole of
// an earlier prompt, whose conversation then goes on.
constexpr double kPrefixShareMin = 0.3;
// A replica is overloaded where its load exceeds the mean by so many samples and by half.
constexpr double kSpareMin = 4, kSpareOfMean = 0.5;

}  // namespace

Result<LoadBalance> parse_load_balance(std::string_view name) {
  if (name == "auto" || name == "cache_aware") return LoadBalance::kCacheAware;
  if (name == "round_robin") return LoadBalance::kRoundRobin;
  if (name == "shortest_queue" || name == "total_requests") return LoadBalance::kShortestQueue;
  return fail(invalid_argument(
      "load_balance_method is '{}', but must be auto, round_robin, shortest_queue (or "
      "total_requests) or cache_aware",
      name));
}

ReplicaChoice::ReplicaChoice(LoadBalance method, int32_t num_replicas)
    : method_(method), replicas_(static_cast<size_t>(num_replicas)), tree_(kTree) {}

int32_t ReplicaChoice::choose(std::span<const uint64_t> key) {
  bool any_sound = false, any_failing = false;
  for (int32_t i = 0; i < num_replicas(); ++i) (is_failing(i) ? any_failing : any_sound) = true;
  all_fail_ = !any_sound;
  if (any_sound && any_failing && ++num_choices_ % kProbeEvery == 0) {
    do probe_ = (probe_ + 1) % num_replicas();
    while (!is_failing(probe_));
    return probe_;
  }
  if (method_ == LoadBalance::kRoundRobin) return in_turn();
  return method_ == LoadBalance::kCacheAware ? by_prefix(key) : least_loaded();
}

int32_t ReplicaChoice::in_turn() {
  int32_t chosen = turn_;
  while (!is_candidate(chosen)) chosen = (chosen + 1) % num_replicas();
  turn_ = (chosen + 1) % num_replicas();
  return chosen;
}

// Equal loads are taken in turn.
int32_t ReplicaChoice::least_loaded() {
  int32_t chosen = -1;
  for (int32_t i = 0; i < num_replicas(); ++i) {
    const int32_t replica = (turn_ + i) % num_replicas();
    if (is_candidate(replica) && (chosen < 0 || load(replica) < load(chosen))) chosen = replica;
  }
  turn_ = (chosen + 1) % num_replicas();
  return chosen;
}

int32_t ReplicaChoice::by_prefix(std::span<const uint64_t> key) {
  tree_.match(key, match_);
  double mean = 0;
  for (const Replica& replica : replicas_) mean += static_cast<double>(replica.load);
  mean /= num_replicas();
  const double load_max = mean + std::max(kSpareMin, kSpareOfMean * mean);
  const double enough = kPrefixShareMin * static_cast<double>(key.size());
  bool goes_on = match_.at_leafs_end;
  for (auto step = match_.path.rbegin(); step != match_.path.rend(); ++step) {
    if (!goes_on && step->num_blocks < enough) break;
    int32_t chosen = -1;
    step->workers->for_each([&](WorkerSlot holder) {
      if (is_candidate(holder) && (chosen < 0 || load(holder) < load(chosen))) chosen = holder;
    });
    if (chosen >= 0 && static_cast<double>(load(chosen)) <= load_max) return chosen;
    goes_on = false;
  }
  return least_loaded();
}

void ReplicaChoice::begin(int32_t replica, std::span<const uint64_t> key, int32_t num_samples) {
  replicas_[static_cast<size_t>(replica)].load += num_samples;
  if (method_ == LoadBalance::kCacheAware && !key.empty())
    tree_.insert(key, static_cast<WorkerSlot>(replica));
}

void ReplicaChoice::end(int32_t replica, int32_t num_samples, Outcome outcome) {
  Replica& of = replicas_[static_cast<size_t>(replica)];
  of.load -= num_samples;
  if (outcome == Outcome::kAnswered) of.failures_in_a_row = 0;
  if (outcome == Outcome::kFailed) ++of.failures_in_a_row;
}

void ReplicaChoice::forget_prefixes() {
  for (int32_t i = 0; i < num_replicas(); ++i) tree_.remove_worker(static_cast<WorkerSlot>(i));
}

}  // namespace espalier
