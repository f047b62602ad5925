// Several engines behind one front: each request has its own answer wherever it runs, and what
// concerns an engine concerns all of them. Requests wait in a pause until all have come, so
// that which replica gets which does not depend on timing.
#include "engine/replicas/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/replicas/start_replicas.h"
#include "engine/testing/test_joins.h"
#include "engine/testing/test_requests.h"
#include "models/test_adapter.h"

namespace espalier {
namespace {

using testing::HasSubstr;

struct TestReplicas {
  std::unique_ptr<Replicas> front;
  void pause() { ASSERT_TRUE(front->pause_generation(Engine::PauseMode::kInPlace).ok()); }
  void go_on() { ASSERT_TRUE(front->continue_generation().ok()); }
};

TestReplicas make_replicas(int count, LoadBalance method, TestEngineOptions options = {}) {
  std::vector<std::unique_ptr<Engine>> engines;
  for (int i = 0; i < count; ++i) engines.push_back(make_test_engine(options).engine);
  return {std::make_unique<Replicas>(std::move(engines), method)};
}

GenerateRequest request_of(const std::string& text, int32_t count, const std::string& rid = "") {
  return {.rid = rid,
          .text = text,
          .sampling = {.max_new_tokens = count, .temperature = 0.0f, .ignore_eos = true}};
}

TEST(Replicas, EachRequestGetsItsOwnAnswer) {
  for (const LoadBalance method :
       {LoadBalance::kRoundRobin, LoadBalance::kShortestQueue, LoadBalance::kCacheAware}) {
    TestReplicas test = make_replicas(3, method);
    test.pause();
    std::list<Collector> collectors;
    std::set<std::string> rids;
    std::map<int32_t, int> num_by_replica;
    std::vector<int32_t> replicas;  // of each request
    constexpr int kRequests = 60;
    for (int i = 0; i < kRequests; ++i) {
      const auto rid = test.front->submit(request_of("question " + std::to_string(i), 5 + i % 7),
                                          collectors.emplace_back().sink());
      ASSERT_TRUE(rid) << rid.error().to_string();
      EXPECT_TRUE(rids.insert(*rid).second);
      ++num_by_replica[replicas.emplace_back(test.front->replica_of(*rid))];
    }
    for (int32_t replica = 0; replica < 3; ++replica)
      EXPECT_EQ(num_by_replica[replica], kRequests / 3);
    test.go_on();
    int i = 0;
    for (Collector& c : collectors) {
      ASSERT_TRUE(c.wait_end());
      EXPECT_EQ(c.result().stats.dp_rank, replicas[static_cast<size_t>(i)]);
      EXPECT_EQ(c.result().output_ids,
                Script().answer(bytes_of("question " + std::to_string(i)), 5 + i % 7));
      ++i;
    }
    EXPECT_EQ(test.front->stats().requests.num_total, kRequests);
    EXPECT_EQ(test.front->stats().requests.num_finished, kRequests);
    for (const Engine* replica : test.front->replicas())
      EXPECT_EQ(replica->stats().requests.num_total, kRequests / 3);
    for (const std::string& rid : rids) EXPECT_EQ(test.front->replica_of(rid), -1);
  }
}

TEST(Replicas, IdsAreUniqueOverAllOfThem) {
  TestReplicas test = make_replicas(2, LoadBalance::kRoundRobin);
  test.pause();
  Collector first(2), second, third;
  GenerateRequest twice = request_of("twice", 4, "mine");
  twice.sampling.n = 2;
  ASSERT_TRUE(test.front->submit(twice, first.sink()));
  for (int i = 0; i < 2; ++i) {  // whichever replica's turn it is
    const auto refused = test.front->submit(request_of("other", 4, "mine"), second.sink());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), StatusCode::kAlreadyExists);
  }
  test.go_on();
  ASSERT_TRUE(first.wait_end());
  ASSERT_TRUE(test.front->submit(request_of("third", 4, "mine"), third.sink()));
  ASSERT_TRUE(third.wait_end());
  // A request that a replica refuses gives its id back.
  for (int i = 0; i < 2; ++i) {
    GenerateRequest wrong = request_of("wrong", 4, "again");
    wrong.sampling.temperature = -1.0f;
    EXPECT_EQ(test.front->submit(wrong, second.sink()).error().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST(Replicas, AbortsReachWhoeverHasTheRequest) {
  TestReplicas test = make_replicas(2, LoadBalance::kRoundRobin);
  test.pause();
  std::list<Collector> collectors;
  const std::vector<std::string> rids = {"a/0", "a/1", "b/0", "b/1", "c"};
  for (const std::string& rid : rids)
    ASSERT_TRUE(test.front->submit(request_of("say", 2000, rid), collectors.emplace_back().sink()));
  test.front->abort("a/", Engine::AbortScope::kPrefix);
  test.front->abort("b/1", Engine::AbortScope::kExact);
  test.front->abort("nobody", Engine::AbortScope::kExact);
  test.go_on();
  auto collector = collectors.begin();
  for (const std::string& rid : rids) {
    Collector& c = *collector++;
    if (rid == "b/0" || rid == "c") test.front->abort(rid, Engine::AbortScope::kExact);
    ASSERT_TRUE(c.wait_end());
  }
  EXPECT_EQ(collectors.front().finish_type(), FinishReason::Type::kAbort);
  EXPECT_GE(test.front->stats().requests.num_aborted, 3);
}

TEST(Replicas, SessionsStayWhereTheyAre) {
  TestReplicas test = make_replicas(3, LoadBalance::kRoundRobin);
  std::vector<std::string> ids;
  for (int i = 0; i < 9; ++i) {
    const auto id = test.front->open_session({.capacity = 1 << 16});
    ASSERT_TRUE(id) << id.error().to_string();
    ids.push_back(*id);
  }
  EXPECT_EQ(test.front->stats().sessions.num_open, 9);
  for (const Engine* replica : test.front->replicas())
    EXPECT_EQ(replica->stats().sessions.num_open, 3);
  std::map<std::string, std::string> said, last;
  for (int turn = 0; turn < 3; ++turn)
    for (const std::string& id : ids) {
      GenerateRequest request =
          request_of("turn " + std::to_string(turn) + " of " + id.substr(0, 4), 6);
      request.session = SessionParams{.id = id, .rid = last[id]};
      const std::string prompt = said[id] + request.text;
      const auto r = test.front->generate(request);
      ASSERT_TRUE(r) << r.error().to_string();
      EXPECT_EQ(r->output_ids, Script().answer(bytes_of(prompt), 6));
      said[id] = prompt + r->text;
      last[id] = r->rid;
    }
  ASSERT_TRUE(test.front->open_session({.id = "stated", .capacity = 100}));
  EXPECT_EQ(test.front->open_session({.id = "stated", .capacity = 100}).error().code(),
            StatusCode::kAlreadyExists);
  ids.push_back("stated");
  for (const std::string& id : ids) EXPECT_TRUE(test.front->close_session(id).ok());
  EXPECT_EQ(test.front->stats().sessions.num_open, 0);
  EXPECT_FALSE(test.front->close_session("stated").ok());
}

// By round robin the branches are computed on different replicas.
TEST(Replicas, BranchesAreJoinedOnOneReplicaWhichWhatFollowsFinds) {
  TestReplicas test = make_replicas(3, LoadBalance::kRoundRobin);
  ASSERT_TRUE(test.front->can_join_branches());
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  for (int round = 0; round < 10; ++round) {
    JoinRequest request{.extra_key = round % 2 == 0 ? "" : "key", .prefix = random_ids(rng, 1, 40)};
    for (int i = 0; i < 3; ++i) {
      request.branches.push_back(random_ids(rng, 1, 9));
      compute(*test.front, request.prefix + request.branches.back(), request.extra_key);
    }
    const Ids last = request.prefix + request.branches.back();
    const auto joined = join(*test.front, request);
    ASSERT_TRUE(joined) << joined.error().to_string();
    for (int i = 0; i < 4; ++i) {
      const Ids rest = random_ids(rng, 1, 5);
      const auto r = test.front->generate({.input_ids = joined->input_ids + rest,
                                           .sampling = {.max_new_tokens = 5, .ignore_eos = true},
                                           .extra_key = joined->extra_key});
      ASSERT_TRUE(r) << r.error().to_string();
      EXPECT_EQ(r->output_ids, Script().answer(last + rest, 5));
      EXPECT_GE(r->stats.cached_tokens, static_cast<int32_t>(joined->input_ids.size()));
    }
  }
  EXPECT_EQ(join(*test.front, {.prefix = {3}, .branches = {{4}}}).error().code(),
            StatusCode::kInvalidArgument);
}

TEST(Replicas, AConversationFindsItsPrefix) {
  TestReplicas test = make_replicas(4, LoadBalance::kCacheAware);
  std::vector<std::string> conversations;
  for (int i = 0; i < 8; ++i)
    conversations.push_back(std::string(200, static_cast<char>('a' + i)) + " and so on");
  for (int turn = 0; turn < 4; ++turn)
    for (std::string& text : conversations) {
      const auto r = test.front->generate(request_of(text, 20));
      ASSERT_TRUE(r);
      EXPECT_GE(r->stats.cached_tokens, turn > 0 ? 200 : 0);
      text += r->text + std::string(70, '?');
    }
  for (const Engine* replica : test.front->replicas())
    EXPECT_GT(replica->stats().requests.num_total, 0);
}

TEST(Replicas, FlushesAndPausesAllOfThem) {
  TestReplicas test =
      make_replicas(2, LoadBalance::kRoundRobin, {.step_delay = std::chrono::milliseconds(1)});
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(test.front->generate(request_of("some text", 3)));
  EXPECT_GT(test.front->stats().memory.kv_tokens_cached, 0);
  Collector running;
  ASSERT_TRUE(test.front->submit(request_of("running", 3000, "running"), running.sink()));
  ASSERT_TRUE(running.wait_events(1));
  test.pause();  // it runs on one of them
  EXPECT_EQ(test.front->flush_cache().code(), StatusCode::kFailedPrecondition);
  test.go_on();
  test.front->abort("running", Engine::AbortScope::kExact);
  ASSERT_TRUE(running.wait_end());
  test.pause();  // the step in flight at the request's end has been committed
  EXPECT_TRUE(test.front->flush_cache().ok());
  EXPECT_EQ(test.front->stats().memory.kv_tokens_cached, 0);
  test.go_on();
  test.front->drain(std::chrono::seconds(30));
  Collector late;
  EXPECT_EQ(test.front->submit(request_of("late", 3), late.sink()).error().code(),
            StatusCode::kUnavailable);
}

TEST(Replicas, GrammarsAreCompiledOnEach) {
  TestReplicas test = make_replicas(2, LoadBalance::kRoundRobin);
  GenerateRequest request = request_of("n: ", 10);
  request.sampling.regex = "[0-9]{3}";
  request.sampling.ignore_eos = false;
  ASSERT_TRUE(test.front->compile_grammar(request.sampling, 0));
  EXPECT_EQ(test.front->stats().grammars.num_compiled, 2);
  for (int i = 0; i < 2; ++i) {
    const auto r = test.front->generate(request);
    ASSERT_TRUE(r);
    EXPECT_EQ(r->text.size(), 3u);
  }
  EXPECT_EQ(test.front->stats().grammars.num_cache_hits, 2);
  EXPECT_FALSE(test.front->compile_grammar({.regex = "["}, 0));
}

TEST(Replicas, EventsAreThoseOfEachReplica) {
  TestReplicas test =
      make_replicas(2, LoadBalance::kRoundRobin, {.config = {.cache = {.num_cache_events = 100}}});
  ASSERT_TRUE(test.front->generate(request_of("first", 2)));
  ASSERT_TRUE(test.front->generate(request_of("second", 2)));
  test.pause();
  std::set<TokenId> begins;
  for (const Engine* replica : test.front->replicas()) {
    const auto read = replica->read_cache(1, 100);
    ASSERT_TRUE(read);
    ASSERT_FALSE(read->events.empty());
    begins.insert(read->events.front().tokens.front());
  }
  EXPECT_THAT(begins, testing::ElementsAre('f', 's'));
}

// Real models: requests of every kind have the answers of one engine, sampled ones too.
TEST(Replicas, AnswersAreThoseOfOneEngine) {
  for (const std::string model : {"llama_tied_llama3", "qwen3_moe", "deepseek_v2", "gemma2"}) {
    SCOPED_TRACE(model);
    std::vector<Answer> alone;
    {
      const auto one = load_golden(model, {});
      ASSERT_NE(one, nullptr);
      alone = answers_alone(*one);
    }
    for (const std::string method : {"round_robin", "shortest_queue", "cache_aware"}) {
      const auto engine =
          load_golden(model, {.compute = {.dp_size = 2, .load_balance_method = method}});
      ASSERT_NE(engine, nullptr);
      ASSERT_EQ(engine->replicas().size(), 2u);
      EXPECT_EQ(engine->config().compute.dp_size, 2);
      for (int round = 0; round < 2; ++round)
        EXPECT_EQ(answers_in_a_crowd(*engine), alone) << method;
      for (const Engine* replica : engine->replicas())
        EXPECT_GE(replica->stats().requests.num_total, method == "cache_aware" ? 0 : 1) << method;
    }
  }
}

// Seeds of requests that bring none are drawn in the order in which they come, by one sequence.
TEST(Replicas, DrawsTheSeedsOfOneEngine) {
  std::vector<std::vector<TokenId>> answers;
  for (const int32_t dp_size : {1, 2, 3}) {
    const auto engine = load_golden("llama_tied_llama3", {.compute = {.dp_size = dp_size}});
    ASSERT_NE(engine, nullptr);
    std::vector<TokenId> all;
    for (int i = 0; i < 6; ++i) {
      const auto r = engine->generate(
          {.input_ids = {5, 6, 7},
           .sampling = {.max_new_tokens = 12, .temperature = 1.5f, .ignore_eos = true}});
      ASSERT_TRUE(r);
      all.insert(all.end(), r->output_ids.begin(), r->output_ids.end());
    }
    answers.push_back(std::move(all));
  }
  EXPECT_EQ(answers[1], answers[0]);
  EXPECT_EQ(answers[2], answers[0]);
}

TEST(Replicas, AdaptersAreLoadedOnAllOrOnNone) {
  const std::string model = "llama_tied_llama3";
  const auto folder = std::filesystem::path(testing::TempDir()) / "replicas_adapter";
  write_test_adapter(kModels / model, 1, folder);
  EngineConfig config{.compute = {.dp_size = 2, .load_balance_method = "round_robin"}};
  config.lora.enable_lora = true;
  const auto engine = load_golden(model, config);
  ASSERT_NE(engine, nullptr);
  EXPECT_FALSE(engine->load_adapter("a", folder / "nothing"));
  EXPECT_TRUE(engine->adapters().empty());
  const auto loaded = engine->load_adapter("a", folder);
  ASSERT_TRUE(loaded) << loaded.error().to_string();
  ASSERT_EQ(engine->adapters().size(), 1u);
  EXPECT_EQ(engine->adapters()[0].info.size_bytes, loaded->size_bytes);
  std::set<std::vector<TokenId>> plain, adapted;
  for (int i = 0; i < 4; ++i) {
    GenerateRequest request{.input_ids = {5, 6, 7, 8, 9},
                            .sampling = {.max_new_tokens = 20, .temperature = 0.0f}};
    plain.insert(engine->generate(request)->output_ids);
    request.lora = "a";
    const auto r = engine->generate(request);
    ASSERT_TRUE(r) << r.error().to_string();
    adapted.insert(r->output_ids);
  }
  EXPECT_EQ(plain.size(), 1u);
  EXPECT_EQ(adapted.size(), 1u);
  EXPECT_NE(plain, adapted);
  EXPECT_TRUE(engine->unload_adapter("a").ok());
  EXPECT_FALSE(engine->unload_adapter("a").ok());
  EXPECT_TRUE(engine->adapters().empty());
  std::filesystem::remove_all(folder);
}

TEST(Replicas, SettingsOfAllAreDivided) {
  EngineConfig user;
  user.compute = {.device = "cuda:2", .num_threads = 7, .tp_size = 2, .dp_size = 3};
  user.schedule.max_running_requests = 2;
  user.tiers.hicache_size_gb = 6;
  const EngineConfig second = config_of_replica(user, {.index = 1, .num_replicas = 3});
  EXPECT_EQ(second.compute.device, "cuda");
  EXPECT_EQ(second.compute.base_gpu_id, 4);
  EXPECT_EQ(second.compute.num_threads, 2);
  EXPECT_EQ(second.compute.dp_size, 1);
  EXPECT_EQ(second.schedule.max_running_requests, 1);
  EXPECT_EQ(second.schedule.max_queued_requests, 0);  // chosen
  EXPECT_EQ(second.tiers.hicache_size_gb, 2);
  const SystemInfo share =
      share_of_host({.available_bytes = 900, .num_cpus = 2}, {.index = 1, .num_replicas = 3});
  EXPECT_EQ(share.available_bytes, 300);
  EXPECT_EQ(share.num_cpus, 1);
  EXPECT_THAT(Engine::create(EngineConfig{.compute = {.dp_size = 0}}).error().message(),
              testing::AnyOf(HasSubstr("dp_size is 0"), HasSubstr("model")));
  EXPECT_THAT(
      Engine::create(EngineConfig{.compute = {.dp_size = 2, .load_balance_method = "fastest"}})
          .error()
          .message(),
      HasSubstr("load_balance_method is 'fastest'"));
}

// Lives of three replicas from seeds, of which one fails from some token on, as a lost device does:
// every sample has one end; the answers of the sound replicas are right, and those of the failing
// one right or its error.
void live(uint64_t seed) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  Rng rng(seed);
  std::atomic<int64_t> tokens_left{static_cast<int64_t>(rng.below(300))};
  const auto broken = static_cast<size_t>(rng.below(3));
  std::vector<std::unique_ptr<Engine>> engines;
  for (size_t i = 0; i < 3; ++i) {
    auto executor = std::make_unique<NullExecutor>(NullExecutorConfig{
        .vocab_size = kByteVocabSize,
        .next_token = [&tokens_left, fails = i == broken](uint64_t history) -> Result<TokenId> {
          if (fails && --tokens_left < 0)
            return fail(error(StatusCode::kInternal, "the GPU failed"));
          return Script().next(history);
        }});
    auto engine = Engine::create({.cache = {.max_total_tokens = 3000}, .check_invariants = true},
                                 {.tokenizer = make_byte_tokenizer(),
                                  .executor = std::move(executor),
                                  .info = {.vocab_size = kByteVocabSize, .context_length = 500}});
    ASSERT_TRUE(engine);
    engines.push_back(std::move(*engine));
  }
  const auto method = static_cast<LoadBalance>(rng.below(3));
  Replicas front(std::move(engines), method);
  for (int round = 0; round < 12; ++round) {
    ASSERT_TRUE(front.pause_generation(Engine::PauseMode::kInPlace).ok());
    struct Asked {
      std::string text, rid;
      int32_t count = 0, replica = 0, num_samples = 1;
      bool aborted = false;
    };
    std::vector<Asked> asked;
    std::list<Collector> collectors;
    for (int64_t n = rng.between(1, 8); n > 0; --n) {
      Asked one{.text = fmt::format("{} {} {}", seed, round, n),
                .count = static_cast<int32_t>(rng.between(1, 30)),
                .num_samples = rng.below(4) == 0 ? 3 : 1};
      GenerateRequest request = request_of(one.text, one.count);
      request.sampling.n = one.num_samples;
      const auto rid =
          front.submit(std::move(request), collectors.emplace_back(one.num_samples).sink());
      ASSERT_TRUE(rid) << rid.error().to_string();
      one.rid = *rid;
      one.replica = front.replica_of(*rid);
      one.aborted = rng.below(8) == 0;
      if (one.aborted) front.abort(one.rid, Engine::AbortScope::kExact);
      asked.push_back(std::move(one));
    }
    ASSERT_TRUE(front.continue_generation().ok());
    auto collector = collectors.begin();
    for (const Asked& one : asked) {
      Collector& c = *collector++;
      ASSERT_TRUE(c.wait_end()) << one.rid;
      EXPECT_EQ(front.replica_of(one.rid), -1);
      for (int32_t i = 0; i < one.num_samples; ++i) {
        const auto index = static_cast<size_t>(i);
        const bool failed = c.finish_type(index) == FinishReason::Type::kError;
        if (one.aborted) continue;
        if (failed) {
          EXPECT_EQ(one.replica, static_cast<int32_t>(broken));
        } else {
          EXPECT_EQ(c.result(index).output_ids, Script().answer(bytes_of(one.text), one.count));
        }
      }
    }
  }
  ASSERT_TRUE(front.pause_generation(Engine::PauseMode::kInPlace).ok());
  const EngineStats stats = front.stats();
  EXPECT_EQ(stats.requests.num_running + stats.requests.num_waiting, 0);
}

TEST(Replicas, WhereOneFailsTheOthersGoOn) {
  for (uint64_t seed = 1; seed <= 20; ++seed) live(seed);
}

}  // namespace
}  // namespace espalier
