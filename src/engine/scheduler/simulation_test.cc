// Many short lives of a scheduler, each from one seed: random arrivals with shared prefixes,
// aborts, failures, pools so small that they force eviction and retraction. After every step the
// invariants hold; at the end each sequence has got one end and exactly the tokens that it gets
// alone, and every page is back. ESPALIER_SIMULATION_SEEDS runs more than the thousand of a normal
// test; seeds run on as many threads as there are processors, or ESPALIER_SIMULATION_THREADS.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "cache/prefix_cache.h"
#include "engine/scheduler/fake_executor.h"
#include "engine/scheduler/kv_loader.h"
#include "engine/scheduler/rank_schedulers.h"

namespace espalier {
namespace {

struct Client {
  SequenceSpec spec;
  std::string cache_namespace;
  int32_t stop_at = -1;  // the observer stops it at this many outputs; -1: does not
  int32_t fail_at = -1;
  bool jumps = false;  // some of its tokens are forced: those that the model would say
  bool aborted = false;

  std::vector<TokenId> outputs;
  std::map<int32_t, float> input_logprobs;
  std::vector<float> logprobs;  // of outputs
  int num_due = 0;              // of forced outputs, not known yet: the last of them
  int32_t num_forced = 0;       // of outputs
  int num_ends = 0;
  FinishReason reason;
};

// What it must get, computed with no scheduler at all.
struct Expected {
  std::vector<TokenId> outputs;
  FinishReason::Type type = FinishReason::Type::kLength;
};
Expected alone(const Client& client) {
  uint64_t digest = fake_first_digest(client.cache_namespace);
  for (const TokenId token : client.spec.prompt_ids) digest = fake_digest(digest, token);
  Expected expected;
  while (true) {
    const auto count = static_cast<int32_t>(expected.outputs.size());
    if (client.fail_at == count) {
      expected.type = FinishReason::Type::kError;
      return expected;
    }
    if (count == client.spec.max_new_tokens) return expected;
    const TokenId token = fake_token(digest);
    digest = fake_digest(digest, token);
    expected.outputs.push_back(token);
    if (count + 1 == client.spec.max_new_tokens) return expected;
    const std::vector<TokenId>& stops = client.spec.stop_ids;
    if (client.stop_at == count + 1 || std::binary_search(stops.begin(), stops.end(), token)) {
      expected.type = FinishReason::Type::kStop;
      return expected;
    }
  }
}

// What one life, or many, went through.
struct Tally {
  int64_t seeds = 0, windows = 0;  // of them with a sliding window
  int64_t ranks = 0;               // of them with several ranks
  int64_t sequences = 0, lost = 0;
  int64_t aborts = 0, failures = 0, refusals = 0, retractions = 0, preemptions = 0;
  int64_t cached_tokens = 0, forced_tokens = 0, forwards_saved = 0;
  int64_t drafted_tokens = 0, accepted_draft_tokens = 0;
  int64_t loaded_tokens = 0, loads_in_part = 0;

  Tally& operator+=(const Tally& other) {
    seeds += other.seeds, windows += other.windows, ranks += other.ranks;
    sequences += other.sequences, lost += other.lost;
    aborts += other.aborts, failures += other.failures, refusals += other.refusals;
    retractions += other.retractions, preemptions += other.preemptions;
    cached_tokens += other.cached_tokens, forced_tokens += other.forced_tokens;
    forwards_saved += other.forwards_saved;
    drafted_tokens += other.drafted_tokens, accepted_draft_tokens += other.accepted_draft_tokens;
    loaded_tokens += other.loaded_tokens, loads_in_part += other.loads_in_part;
    return *this;
  }
  int64_t faults() const { return aborts + failures + refusals + retractions; }
};

// Keys and values from elsewhere: loads that take a few steps, and some of which fail.
class FakeLoader final : public KvLoader {
 public:
  FakeLoader(uint64_t seed, FakeExecutor& executor, int32_t page_size)
      : rng_(seed), executor_(executor), page_size_(page_size) {}

  void prefetch(const LoadRequest&) override {}
  void forget(SequenceId) override {}
  int32_t num_available(const LoadRequest& request) override {
    return static_cast<int32_t>(rng_.below(request.tokens.size() + 1));
  }
  void start(const LoadRequest& request) override {
    loads_.push_back({.id = request.id,
                      .cache_namespace = std::string(request.cache_namespace),
                      .tokens = {request.tokens.begin(), request.tokens.end()},
                      .num_cached = request.num_cached,
                      .pages = {request.pages.begin(), request.pages.end()}});
  }
  void poll(std::vector<LoadResult>& ended) override {
    std::erase_if(loads_, [&](const Load& load) {
      if (!load.is_cancelled && rng_.below(4) != 0) return false;
      // All of it, or in part: some pages at the front, or none.
      const auto num_all = static_cast<int32_t>(load.tokens.size());
      int32_t end = num_all;
      if (rng_.below(5) == 0 || load.is_cancelled)
        end =
            load.num_cached +
            static_cast<int32_t>(rng_.below(static_cast<uint64_t>(num_all - load.num_cached + 1)));
      end -= end % page_size_;
      if (end > load.num_cached)
        executor_.fill(load.cache_namespace, std::span(load.tokens).first(static_cast<size_t>(end)),
                       load.num_cached, load.pages);
      const int32_t count = std::max(end - load.num_cached, 0);
      const auto from_host = static_cast<int32_t>(rng_.below(static_cast<uint64_t>(count) + 1));
      ended.push_back({.id = load.id,
                       .num_tokens = load.num_cached + count,
                       .num_from_host = from_host,
                       .num_from_storage = count - from_host});
      num_loaded_ += count;
      num_in_part_ += end < num_all ? 1 : 0;
      return true;
    });
  }
  void cancel(SequenceId id) override {
    for (Load& load : loads_) {
      if (load.id == id) load.is_cancelled = true;
    }
  }
  int64_t num_in_part() const { return num_in_part_; }
  int64_t num_loaded() const { return num_loaded_; }
  bool loading() const { return !loads_.empty(); }

 private:
  struct Load {
    SequenceId id = 0;
    std::string cache_namespace;
    std::vector<TokenId> tokens;
    int32_t num_cached = 0;
    std::vector<PageId> pages;
    bool is_cancelled = false;
  };
  Rng rng_;
  FakeExecutor& executor_;
  const int32_t page_size_;
  std::vector<Load> loads_;
  int64_t num_loaded_ = 0, num_in_part_ = 0;
};

class Simulation final : public SequenceObserver, public TokenProposer {
 public:
  explicit Simulation(uint64_t seed) : plans_(seed % 2 == 0), rng_(seed) {
    const int32_t page_size = pick({1, 1, 4, 16});
    const int32_t num_pages = static_cast<int32_t>(rng_.between(30, 200)) / page_size + 2;
    const int32_t window = rng_.below(3) == 0 ? pick({1, 3, 8, 40}) : 0;
    has_window_ = window > 0;
    const int32_t least = std::min(num_pages, (window + page_size - 1) / page_size + 3);
    const PrefixCacheConfig of_rank{
        .num_pages = num_pages,
        .page_size = page_size,
        .disable_radix_cache = rng_.below(6) == 0,
        .eviction_policy = static_cast<EvictionPolicy>(rng_.below(6)),
        .sliding_window = window,
        .num_window_pages = static_cast<int32_t>(rng_.between(least, num_pages))};
    const int32_t num_ranks = num_ranks_of(seed);
    std::vector<std::unique_ptr<PrefixCache>> caches;
    for (int32_t rank = 0; rank < num_ranks; ++rank)
      caches.push_back(make_prefix_cache(of_rank).value());
    caches_ = RankCaches(std::move(caches));
    config_.max_running = static_cast<int32_t>(rng_.between(1, 9));
    config_.max_waiting = 1000;
    config_.chunked_prefill_size = pick({0, 1, 5, 16, 64});
    config_.context_length = 120;
    config_.policy = static_cast<SchedulePolicy>(rng_.below(6));
    config_.fair_share = static_cast<FairShare>(rng_.below(3));
    config_.bypass_bound = pick({0, 3, 1000});
    config_.priority_preemption_threshold = pick({0, 1, 2});
    config_.prefix_wait_min_tokens = pick({1, 8, 32});
    config_.conservativeness = pick({0, 0, 30, 100, 200}) * 0.01;
    config_.new_token_ratio_decay_steps = pick({1, 20, 600});
    config_.find_shared_prefixes = true;
    config_.draft_samples_max = pick({0, 1, 3, 16});
    overlap_ = rng_.below(3) != 0;
    for (int32_t rank = 0; rank < num_ranks; ++rank)
      executors_.push_back(std::make_unique<FakeExecutor>(page_size, window));
    if (seed % 4 == 0 && window == 0)
      loader_ = std::make_unique<FakeLoader>(seed, *executors_[0], page_size);
    scheduler_ =
        std::make_unique<RankSchedulers>(config_, caches_, clock_, *this, this, loader_.get());
    for (const auto& executor : executors_) executor->expect_shared_prefixes();
    for (int i = 0; i < 3; ++i) families_.push_back(random_tokens(60));
    num_to_come_ = static_cast<int>(rng_.between(1, 30));
  }

  void run() {
    // More steps than any schedule of so few tokens could need: beyond, it is running in circles.
    const int num_rounds_max = 40000;
    const auto rarity = static_cast<uint64_t>(pick({1, 2, 5, 20}));
    for (int round = 0; num_to_come_ > 0 || !scheduler_->idle(); ++round) {
      ASSERT_LT(round, num_rounds_max) << "no end";
      while (num_to_come_ > 0 && rng_.below(rarity) == 0) arrive();
      if (rng_.below(12) == 0) abort_one();
      if (loader_ != nullptr && num_committed_ == num_steps_ && rng_.below(40) == 0)
        scheduler_->retract_all();
      clock_.advance(Duration(1000));
      step();
      scheduler_->check_invariants();
      if (testing::Test::HasFatalFailure()) return;
    }
    check_ends();
    const SchedulerStats stats = scheduler_->stats();
    EXPECT_EQ(stats.num_running + stats.num_waiting, 0);
    EXPECT_EQ(caches_.sizes().in_use(), 0);
    caches_.flush();
    EXPECT_EQ(caches_.sizes().free, caches_.size() * caches_.first().num_pages());
  }

  Tally tally() const {
    const SchedulerStats stats = scheduler_->stats();
    Tally tally{.seeds = 1,
                .windows = has_window_ ? 1 : 0,
                .ranks = caches_.size() > 1 ? 1 : 0,
                .sequences = static_cast<int64_t>(clients_.size()),
                .retractions = stats.num_retractions,
                .preemptions = stats.num_preemptions,
                .cached_tokens = stats.cached_tokens,
                .forced_tokens = stats.forced_tokens,
                .forwards_saved = stats.forwards_saved,
                .drafted_tokens = stats.drafted_tokens,
                .accepted_draft_tokens = stats.accepted_draft_tokens,
                .loaded_tokens = loader_ ? loader_->num_loaded() : 0,
                .loads_in_part = loader_ ? loader_->num_in_part() : 0};
    for (const auto& [id, client] : clients_) {
      tally.lost += client->num_ends == 0 ? 1 : 0;
      tally.refusals += client->num_ends < 0 ? 1 : 0;
      tally.aborts += client->aborted ? 1 : 0;
      tally.failures +=
          client->num_ends > 0 && client->reason.type == FinishReason::Type::kError ? 1 : 0;
    }
    return tally;
  }

  void on_input_logprobs(SequenceId id, int32_t first,
                         std::vector<TokenLogprobs>&& logprobs) override {
    Client& client = *clients_.at(id);
    ASSERT_EQ(client.num_ends, 0);
    ASSERT_GE(first, 1);
    for (const TokenLogprobs& logprob : logprobs)
      ASSERT_TRUE(client.input_logprobs.emplace(first++, logprob.logprob).second);
  }
  std::optional<FinishReason> on_token(SequenceId id, TokenId token, TokenOrigin origin,
                                       TokenLogprobs&& logprobs,
                                       const RequestStats& stats) override {
    Client& client = *clients_.at(id);
    EXPECT_EQ(client.num_ends, 0);
    EXPECT_FALSE(client.aborted);
    EXPECT_LE(logprobs.logprob, 0.0f);
    const bool forced = origin == TokenOrigin::kForced;
    EXPECT_EQ(stats.forced_tokens, client.num_forced += forced ? 1 : 0);
    if (client.spec.sampling->return_logprob) {
      EXPECT_TRUE(forced || client.num_due == 0);
      client.num_due += forced ? 1 : 0;
      client.logprobs.push_back(forced ? 1.0f : logprobs.logprob);
    }
    client.outputs.push_back(token);
    EXPECT_EQ(stats.completion_tokens, static_cast<int32_t>(client.outputs.size()));
    if (client.stop_at != static_cast<int32_t>(client.outputs.size())) return std::nullopt;
    return FinishReason{.type = FinishReason::Type::kStop, .matched = "stop string"};
  }
  // Nothing of it shows in the outputs: they are what each sequence gets alone.
  void propose_forced(SequenceId id, std::vector<TokenId>& forced) override {
    const Client& client = *clients_.at(id);
    if (!client.jumps || rng_.below(3) != 0) return;
    auto count = static_cast<int32_t>(rng_.between(0, 9));
    if (client.fail_at >= 0)
      count = std::min(count, client.fail_at - static_cast<int32_t>(client.outputs.size()));
    const bool logprobs = client.spec.sampling->return_logprob;
    const auto num_outputs = static_cast<int32_t>(client.outputs.size());
    if (logprobs && client.stop_at > 0) count = std::min(count, client.stop_at - num_outputs - 1);
    uint64_t digest = digest_of(client);
    for (int32_t i = 0; i < count; ++i) {
      forced.push_back(fake_token(digest));
      digest = fake_digest(digest, forced.back());
    }
  }
  // True or not, outputs are the same.
  bool forces_after_next(SequenceId id) override {
    EXPECT_TRUE(clients_.at(id)->jumps && clients_.at(id)->num_ends == 0);
    return rng_.below(2) == 0;
  }
  // Draft tokens that are right up to some index, with samples behind some of them.
  void propose_draft_tokens(const DraftSite& site, DraftTokens& draft) override {
    const SequenceId id = site.id;
    const Client& client = *clients_.at(id);
    EXPECT_TRUE(client.jumps && client.num_ends == 0);
    EXPECT_FALSE(client.spec.sampling->return_logprob || client.spec.sampling->has_penalties());
    const int64_t count = std::min<int64_t>(draft.tokens_max, rng_.between(-5, 12));
    const int64_t wrong_at = rng_.between(0, 12);
    draft.is_planned = plans_draft_tokens() && rng_.below(2) == 0;
    uint64_t digest = digest_of(client);
    for (int64_t i = 0; i < count; ++i) {
      const TokenId token = (fake_token(digest) + (i == wrong_at ? 1 : 0)) % kFakeVocab;
      digest = fake_digest(digest, token);
      draft.tokens.push_back(token);
      if (std::ssize(draft.samples) < draft.samples_max && rng_.below(2) == 0)
        draft.samples.push_back(static_cast<int32_t>(i));
    }
  }
  bool draft_tokens_after_next(const DraftSite& site) override {
    const SequenceId id = site.id;
    EXPECT_TRUE(clients_.at(id)->jumps);
    return rng_.below(2) == 0;
  }
  // Waits or not, whatever is planned: outputs are the same.
  bool plans_draft_tokens() const override { return plans_; }
  bool plan_draft_tokens(const DraftStep& step) override {
    EXPECT_LE(std::ssize(step.sites), step.num_entries);
    for (const DraftSite& site : step.sites) EXPECT_TRUE(clients_.at(site.id)->jumps);
    return rng_.below(3) == 0;
  }
  void on_forced_logprobs(SequenceId id, std::vector<TokenLogprobs>&& logprobs) override {
    Client& client = *clients_.at(id);
    ASSERT_LE(std::ssize(logprobs), client.num_due);
    for (const TokenLogprobs& one : logprobs)
      client.logprobs[client.logprobs.size() - static_cast<size_t>(client.num_due--)] = one.logprob;
  }
  void on_finish(SequenceId id, FinishReason reason, const RequestStats& stats) override {
    Client& client = *clients_.at(id);
    ++client.num_ends;
    client.reason = std::move(reason);
    EXPECT_EQ(stats.completion_tokens, static_cast<int32_t>(client.outputs.size()));
    EXPECT_LT(stats.cached_tokens, stats.prompt_tokens + (client.spec.has_grammar ? 1 : 0));
  }

 private:
  // Loads are of one rank.
  static int32_t num_ranks_of(uint64_t seed) { return seed % 4 == 1 ? 2 : seed % 8 == 3 ? 3 : 1; }
  static uint64_t digest_of(const Client& client) {
    uint64_t digest = fake_first_digest(client.cache_namespace);
    for (const TokenId token : client.spec.prompt_ids) digest = fake_digest(digest, token);
    for (const TokenId token : client.outputs) digest = fake_digest(digest, token);
    return digest;
  }
  int32_t pick(std::initializer_list<int32_t> choices) {
    return *(choices.begin() + rng_.below(choices.size()));
  }
  std::vector<TokenId> random_tokens(int64_t count) {
    std::vector<TokenId> tokens;
    for (int64_t i = 0; i < count; ++i)
      tokens.push_back(static_cast<TokenId>(rng_.below(kFakeVocab)));
    return tokens;
  }

  // A piece of a family's common text and something of its own; or what somebody got, continued.
  std::vector<TokenId> random_prompt() {
    std::vector<TokenId> prompt = families_[rng_.below(families_.size())];
    if (!clients_.empty() && rng_.below(3) == 0) {
      const Client& earlier = *clients_.at(rng_.below(clients_.size()) + 1);
      prompt = earlier.spec.prompt_ids;
      prompt.insert(prompt.end(), earlier.outputs.begin(), earlier.outputs.end());
    }
    prompt.resize(std::min<size_t>(prompt.size(), rng_.below(60)));
    for (const TokenId token : random_tokens(rng_.between(1, 8))) prompt.push_back(token);
    return prompt;
  }

  void arrive() {
    Client client;
    const std::vector<TokenId> prompt = random_prompt();
    const auto length = static_cast<int32_t>(prompt.size());
    client.cache_namespace = rng_.below(4) == 0 ? "tenant" : "";
    client.spec.prompt_ids = prompt;
    client.spec.max_new_tokens = static_cast<int32_t>(rng_.between(0, 50));
    if (rng_.below(2) == 0) client.spec.stop_ids = {3, 11};
    if (rng_.below(3) == 0) client.stop_at = static_cast<int32_t>(rng_.between(1, 20));
    if (rng_.below(12) == 0) client.fail_at = static_cast<int32_t>(rng_.between(0, 5));
    if (rng_.below(3) == 0)
      client.spec.logprob_start_len = static_cast<int32_t>(rng_.between(0, length));
    client.spec.cache_namespace = client.cache_namespace;
    client.spec.priority = static_cast<int32_t>(rng_.between(-1, 1));
    if (rng_.below(3) == 0) client.spec.tenant = "other";
    client.spec.share_weight = 0.5 * static_cast<double>(rng_.between(1, 8));
    client.spec.arrived = clock_.now();
    client.jumps = rng_.below(3) == 0;
    const int num_samples = rng_.below(5) == 0 ? 4 : 1;
    const bool has_penalties = rng_.below(3) == 0, has_logprobs = rng_.below(2) == 0;
    for (int i = 0; i < num_samples; ++i) {
      SamplingSpec sampling;
      sampling.seed = client.spec.id = clients_.size() + 1;
      if (has_penalties) sampling.presence_penalty = 0.5f;
      sampling.return_logprob = has_logprobs;
      sampling.logprobs_mode = LogprobsMode::kRaw;  // those of forced tokens are computed
      // What ends before it has run has no log-probabilities of its prompt: nobody asks for both.
      client.spec.takes_proposals = client.jumps;
      client.spec.has_grammar = client.jumps && (has_logprobs || client.spec.logprob_start_len < 0);
      client.spec.sampling = std::make_shared<SamplingSpec>(sampling);
      clients_[client.spec.id] = std::make_unique<Client>(client);
      for (const auto& executor : executors_)
        executor->expect(sampling.seed, client.cache_namespace, prompt, client.fail_at);
      const Status status = scheduler_->add(client.spec);
      if (status.ok()) continue;
      // Refused, with nothing more said: it could not ever fit.
      ASSERT_EQ(status.code(), StatusCode::kInvalidArgument);
      ASSERT_GT(length + client.spec.max_new_tokens, scheduler_->max_sequence_tokens() - 1);
      clients_[client.spec.id]->num_ends = -1;
    }
    --num_to_come_;
  }

  void abort_one() {
    if (clients_.empty()) return;
    Client& client = *clients_.at(rng_.below(clients_.size()) + 1);
    if (client.num_ends == 0) client.aborted = true;
    scheduler_->abort(client.spec.id, {.type = FinishReason::Type::kAbort});
  }

  void step() {
    ForwardBatch& batch = batches_[num_steps_ % 2];
    if (scheduler_->next(batch)) {
      check_batch(batch);
      launch(batch);
      ++num_steps_;
      if (overlap_ && num_steps_ - num_committed_ < 2) return;
    } else if (num_committed_ == num_steps_) {
      ASSERT_TRUE(scheduler_->idle() || (loader_ && loader_->loading()))
          << "nothing runs and nothing is in flight";
      return;
    }
    commit();
  }

  void commit() {
    const ForwardBatch& batch = batches_[num_committed_++ % 2];
    scheduler_->commit(batch, wait(batch));
  }

  // Of several ranks each has a device of its own.
  void launch(const ForwardBatch& batch) {
    if (batch.ranks.empty()) return executors_[0]->launch(batch);
    ASSERT_EQ(batch.ranks.size(), executors_.size());
    for (size_t rank = 0; rank < executors_.size(); ++rank)
      if (!batch.ranks[rank].entries.empty()) executors_[rank]->launch(batch.ranks[rank]);
  }
  StepResult wait(const ForwardBatch& batch) {
    if (batch.ranks.empty()) return executors_[0]->wait(batch.step);
    StepResult all{.step = batch.step};
    for (size_t rank = 0; rank < executors_.size(); ++rank) {
      if (batch.ranks[rank].entries.empty()) continue;
      StepResult part = executors_[rank]->wait(batch.ranks[rank].step);
      std::ranges::move(part.entries, std::back_inserter(all.entries));
    }
    return all;
  }

  // Decode entries first; prompt tokens, and forced ones beyond the first, within the limit of a
  // step.
  void check_batch(const ForwardBatch& batch) {
    if (!batch.ranks.empty()) check_joined(batch);
    const int32_t num_ranks = caches_.size();
    const auto each = [&](int32_t all) { return std::max(1, all / num_ranks); };
    if (batch.ranks.empty())
      return check_entries(batch, config_.max_running, config_.chunked_prefill_size);
    for (const ForwardBatch& part : batch.ranks)
      check_entries(part, each(config_.max_running),
                    config_.chunked_prefill_size > 0 ? each(config_.chunked_prefill_size) : 0);
  }

  // The batch is its parts, rank after rank, and no two ranks share a slot.
  void check_joined(const ForwardBatch& batch) {
    ASSERT_EQ(batch.ranks.size(), executors_.size());
    size_t at = 0;
    int32_t first_token = 0;
    std::map<SlotId, SequenceId> slots;
    for (const ForwardBatch& part : batch.ranks) {
      for (const BatchEntry& of_rank : part.entries) {
        const BatchEntry& entry = batch.entries.at(at++);
        ASSERT_EQ(entry.sequence, of_rank.sequence);
        ASSERT_EQ(entry.query_begin, first_token + of_rank.query_begin);
        ASSERT_TRUE(slots.emplace(entry.slot, entry.sequence).second);
        const auto [rank, added] =
            rank_of_.emplace(entry.sequence, static_cast<size_t>(&part - batch.ranks.data()));
        ASSERT_EQ(&batch.ranks[rank->second], &part) << "a sequence changes its rank";
      }
      first_token += part.num_tokens();
    }
    ASSERT_EQ(at, batch.entries.size());
    ASSERT_EQ(first_token, batch.num_tokens());
  }

  void check_entries(const ForwardBatch& batch, int32_t max_running, int32_t chunk) {
    int32_t num_limited_tokens = 0;
    bool chunks = false;
    ASSERT_LE(batch.entries.size(), static_cast<size_t>(max_running));
    for (const BatchEntry& entry : batch.entries) {
      const bool decode = batch.token_ids[static_cast<size_t>(entry.query_begin)] == kTokenFromSlot;
      const Client& client = *clients_.at(entry.sequence);
      const auto prompt_len = static_cast<int32_t>(client.spec.prompt_ids.size());
      const bool may_be_forced = client.jumps && entry.prefix_len >= prompt_len;
      ASSERT_FALSE(decode && chunks);
      chunks |= entry.num_query_tokens > 1 && !may_be_forced;
      if (entry.num_query_tokens > 1)
        num_limited_tokens += entry.num_query_tokens - (may_be_forced ? 1 : 0);
    }
    if (chunk > 0) {
      ASSERT_LE(num_limited_tokens, chunk);
    }
  }

  void check_ends() {
    for (const auto& [id, client] : clients_) {
      if (client->num_ends < 0) continue;
      SCOPED_TRACE(testing::Message() << "sequence " << id);
      ASSERT_EQ(client->num_ends, 1);
      const Expected expected = alone(*client);
      const bool aborted = client->reason.type == FinishReason::Type::kAbort;
      ASSERT_EQ(aborted, client->aborted);
      if (!aborted) {
        ASSERT_EQ(client->reason.type, expected.type);
        ASSERT_EQ(client->outputs, expected.outputs);
      } else {
        ASSERT_LE(client->outputs.size(), expected.outputs.size());
        ASSERT_TRUE(
            std::equal(client->outputs.begin(), client->outputs.end(), expected.outputs.begin()));
      }
      const bool may_lack = aborted || expected.type == FinishReason::Type::kError;
      check_input_logprobs(*client, may_lack);
      check_logprobs(*client, may_lack);
    }
  }

  void check_logprobs(const Client& client, bool may_lack) {
    if (!client.spec.sampling->return_logprob) return;
    ASSERT_EQ(client.logprobs.size(), client.outputs.size());
    ASSERT_TRUE(client.num_due == 0 || may_lack);
    uint64_t digest = fake_first_digest(client.cache_namespace);
    for (const TokenId token : client.spec.prompt_ids) digest = fake_digest(digest, token);
    for (size_t i = 0; i + static_cast<size_t>(client.num_due) < client.outputs.size(); ++i) {
      ASSERT_EQ(client.logprobs[i], fake_logprob(digest, client.outputs[i])) << "output " << i;
      digest = fake_digest(digest, client.outputs[i]);
    }
  }

  void check_input_logprobs(const Client& client, bool may_lack) {
    const auto length = static_cast<int32_t>(client.spec.prompt_ids.size());
    const int32_t start = client.spec.logprob_start_len;
    const int32_t first = start < 0 ? length : std::clamp(start, 1, length);
    if (may_lack) {
      ASSERT_LE(client.input_logprobs.size(), static_cast<size_t>(length - first));
    } else {
      ASSERT_EQ(client.input_logprobs.size(), static_cast<size_t>(length - first));
    }
    uint64_t digest = fake_first_digest(client.cache_namespace);
    for (int32_t p = 0; p < length; ++p) {
      const TokenId token = client.spec.prompt_ids[static_cast<size_t>(p)];
      const auto found = client.input_logprobs.find(p);
      if (found != client.input_logprobs.end()) {
        ASSERT_GE(p, first);
        ASSERT_EQ(found->second, fake_logprob(digest, token));
      }
      digest = fake_digest(digest, token);
    }
  }

  const bool plans_;  // draft tokens of all sequences together
  Rng rng_;
  ManualClock clock_;
  SchedulerConfig config_;
  bool overlap_ = false, has_window_ = false;
  RankCaches caches_;
  std::unique_ptr<FakeLoader> loader_;  // null: nothing is loaded
  std::unique_ptr<RankSchedulers> scheduler_;
  std::vector<std::unique_ptr<FakeExecutor>> executors_;  // of each rank
  std::map<SequenceId, size_t> rank_of_;
  std::vector<std::vector<TokenId>> families_;
  std::map<SequenceId, std::unique_ptr<Client>> clients_;
  int num_to_come_ = 0;
  ForwardBatch batches_[2];
  uint64_t num_steps_ = 0, num_committed_ = 0;
};

uint64_t number_in(const char* variable, uint64_t otherwise) {
  const char* setting = std::getenv(variable);
  return setting == nullptr ? otherwise : std::strtoull(setting, nullptr, 10);
}

// Each thread takes the next seed until none is left or one has failed.
Tally run_seeds(uint64_t first, uint64_t end, uint64_t num_threads) {
  std::atomic<uint64_t> next = first;
  std::mutex mutex;
  Tally total;
  const auto work = [&] {
    Tally own;
    for (uint64_t seed = next++; seed < end && !testing::Test::HasFailure(); seed = next++) {
      SCOPED_TRACE(testing::Message() << "ESPALIER_SIMULATION_SEED=" << seed);
      Simulation simulation(seed);
      simulation.run();
      own += simulation.tally();
    }
    const std::lock_guard lock(mutex);
    total += own;
  };
  std::vector<std::thread> threads;
  for (uint64_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  return total;
}

TEST(SchedulerSimulation, EverySequenceGetsItsOwnTokensAndOneEnd) {
  if (const uint64_t one = number_in("ESPALIER_SIMULATION_SEED", 0); one != 0) {  // that failed
    run_seeds(one, one + 1, 1);
    return;
  }
  const uint64_t num_seeds = number_in("ESPALIER_SIMULATION_SEEDS", 1000);
  const uint64_t num_threads =
      number_in("ESPALIER_SIMULATION_THREADS", std::max(1u, std::thread::hardware_concurrency()));
  const Tally tally = run_seeds(1, num_seeds + 1, num_threads);
  std::printf(
      "%lld seeds (%lld with a sliding window) on %llu threads: %lld sequences, %lld faults "
      "(%lld aborts, %lld failing entries, %lld refusals, %lld retractions, %lld of them "
      "preemptions), %lld lost\n",
      static_cast<long long>(tally.seeds), static_cast<long long>(tally.windows),
      static_cast<unsigned long long>(num_threads), static_cast<long long>(tally.sequences),
      static_cast<long long>(tally.faults()), static_cast<long long>(tally.aborts),
      static_cast<long long>(tally.failures), static_cast<long long>(tally.refusals),
      static_cast<long long>(tally.retractions), static_cast<long long>(tally.preemptions),
      static_cast<long long>(tally.lost));
  EXPECT_EQ(tally.lost, 0);
  // The pools are small enough and the prompts alike enough for the test to mean something.
  const auto count = static_cast<int64_t>(num_seeds);
  EXPECT_EQ(tally.seeds, count);
  EXPECT_GE(tally.ranks, count / 4);
  EXPECT_GT(tally.retractions, count / 2);
  EXPECT_GT(tally.cached_tokens, count * 20);
  EXPECT_GT(tally.forced_tokens, count * 10);
  EXPECT_GT(tally.forwards_saved, tally.forced_tokens / 2);
  EXPECT_GT(tally.accepted_draft_tokens, count);
  EXPECT_GT(tally.loaded_tokens, count);
  EXPECT_GT(tally.loads_in_part, count / 20);
  EXPECT_GT(tally.drafted_tokens, tally.accepted_draft_tokens + count);
}

}  // namespace
}  // namespace espalier
