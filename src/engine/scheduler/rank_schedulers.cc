#include "engine/scheduler/rank_schedulers.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "seams/rank_batches.h"

namespace espalier {
namespace {

// A cached prefix that is shorter than this part of the prompt decides nothing.
constexpr double kPrefixShareMin = 0.3;
// A rank has much more than its share where it has so many sequences more than the mean, and a
// tenth of the mean: all ranks wait for the one with the most rows.
constexpr double kSpareMin = 4, kSpareOfMean = 0.1;

int32_t part_of(int32_t all, int32_t num_ranks) {
  return all <= 0 ? all : std::max(1, all / num_ranks);
}

SchedulerConfig config_of_rank(const SchedulerConfig& all, int32_t num_ranks) {
  SchedulerConfig config = all;
  config.max_running = part_of(all.max_running, num_ranks);
  config.chunked_prefill_size = part_of(all.chunked_prefill_size, num_ranks);
  config.draft_samples_max = part_of(all.draft_samples_max, num_ranks);
  return config;
}

void add_stats(const SchedulerStats& one, SchedulerStats& sum) {
  sum.num_running += one.num_running;
  sum.num_waiting += one.num_waiting;
  sum.num_retractions += one.num_retractions;
  sum.num_preemptions += one.num_preemptions;
  sum.new_token_ratio = std::max(sum.new_token_ratio, one.new_token_ratio);
  sum.prompt_tokens += one.prompt_tokens;
  sum.cached_tokens += one.cached_tokens;
  sum.generated_tokens += one.generated_tokens;
  sum.entries += one.entries;
  sum.forced_tokens += one.forced_tokens;
  sum.forwards_saved += one.forwards_saved;
  sum.drafted_tokens += one.drafted_tokens;
  sum.accepted_draft_tokens += one.accepted_draft_tokens;
  sum.verify_steps += one.verify_steps;
}

void add_counts(const DraftTotals& one, DraftTotals& sum) {
  for (size_t i = 0; i < sum.size(); ++i) {
    sum[i].drafted_tokens += one[i].drafted_tokens;
    sum[i].accepted_tokens += one[i].accepted_tokens;
    sum[i].verify_steps += one[i].verify_steps;
    const auto& from = one[i].accepted_lengths.entries;
    std::ranges::transform(sum[i].accepted_lengths.entries, from,
                           sum[i].accepted_lengths.entries.begin(), std::plus());
  }
}

}  // namespace

RankSchedulers::RankSchedulers(const SchedulerConfig& config, const RankCaches& caches,
                               const Clock& clock, SequenceObserver& observer,
                               TokenProposer* proposer, KvLoader* loader)
    : caches_(caches) {
  ESP_CHECK(loader == nullptr || caches.size() == 1);
  const SchedulerConfig of_rank = config_of_rank(config, caches.size());
  slots_each_ = of_rank.max_running;
  for (int32_t rank = 0; rank < caches.size(); ++rank)
    schedulers_.push_back(
        std::make_unique<Scheduler>(of_rank, caches.of(rank), clock, observer, proposer, loader));
}

RankSchedulers::~RankSchedulers() = default;

int64_t RankSchedulers::load_of(size_t rank) const {
  const SchedulerStats stats = schedulers_[rank]->stats();
  return int64_t{stats.num_running} + stats.num_waiting;
}

// Equal loads are taken in turn.
int32_t RankSchedulers::least_loaded() {
  int32_t chosen = turn_;
  for (int32_t i = 1; i < num_ranks(); ++i) {
    const int32_t rank = (turn_ + i) % num_ranks();
    if (load_of(static_cast<size_t>(rank)) < load_of(static_cast<size_t>(chosen))) chosen = rank;
  }
  turn_ = (chosen + 1) % num_ranks();
  return chosen;
}

int32_t RankSchedulers::choose(const SequenceSpec& spec) {
  int32_t longest = -1, longest_match = 0;
  double mean = 0;
  for (int32_t rank = 0; rank < num_ranks(); ++rank) {
    mean += static_cast<double>(load_of(static_cast<size_t>(rank))) / num_ranks();
    const int32_t match = caches_.of(rank).match(spec.cache_namespace, spec.prompt_ids);
    if (match > longest_match) longest = rank, longest_match = match;
  }
  if (longest < 0) return least_loaded();
  // A search goes on where its last step was: all of its beams are there.
  if (spec.num_generated > 0) return longest;
  const auto load = static_cast<double>(load_of(static_cast<size_t>(longest)));
  const bool decides =
      longest_match >= kPrefixShareMin * static_cast<double>(spec.prompt_ids.size());
  return decides && load <= mean + kSpareMin + kSpareOfMean * mean ? longest : least_loaded();
}

Status RankSchedulers::add(SequenceSpec spec) {
  const int32_t rank = num_ranks() == 1 ? 0 : choose(spec);
  return schedulers_[static_cast<size_t>(rank)]->add(std::move(spec));
}

int32_t RankSchedulers::max_sequence_tokens() const {
  return schedulers_.front()->max_sequence_tokens();
}

void RankSchedulers::abort(SequenceId id, const FinishReason& reason) {
  for (const auto& scheduler : schedulers_) scheduler->abort(id, reason);
}

void RankSchedulers::retract_all() {
  for (const auto& scheduler : schedulers_) scheduler->retract_all();
}

bool RankSchedulers::next(ForwardBatch& batch) {
  if (num_ranks() == 1) return schedulers_.front()->next(batch);
  batch.ranks.resize(schedulers_.size());
  bool any = false;
  for (size_t rank = 0; rank < schedulers_.size(); ++rank)
    any |= schedulers_[rank]->next(batch.ranks[rank]);
  if (!any) return false;
  join_ranks(slots_each_, batch);
  batch.step = ++num_steps_;
  return true;
}

void RankSchedulers::commit(const ForwardBatch& batch, const StepResult& result,
                            const std::function<void()>& continue_searches) {
  if (num_ranks() == 1) return schedulers_.front()->commit(batch, result, continue_searches);
  part_.forward_seconds = result.forward_seconds;
  part_.draft_seconds = result.draft_seconds;
  part_.started = result.started;
  part_.graph_use = result.graph_use;
  auto first = result.entries.begin();
  for (size_t rank = 0; rank < schedulers_.size(); ++rank) {
    const ForwardBatch& of_rank = batch.ranks[rank];
    if (of_rank.entries.empty()) continue;
    const auto last = first + std::ssize(of_rank.entries);
    part_.step = of_rank.step;
    part_.entries.assign(first, last);
    first = last;
    schedulers_[rank]->commit(of_rank, part_, continue_searches);
  }
}

bool RankSchedulers::idle() const {
  return std::ranges::all_of(schedulers_, [](const auto& scheduler) { return scheduler->idle(); });
}

bool RankSchedulers::is_loading() const { return schedulers_.front()->is_loading(); }

SchedulerStats RankSchedulers::stats() const {
  SchedulerStats sum = schedulers_.front()->stats();
  if (num_ranks() == 1) return sum;
  by_drafter_ = *sum.by_drafter;
  for (size_t rank = 1; rank < schedulers_.size(); ++rank) {
    const SchedulerStats one = schedulers_[rank]->stats();
    add_stats(one, sum);
    add_counts(*one.by_drafter, by_drafter_);
  }
  sum.by_drafter = &by_drafter_;
  sum.steps = static_cast<int64_t>(num_steps_);
  return sum;
}

void RankSchedulers::check_invariants() const {
  for (const auto& scheduler : schedulers_) scheduler->check_invariants();
}

}  // namespace espalier
