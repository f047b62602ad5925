// Many short lives of a whole engine, each from one seed: requests and sessions that come while
// others run, forks of one prompt, aborts, entries that fail, pauses with and without a flush,
// pools so small that they force eviction and retraction, in half of them with tiers that are slow,
// late, full or forget pages (their threads make such a seed's run vary), and in half of these with
// a device that copies pages late, as a GPU does. Every action but a
// pause runs on the loop's own thread, from inside the wait for a step, and so at the same step in
// every run of a seed; only pauses, which block their caller, come from outside when they come. At
// the end every sample has had one end and exactly the tokens that its prompt gets alone, and every
// page is back. ESPALIER_SIMULATION_SEEDS runs more; ESPALIER_SIMULATION_SEED=N runs one.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/rng.h"
#include "engine/testing/asked_store.h"
#include "engine/testing/flaky_store.h"
#include "engine/testing/remote_copier.h"
#include "engine/testing/test_engine.h"
#include "tiers/host_page_store.h"

namespace espalier {
namespace {

using Tokens = std::vector<TokenId>;

// What the model says: an end now and then, and now and then it fails.
constexpr uint64_t kEndEvery = 31, kFailEvery = 211;
Result<TokenId> next_of(uint64_t history) {
  const uint64_t draw = mix64(history ^ 0x5e55);
  if (draw % kFailEvery == 0) return fail(error(StatusCode::kInternal, "the entry has failed"));
  if (draw % kEndEvery == 1) return kByteEosId;
  return 'a' + NullExecutor::uniform_token(history, 26);
}

// Runs `act` on the loop's thread, each time a step is waited for.
class ActingExecutor final : public Executor {
 public:
  ActingExecutor(NullExecutorConfig config, std::function<void()> act)
      : device_(std::move(config)), act_(std::move(act)) {}
  void launch(const ForwardBatch& batch) override { device_.launch(batch); }
  void provide_masks(uint64_t step, const MaskView& masks) override {
    device_.provide_masks(step, masks);
  }
  const StepResult& wait(uint64_t step) override {
    act_();
    return device_.wait(step);
  }
  int32_t draft_samples_max() const override { return device_.draft_samples_max(); }
  bool penalises_draft_tokens() const override { return device_.penalises_draft_tokens(); }
  int32_t chain_max() const override { return device_.chain_max(); }
  PageCopier* page_copier() override { return device_.page_copier(); }

 private:
  NullExecutor device_;
  const std::function<void()> act_;
};

struct SampleEvents {  // of one sample
  Tokens ids;
  int num_ends = 0;
  FinishReason reason;
};

struct Asked {
  std::string rid;
  std::string session;          // empty: none
  const Asked* base = nullptr;  // what it continues
  SessionParams params;
  Tokens brought;  // its prompt, or what it adds to its base's
  int32_t max_new_tokens = 0;
  bool ignore_eos = false;
  bool may_be_refused = false;  // what it continues may run still
  bool aborted = false;         // requested, or replaced
  std::vector<SampleEvents> samples;

  bool ended() const {
    return std::ranges::all_of(samples, [](const SampleEvents& h) { return h.num_ends > 0; });
  }
  bool failed() const { return samples[0].reason.type == FinishReason::Type::kError; }
  // Known when what it continues has ended, as it has when this begins.
  Tokens prompt() const {
    Tokens tokens;
    if (base != nullptr) {
      tokens = base->prompt();
      if (!params.drop_previous_output)
        tokens.insert(tokens.end(), base->samples[0].ids.begin(), base->samples[0].ids.end());
      if (params.offset > 0) tokens.resize(static_cast<size_t>(params.offset));
    }
    tokens.insert(tokens.end(), brought.begin(), brought.end());
    return tokens;
  }
};

struct Tally {
  int64_t seeds = 0, requests = 0, samples = 0, of_sessions = 0, aborts = 0, failures = 0;
  int64_t refusals = 0, retractions = 0, pauses = 0, flushes = 0, cached_tokens = 0, lost = 0;
  int64_t full = 0, evictions = 0;  // of the refusals
  int64_t drafted = 0, accepted = 0, by_radix = 0;
  int64_t loads = 0, loads_late = 0, loads_in_part = 0, tier_tokens = 0;
  int64_t remote = 0;  // seeds
};

class EngineSimulation {
 public:
  EngineSimulation(uint64_t seed, Tally& tally) : rng_(seed), tally_(tally) {
    EngineConfig config;
    config.cache.page_size = pick({1, 1, 4, 16});
    config.cache.max_total_tokens = static_cast<int32_t>(rng_.between(160, 600)) / 16 * 16;
    config.schedule.max_running_requests = static_cast<int32_t>(rng_.between(1, 8));
    const bool small_queue = rng_.below(3) == 0;
    config.schedule.max_queued_requests =
        small_queue ? static_cast<int32_t>(rng_.between(3, 8)) : 1000;
    config.schedule.chunked_prefill_size = pick({-1, 8, 16, 64});
    constexpr const char* kPolicies[] = {"lpm", "dfs-weight", "fcfs", "lof", "random", "priority"};
    config.schedule.schedule_policy = kPolicies[rng_.below(std::size(kPolicies))];
    if (small_queue && rng_.below(2) == 0) config.schedule.schedule_policy = "priority";
    config.schedule.fair_share = rng_.below(3) == 0 ? "tenant" : "none";
    config.schedule.schedule_conservativeness = pick({1, 30, 100}) * 0.01;
    config.schedule.priority_scheduling_preemption_threshold = 1;
    config.cache.disable_radix_cache = rng_.below(6) == 0;
    config.compute.disable_overlap_schedule = rng_.below(4) == 0;
    constexpr const char* kDrafters[] = {"none", "NGRAM", "COMBINED", "RADIX"};
    const size_t num_drafters = std::size(kDrafters) - (config.cache.disable_radix_cache ? 1 : 0);
    config.speculation.speculative_algorithm = kDrafters[mix64(seed) % num_drafters];
    config.speculation.speculative_num_draft_tokens = static_cast<int32_t>(1 + seed % 16);
    config.cache.num_cache_events = rng_.below(3) == 0 ? 100 : 0;
    config.model.skip_tokenizer_init = true;
    config.check_invariants = true;
    config.sampling.random_seed = seed;
    has_priorities_ = config.schedule.schedule_policy == "priority";
    Engine::Parts parts{
        .executor = std::make_unique<ActingExecutor>(
            NullExecutorConfig{.vocab_size = kByteVocabSize,
                               .page_size = config.cache.page_size,
                               .chain_max = 16,
                               .next_token = [](uint64_t history) { return next_of(history); }},
            [this] { act(); }),
        .info = {.vocab_size = kByteVocabSize, .context_length = 150, .eos_ids = {kByteEosId}}};
    if (rng_.below(2) == 0 && !config.cache.disable_radix_cache) {
      config.tiers.enable_hierarchical_cache = true;
      config.tiers.hicache_size_gb = 1;  // make_tiers has its own
      parts.make_tiers = [this](const auto& c, const auto&, const auto& scope, auto& executor,
                                const auto& clock) {
        return make_tiers(c, scope, *executor.page_copier(), clock);
      };
    } else if (mix64(seed + 1) % 2 == 0) {
      config.speculation.speculative_algorithm = "EAGLE3";
      config.speculation.speculative_num_steps = static_cast<int32_t>(1 + seed % 16);
    }
    auto engine = Engine::create(config, std::move(parts));
    EXPECT_TRUE(engine) << engine.error().to_string();
    engine_ = std::move(*engine);
    for (int i = 0; i < 3; ++i) families_.push_back(random_tokens(60));
    for (int i = 0; i < 2; ++i) open_session();
    num_to_come_ = static_cast<int>(rng_.between(4, 40));
    num_pauses_to_come_ = rng_.below(4) == 0 ? 3 : 0;
  }

  void run() {
    while (num_to_come_ > 0 && !testing::Test::HasFailure()) {
      // Nothing runs and nothing is in flight, and what comes comes together.
      ASSERT_TRUE(engine_->pause_generation(Engine::PauseMode::kInPlace).ok());
      if (rng_.below(3) == 0) flush();
      for (int64_t burst = rng_.between(1, 5); burst > 0 && num_to_come_ > 0; --burst) arrive();
      ASSERT_TRUE(engine_->continue_generation().ok());
      wait_until_idle();
    }
    ASSERT_TRUE(engine_->pause_generation(Engine::PauseMode::kInPlace).ok());
    flush();
    check();
  }

 private:
  int32_t pick(std::initializer_list<int32_t> choices) {
    return *(choices.begin() + rng_.below(choices.size()));
  }
  std::unique_ptr<KvTiers> make_tiers(const EngineConfig& config, const PageNameScope& scope,
                                      PageCopier& copier, const Clock& clock) {
    KvTiers::Parts parts{.copier = &copier, .clock = &clock};
    const int64_t page_bytes = copier.page_bytes();
    if (rng_.below(2) == 0) {
      remote_ = std::make_unique<RemoteCopier>(
          copier, RemoteCopier::Options{.seed = rng_(),
                                        .delay_max = std::chrono::microseconds(pick({0, 20, 300})),
                                        .fail_one_of = static_cast<uint64_t>(pick({0, 0, 20}))});
      parts.copier = remote_.get();
      ++tally_.remote;
    }
    const bool has_host = rng_.below(2) == 0;
    if (has_host)
      parts.host = HostPageStore::create({.size_bytes = page_bytes * rng_.between(1, 300),
                                          .page_bytes = page_bytes,
                                          .num_gets_max = pick({1, 256})})
                       .value();
    if (!has_host || rng_.below(2) == 0)
      parts.storage = std::make_unique<FlakyStore>(
          FlakyStore::Options{.seed = rng_(),
                              .page_bytes = page_bytes,
                              .lose_one_of = static_cast<uint64_t>(pick({0, 5, 50})),
                              .refuse_one_of = static_cast<uint64_t>(pick({0, 3, 20})),
                              .delay_max = std::chrono::microseconds(pick({0, 200, 2000}))});
    if (rng_.below(3) == 0) {  // elsewhere: it answers at once, or only that it is asked
      auto elsewhere = std::make_unique<AskedStore>(
          FlakyStore::Options{.seed = rng_(),
                              .page_bytes = page_bytes,
                              .lose_one_of = static_cast<uint64_t>(pick({0, 5})),
                              .delay_max = std::chrono::microseconds(pick({0, 500}))});
      if (rng_.below(4) > 0) elsewhere->answer();
      parts.remote = std::move(elsewhere);
    }
    const Duration timeout = std::chrono::microseconds(pick({1, 500, 1'000'000}));
    return std::make_unique<KvTiers>(
        KvTiersConfig{.policy = static_cast<TierWritePolicy>(rng_.below(3)),
                      .prefetch = rng_.below(4) == 0 && has_host ? PrefetchPolicy::kBestEffort
                                                                 : PrefetchPolicy::kTimeout,
                      .page_size = config.cache.page_size,
                      .num_device_pages = config.cache.max_total_tokens / config.cache.page_size,
                      .name_scope = scope,
                      .load_timeout = timeout,
                      .load_timeout_per_1024 = Duration(0)},
        std::move(parts));
  }
  Tokens random_tokens(int64_t count) {
    Tokens tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back('a' + static_cast<TokenId>(rng_.below(8)));
    return tokens;
  }

  void open_session() {
    const std::string id = "session" + std::to_string(sessions_.size());
    ASSERT_TRUE(engine_->open_session({.id = id, .capacity = 100000}));
    sessions_.push_back(id);
  }

  // On the loop's thread, while a step runs.
  void act() {
    const std::lock_guard lock(mutex_);
    if (num_live_ == 0) return;  // the step of one that has ended: next is the outside's turn
    while (num_to_come_ > 0 && rng_.below(6) == 0) arrive();
    if (rng_.below(12) == 0) abort_one();
    if (rng_.below(40) == 0) open_session();
  }

  void arrive() {
    const std::lock_guard lock(mutex_);
    --num_to_come_;
    asked_.push_back(std::make_unique<Asked>());
    Asked& a = *asked_.back();
    a.rid = "r" + std::to_string(asked_.size());
    a.brought = families_[rng_.below(families_.size())];
    a.brought.resize(rng_.below(40));
    for (const TokenId token : random_tokens(rng_.between(1, 8))) a.brought.push_back(token);
    a.max_new_tokens = static_cast<int32_t>(rng_.between(0, 40));
    a.ignore_eos = rng_.below(2) == 0;
    const bool in_session = rng_.below(3) == 0;
    a.samples.resize(in_session || rng_.below(4) != 0 ? 1 : static_cast<size_t>(pick({2, 3})));
    if (in_session) continue_session(a);

    GenerateRequest request{.rid = a.rid, .input_ids = a.brought};
    request.sampling.max_new_tokens = a.max_new_tokens;
    request.sampling.ignore_eos = a.ignore_eos;
    request.sampling.temperature = 0;
    request.sampling.n = static_cast<int32_t>(a.samples.size());
    if (has_priorities_) request.priority = static_cast<int32_t>(rng_.between(-1, 1));
    if (!in_session && rng_.below(4) == 0) request.extra_key = "tenant";
    if (in_session) request.session = a.params;
    ++num_live_;
    const auto rid =
        engine_->submit(std::move(request), [this, &a](TokenEvent&& e) { on_event(a, e); });
    if (rid) return;
    ASSERT_EQ(rid.error().code(), StatusCode::kResourceExhausted) << rid.error().to_string();
    for (size_t i = 0; i < a.samples.size(); ++i) {
      TokenEvent refused{.index = static_cast<int32_t>(i)};
      refused.finish = FinishReason{.type = FinishReason::Type::kError, .status = rid.error()};
      on_event(a, refused);
    }
  }

  void continue_session(Asked& a) {
    a.session = a.params.id = sessions_[rng_.below(sessions_.size())];
    a.brought.resize(std::min<size_t>(a.brought.size(), 12));
    std::vector<Asked*> earlier;
    for (const auto& other : asked_)
      if (other.get() != &a && other->session == a.session && !other->may_be_refused &&
          !other->aborted && !(other->ended() && other->failed()))
        earlier.push_back(other.get());
    if (earlier.empty() || rng_.below(4) == 0) return;
    a.base = earlier[rng_.below(earlier.size())];
    a.params.rid = a.base->rid;
    a.may_be_refused = !a.base->ended();
    a.params.drop_previous_output = rng_.below(4) == 0;
    const size_t length = a.base->ended() ? a.base->prompt().size() : 0;
    if (length > 1 && rng_.below(4) == 0)
      a.params.offset = static_cast<int32_t>(rng_.between(1, static_cast<int64_t>(length) - 1));
  }

  void abort_one() {
    Asked& a = *asked_[rng_.below(asked_.size())];
    if (!a.ended()) a.aborted = true;
    engine_->abort(a.rid, Engine::AbortScope::kExact);
  }

  void on_event(Asked& a, TokenEvent& event) {
    const std::lock_guard lock(mutex_);
    SampleEvents& h = a.samples.at(static_cast<size_t>(event.index));
    EXPECT_EQ(h.num_ends, 0) << a.rid << ": an event after the last one";
    h.ids.insert(h.ids.end(), event.ids.begin(), event.ids.end());
    if (!event.finish) return;
    ++h.num_ends;
    h.reason = *event.finish;
    if (a.ended() && --num_live_ == 0) idle_.notify_all();
  }

  // Meanwhile generation is paused now and then, and flushed while nothing runs.
  void wait_until_idle() {
    std::unique_lock lock(mutex_);
    while (num_live_ > 0) {
      if (num_pauses_to_come_ > 0) {
        --num_pauses_to_come_;
        lock.unlock();
        const bool retract = num_pauses_to_come_ % 2 == 0;
        EXPECT_TRUE(engine_
                        ->pause_generation(retract ? Engine::PauseMode::kRetract
                                                   : Engine::PauseMode::kInPlace)
                        .ok());
        ++tally_.pauses;
        if (retract) flush();
        EXPECT_TRUE(engine_->continue_generation().ok());
        lock.lock();
        continue;
      }
      if (!idle_.wait_for(lock, std::chrono::seconds(30), [&] { return num_live_ == 0; })) {
        ADD_FAILURE() << num_live_ << " requests are lost";
        tally_.lost += num_live_;
        return;
      }
    }
  }

  void flush() {
    const Status flushed = engine_->flush_cache();
    EXPECT_TRUE(flushed.ok()) << flushed.to_string();
    EXPECT_EQ(engine_->stats().memory.kv_tokens_cached, 0);
    ++tally_.flushes;
  }

  void check() {
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.requests.num_running + stats.requests.num_waiting, 0);
    EXPECT_EQ(stats.memory.kv_tokens_running, 0);
    EXPECT_EQ(stats.sessions.num_open, static_cast<int32_t>(sessions_.size()));
    for (const std::string& id : sessions_) EXPECT_TRUE(engine_->close_session(id).ok());
    EXPECT_EQ(engine_->stats().sessions.num_open, 0);
    ++tally_.seeds;
    tally_.requests += static_cast<int64_t>(asked_.size());
    tally_.retractions += stats.requests.num_retractions;
    tally_.cached_tokens += stats.tokens.cached;
    tally_.drafted += stats.speculation.drafted_tokens;
    tally_.accepted += stats.speculation.accepted_tokens;
    tally_.by_radix +=
        stats.speculation.by_drafter[static_cast<size_t>(Drafter::kRadix)].accepted_tokens;
    check_drafters(stats);
    tally_.loads += stats.tiers.loads;
    tally_.loads_late += stats.tiers.loads_late;
    tally_.loads_in_part += stats.tiers.loads_in_part;
    tally_.tier_tokens += stats.tiers.host_tokens + stats.tiers.storage_tokens;
    for (const auto& a : asked_) {
      SCOPED_TRACE(a->rid);
      tally_.of_sessions += a->session.empty() ? 0 : 1;
      tally_.aborts += a->aborted ? 1 : 0;
      for (const SampleEvents& h : a->samples) check_sample(*a, h);
    }
  }

  // The counts by drafter are those of all together.
  static void check_drafters(const EngineStats& stats) {
    DraftCounts sum;
    for (const DraftCounts& counts : stats.speculation.by_drafter) {
      sum.drafted_tokens += counts.drafted_tokens;
      sum.accepted_tokens += counts.accepted_tokens;
      int64_t num_entries = 0;
      for (const int64_t entries : counts.accepted_lengths.entries) num_entries += entries;
      EXPECT_EQ(num_entries, counts.verify_steps);
      sum.verify_steps += counts.verify_steps;
    }
    EXPECT_EQ(sum.drafted_tokens, stats.speculation.drafted_tokens);
    EXPECT_EQ(sum.accepted_tokens, stats.speculation.accepted_tokens);
    EXPECT_EQ(sum.verify_steps, stats.speculation.num_verified);
  }

  void check_sample(const Asked& a, const SampleEvents& sample_events) {
    ++tally_.samples;
    ASSERT_EQ(sample_events.num_ends, 1);
    using Type = FinishReason::Type;
    if (sample_events.reason.type == Type::kError && sample_events.ids.empty() &&
        sample_events.reason.status.code() != StatusCode::kInternal) {
      // Refused: too long for the pool or the context, or what it continues had not ended.
      ++tally_.refusals;
      if (sample_events.reason.status.code() == StatusCode::kResourceExhausted) {
        // The queue was full, or the request gave way to another while it waited.
        EXPECT_LT(engine_->config().schedule.max_queued_requests, 1000);
        ++(sample_events.reason.status.message() == "The request queue is full."
               ? tally_.full
               : tally_.evictions);
      } else if (sample_events.reason.status.code() == StatusCode::kFailedPrecondition) {
        EXPECT_TRUE(a.may_be_refused);
      } else {
        EXPECT_EQ(sample_events.reason.status.code(), StatusCode::kInvalidArgument);
        EXPECT_TRUE(base_is_gone(a) || static_cast<int32_t>(a.prompt().size()) + a.max_new_tokens >
                                           std::min(150, engine_->config().cache.max_total_tokens))
            << sample_events.reason.status.to_string();
      }
      return;
    }
    const bool aborted = sample_events.reason.type == Type::kAbort;
    EXPECT_EQ(aborted && !a.aborted, false) << "aborted by nobody";
    Tokens tokens = a.prompt();
    for (size_t i = 0;; ++i) {
      if (aborted && i == sample_events.ids.size()) return;
      if (i == static_cast<size_t>(a.max_new_tokens)) break;
      const Result<TokenId> next = next_of(NullExecutor::hash_history(tokens));
      if (!next) {
        ASSERT_EQ(sample_events.ids.size(), i);
        EXPECT_EQ(sample_events.reason.type, Type::kError);
        ++tally_.failures;
        return;
      }
      ASSERT_LT(i, sample_events.ids.size());
      ASSERT_EQ(sample_events.ids[i], *next) << "token " << i;
      tokens.push_back(*next);
      if (*next == kByteEosId && !a.ignore_eos && i + 1 < static_cast<size_t>(a.max_new_tokens)) {
        EXPECT_EQ(sample_events.ids.size(), i + 1);
        EXPECT_EQ(sample_events.reason.type, Type::kStop);
        return;
      }
    }
    EXPECT_EQ(sample_events.ids.size(), static_cast<size_t>(a.max_new_tokens));
    EXPECT_EQ(sample_events.reason.type, Type::kLength);
  }

  // It failed, and a request that failed is not of the session.
  static bool base_is_gone(const Asked& a) { return a.base != nullptr && a.base->failed(); }

  Rng rng_;
  Tally& tally_;
  bool has_priorities_ = false;
  int num_pauses_to_come_ = 0;
  std::vector<Tokens> families_;
  std::vector<std::string> sessions_;

  std::recursive_mutex mutex_;  // arrive() is called from act() and from outside
  std::condition_variable_any idle_;
  std::vector<std::unique_ptr<Asked>> asked_;
  int num_to_come_ = 0, num_live_ = 0;
  std::unique_ptr<RemoteCopier> remote_;
  std::unique_ptr<Engine> engine_;  // last: its thread uses all of the above
};

uint64_t number_in(const char* variable, uint64_t otherwise) {
  const char* setting = std::getenv(variable);
  return setting == nullptr ? otherwise : std::strtoull(setting, nullptr, 10);
}

TEST(EngineSimulation, EveryRequestGetsItsOwnTokensAndOneEnd) {
  const uint64_t one = number_in("ESPALIER_SIMULATION_SEED", 0);
  const uint64_t num_seeds = one != 0 ? 1 : number_in("ESPALIER_SIMULATION_SEEDS", 200);
  const uint64_t first = one != 0 ? one : 1;
  const uint64_t num_threads = one != 0
                                   ? 1
                                   : number_in("ESPALIER_SIMULATION_THREADS",
                                               std::max(1u, std::thread::hardware_concurrency()));
  std::atomic<uint64_t> next = first;
  std::mutex mutex;
  Tally total;
  const auto work = [&] {
    Tally t;
    for (uint64_t seed = next++; seed < first + num_seeds && !testing::Test::HasFailure();
         seed = next++) {
      SCOPED_TRACE(testing::Message() << "ESPALIER_SIMULATION_SEED=" << seed);
      EngineSimulation(seed, t).run();
    }
    const std::lock_guard lock(mutex);
    total.seeds += t.seeds, total.requests += t.requests, total.samples += t.samples;
    total.of_sessions += t.of_sessions, total.aborts += t.aborts, total.failures += t.failures;
    total.refusals += t.refusals, total.retractions += t.retractions, total.pauses += t.pauses;
    total.flushes += t.flushes, total.cached_tokens += t.cached_tokens, total.lost += t.lost;
    total.full += t.full, total.evictions += t.evictions;
    total.drafted += t.drafted, total.accepted += t.accepted, total.by_radix += t.by_radix;
    total.loads += t.loads, total.loads_late += t.loads_late;
    total.loads_in_part += t.loads_in_part, total.tier_tokens += t.tier_tokens;
    total.remote += t.remote;
  };
  std::vector<std::thread> threads;
  for (uint64_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  const auto n = [](int64_t value) { return static_cast<long long>(value); };
  std::printf(
      "%lld seeds of whole engines: %lld requests (%lld of sessions), %lld samples; %lld aborts, "
      "%lld failing entries, %lld refusals (%lld by a full queue, %lld evicted from it), %lld "
      "retractions, %lld pauses, %lld flushes; %lld loads (%lld late, %lld in part) of %lld "
      "tokens, %lld seeds with a remote device; %lld draft tokens (%lld accepted, %lld of the "
      "radix "
      "tree's); %lld lost\n",
      n(total.seeds), n(total.requests), n(total.of_sessions), n(total.samples), n(total.aborts),
      n(total.failures), n(total.refusals), n(total.full), n(total.evictions), n(total.retractions),
      n(total.pauses), n(total.flushes), n(total.loads), n(total.loads_late),
      n(total.loads_in_part), n(total.tier_tokens), n(total.remote), n(total.drafted),
      n(total.accepted), n(total.by_radix), n(total.lost));
  if (one != 0) return;
  // It means something.
  const auto count = static_cast<int64_t>(num_seeds);
  EXPECT_EQ(total.seeds, count);
  EXPECT_GT(total.of_sessions, count * 2);
  EXPECT_GT(total.cached_tokens, count * 20);
  EXPECT_GT(total.aborts + total.failures, count);
  EXPECT_GT(total.retractions, count / 10);
  EXPECT_GT(total.drafted, count);
  EXPECT_GT(total.accepted, count / 4);
  EXPECT_GT(total.by_radix, count / 20);
  EXPECT_GT(total.loads, count / 5);
  EXPECT_GT(total.loads_late, count / 20);
  EXPECT_GT(total.loads_in_part, count / 20);
  EXPECT_GT(total.tier_tokens, count / 2);
  EXPECT_GT(total.remote, count / 10);
  EXPECT_GT(total.full, count / 10);
  EXPECT_GT(total.evictions, count / 20);
}

}  // namespace
}  // namespace espalier
