#include "router/dispatcher.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/rng.h"

namespace espalier::router {
namespace {

using namespace std::chrono_literals;

class DispatcherTest : public testing::Test {
 protected:
  explicit DispatcherTest(const std::string& policy = "cache_aware") {
    PolicyOptions options;
    options.name = policy;
    dispatcher_ = *Dispatcher::create(options, {.slow_start = 0s}, clock_);
  }
  WorkerSlot add(const std::string& name) {
    const WorkerSlot slot = *dispatcher_->add_worker("http://" + name + ":1", {"127.0.0.1", 1});
    dispatcher_->report_check(slot, generation(slot), true);
    return slot;
  }
  uint64_t generation(WorkerSlot slot) const {
    for (const WorkerInfo& worker : dispatcher_->workers())
      if (worker.slot == slot) return worker.generation;
    return 0;
  }
  WorkerInfo info(WorkerSlot slot) const {
    for (WorkerInfo& worker : dispatcher_->workers())
      if (worker.slot == slot) return std::move(worker);
    return {};
  }
  RoutedRequest request(std::string_view text, std::string session = "") {
    return {.model = "",
            .session = std::move(session),
            .name_space = 0,
            .key = text_key(text, 0),
            .num_tokens = static_cast<int64_t>(text.size() / 4)};
  }

  ManualClock clock_;
  std::unique_ptr<Dispatcher> dispatcher_;
};

TEST_F(DispatcherTest, LeasesCountWhileTheyLive) {
  const WorkerSlot slot = add("a");
  {
    Lease lease = *dispatcher_->assign(request(std::string(400, 'x')));
    EXPECT_EQ(lease.slot(), slot);
    EXPECT_EQ(lease.endpoint().address, "127.0.0.1");
    EXPECT_EQ(info(slot).requests_in_flight, 1);
    EXPECT_EQ(info(slot).tokens_in_flight, 100);
    Lease moved = std::move(lease);
    EXPECT_FALSE(lease.active());
    EXPECT_EQ(info(slot).requests_in_flight, 1);
    moved.end(WorkerOutcome::kFailure);
    moved.end(WorkerOutcome::kFailure);
    EXPECT_EQ(info(slot).counts.failures, 1);
  }
  EXPECT_EQ(info(slot).requests_in_flight, 0);
  const Lease again = *dispatcher_->assign(request(std::string(400, 'x')));
  EXPECT_EQ(again.num_blocks_shared(), 6u);
  EXPECT_EQ(info(slot).counts.tokens_shared, 96);
}

TEST_F(DispatcherTest, TriedWorkersComeLast) {
  const WorkerSlot a = add("a"), b = add("b");
  const std::vector<WorkerSlot> tried = {a}, both = {a, b};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(dispatcher_->assign(request("x"), tried)->slot(), b);
  EXPECT_TRUE(dispatcher_->assign(request("x"), both)) << "better than none";
}

// By lora_path, by the model's name, or as MODEL:ADAPTER.
TEST_F(DispatcherTest, RequestsOfAnAdapterGoToWorkersThatListIt) {
  const WorkerSlot a = add("a"), b = add("b");
  add("c");
  dispatcher_->set_models(a, generation(a), {"base"});
  dispatcher_->set_models(b, generation(b), {"base", "poet"}, {"poet"});
  RoutedRequest by_path = request("x"), by_name = request("x"), by_both = request("x"),
                unknown = request("x");
  by_path.model = "base";
  by_path.adapter = "poet";
  by_name.model = "poet";
  by_both.model = "base:poet";
  unknown.adapter = "painter";
  std::set<WorkerSlot> used;
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(dispatcher_->assign(by_path)->slot(), b);
    EXPECT_EQ(dispatcher_->assign(by_name)->slot(), b);
    EXPECT_EQ(dispatcher_->assign(by_both)->slot(), b);
    for (int k = 0; k < 2; ++k) used.insert(dispatcher_->assign(request("y"))->slot());
  }
  EXPECT_EQ(used.size(), 3u) << "others go anywhere";
  EXPECT_TRUE(dispatcher_->assign(unknown)) << "its answer says what is wrong";
}

// Two models may have adapters of one name.
TEST_F(DispatcherTest, AnAdapterIsOneOfTheModelThatIsAsked) {
  const WorkerSlot a = add("a"), b = add("b");
  dispatcher_->set_models(a, generation(a), {"left", "sql"}, {"sql"});
  dispatcher_->set_models(b, generation(b), {"right", "sql"}, {"sql"});
  RoutedRequest asked = request("x");
  asked.adapter = "sql";
  for (int i = 0; i < 6; ++i) {
    asked.model = "left";
    EXPECT_EQ(dispatcher_->assign(asked)->slot(), a);
    asked.model = "right";
    EXPECT_EQ(dispatcher_->assign(asked)->slot(), b);
  }
  asked.adapter.clear();
  for (int i = 0; i < 6; ++i) {
    asked.model = "left:sql";
    EXPECT_EQ(dispatcher_->assign(asked)->slot(), a);
    asked.model = "right:sql";
    EXPECT_EQ(dispatcher_->assign(asked)->slot(), b);
  }
}

// The same tokens under another adapter are other keys and values.
TEST_F(DispatcherTest, EventsOfAnAdaptersPrefixesCountForItsRequestsAlone) {
  const WorkerSlot a = add("a"), b = add("b");
  dispatcher_->set_models(a, generation(a), {"base", "poet"}, {"poet"});
  dispatcher_->set_models(b, generation(b), {"base", "poet"}, {"poet"});
  const std::vector<int32_t> ids(64, 5);
  const auto store = [&](WorkerSlot slot, std::string extra) {
    KvEvent event{.type = KvEvent::Type::kStored, .tokens = ids, .block_size = 16};
    event.hashes = {1, 2, 3, 4};
    if (!extra.empty()) event.extras = {std::move(extra), "", "", ""};
    dispatcher_->apply_events(slot, generation(slot), std::span(&event, 1));
  };
  store(a, "");
  store(b, adapter_extra("poet", ""));
  RoutedRequest plain = request("x");
  plain.tokens.ids = ids;
  RoutedRequest by_path = plain, by_name = plain, by_both = plain;
  by_path.adapter = "poet";
  by_name.model = "poet";
  by_both.model = "base:poet";
  for (int i = 0; i < 3; ++i) {
    const Lease lease = *dispatcher_->assign(plain);
    EXPECT_EQ(lease.slot(), a);
    EXPECT_EQ(lease.num_blocks_shared(), 4u);
    for (const RoutedRequest* const asked : {&by_path, &by_name, &by_both}) {
      const Lease of_adapter = *dispatcher_->assign(*asked);
      EXPECT_EQ(of_adapter.slot(), b);
      EXPECT_EQ(of_adapter.num_blocks_shared(), 4u);
    }
  }
}

TEST_F(DispatcherTest, NoWorkerIsUnavailable) {
  EXPECT_EQ(dispatcher_->assign(request("x")).error().code(), StatusCode::kUnavailable);
  add("a");
  EXPECT_TRUE(dispatcher_->drain_worker("http://a:1", false).ok());
  EXPECT_EQ(dispatcher_->assign(request("x")).error().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(dispatcher_->resume_worker("http://a:1").ok());
  EXPECT_FALSE(dispatcher_->assign(request("x"))) << "not before it is checked";
  dispatcher_->report_check(0, generation(0), true);
  EXPECT_TRUE(dispatcher_->assign(request("x")));
  EXPECT_EQ(dispatcher_->drain_worker("http://b:1", true).code(), StatusCode::kNotFound);
}

TEST_F(DispatcherTest, SessionsGoToOneWorkerWhateverTheirPrompts) {
  for (const char* name : {"a", "b", "c", "d"}) add(name);
  std::set<WorkerSlot> used;
  for (int s = 0; s < 20; ++s) {
    const std::string session = std::to_string(s);
    const WorkerSlot home = dispatcher_->assign(request("one", session))->slot();
    used.insert(home);
    for (int i = 0; i < 5; ++i)
      EXPECT_EQ(dispatcher_->assign(request(std::string(200, static_cast<char>('a' + i)), session))
                    ->slot(),
                home);
  }
  EXPECT_GT(used.size(), 2u);
}

TEST_F(DispatcherTest, BrokenWorkersAreReportedOnceAndLateReportsMeanNothing) {
  std::vector<uint64_t> broken;
  dispatcher_->on_broken([&](uint64_t generation) { broken.push_back(generation); });
  const WorkerSlot slot = add("a");
  const uint64_t first = generation(slot);
  for (int i = 0; i < 5; ++i) dispatcher_->report_check(slot, first, false);
  EXPECT_EQ(broken, std::vector<uint64_t>{first});
  ASSERT_TRUE(dispatcher_->drain_worker("http://a:1", true).ok());
  EXPECT_EQ(add("b"), slot);
  for (int i = 0; i < 5; ++i) dispatcher_->report_check(slot, first, false);
  EXPECT_EQ(info(slot).state, WorkerState::kHealthy);
}

TEST_F(DispatcherTest, AWorkerThatCameBackIsNotTakenForTheOneThatLeft) {
  add("a");
  add("b");
  const std::string text(640, 'x');
  const WorkerSlot home = dispatcher_->assign(request(text))->slot();
  ASSERT_TRUE(dispatcher_->drain_worker(info(home).url, true).ok());
  EXPECT_EQ(add("c"), home);
  EXPECT_EQ(dispatcher_->assign(request(text))->num_blocks_shared(), 0u);
}

TEST(WorkerUrl, HasOneForm) {
  EXPECT_EQ(*normal_worker_url("http://a:1/"), "http://a:1");
  EXPECT_EQ(*normal_worker_url("a:1"), "http://a:1");
  EXPECT_EQ(*normal_worker_url("http://[::1]:2"), "http://[::1]:2");
  EXPECT_EQ(*normal_worker_url("https://a:1"), "https://a:1");
  EXPECT_EQ(*normal_worker_url("https://a"), "https://a:443");
  for (const char* bad : {"", "https://a:1/v1", "http://a:1/v1", "http://a:x", "ftp://a"})
    EXPECT_EQ(normal_worker_url(bad).error().code(), StatusCode::kInvalidArgument) << bad;
}

// Whatever comes and goes, what is in flight is what leases say.
TEST_F(DispatcherTest, KeepsItsCounts) {
  const uint64_t seed = 11;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  std::vector<Lease> leases;
  for (int i = 0; i < 3000; ++i) {
    const std::string name(1, static_cast<char>('a' + rng.below(5)));
    const auto workers = dispatcher_->workers();
    switch (rng.below(8)) {
      case 0:
        (void)dispatcher_->add_worker("http://" + name + ":1", {"127.0.0.1", 1});
        break;
      case 1:
        if (rng.below(4) == 0) (void)dispatcher_->drain_worker("http://" + name + ":1", true);
        break;
      case 2:
        if (workers.empty()) break;
        dispatcher_->report_check(workers[rng.below(workers.size())].slot,
                                  workers[rng.below(workers.size())].generation, rng.below(3) > 0);
        break;
      case 3:
      case 4:
        if (leases.empty()) break;
        std::swap(leases[rng.below(leases.size())], leases.back());
        leases.back().end(static_cast<WorkerOutcome>(rng.below(4)));
        leases.pop_back();
        break;
      default:
        if (auto lease = dispatcher_->assign(request(std::string(64 * rng.below(9), name[0]))))
          leases.push_back(std::move(*lease));
    }
    clock_.advance(100ms);
    dispatcher_->check_invariants();
    std::map<uint64_t, int32_t> in_flight;
    for (const Lease& lease : leases) ++in_flight[lease.generation()];
    for (const WorkerInfo& worker : dispatcher_->workers())
      ASSERT_EQ(worker.requests_in_flight, in_flight[worker.generation]);
  }
}

}  // namespace
}  // namespace espalier::router
