#include "server/served_models/model_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/rng.h"

namespace espalier::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// Loads nothing, counts, and checks that models are stopped only while nobody has them. What it
// hands out points at bytes of its own; nothing reads them as a context.
class CountingHost final : public ModelHost {
 public:
  explicit CountingHost(size_t num_models) : models_(num_models) {}

  Result<int64_t> load(size_t m) override {
    if (on_load) on_load(m);
    if (!load_status.ok()) return fail(load_status);
    if (fails && fails(m)) return fail(error(StatusCode::kInternal, "a bad file"));
    EXPECT_EQ(models_[m].token, nullptr) << "loaded twice";
    models_[m].token = std::make_shared<int>(static_cast<int>(m));
    ++models_[m].num_loads;
    return 100;
  }
  Result<int64_t> wake(size_t m) override {
    ++models_[m].num_wakes;
    return 100;
  }
  Result<int64_t> sleep(size_t m) override {
    expect_unused(m);
    ++models_[m].num_sleeps;
    return 10;
  }
  void unload(size_t m) override {
    if (models_[m].token == nullptr) return;
    expect_unused(m);
    models_[m].token = nullptr;
    ++models_[m].num_unloads;
  }
  bool is_stateful(size_t) const override { return stateful; }
  int64_t free_bytes() const override {
    if (on_free_bytes) on_free_bytes();
    return int64_t{1} << 40;
  }
  ContextPtr context(size_t m) const override {
    return {models_[m].token, reinterpret_cast<Context*>(models_[m].token.get())};
  }

  struct Counts {
    std::shared_ptr<int> token;
    std::atomic<int> num_loads{0}, num_wakes{0}, num_sleeps{0}, num_unloads{0};
  };
  const Counts& counts(size_t m) const { return models_[m]; }

  std::function<void(size_t)> on_load;
  std::function<void()> on_free_bytes;
  std::function<bool(size_t)> fails;
  Status load_status;
  std::atomic<bool> stateful{false};

 private:
  void expect_unused(size_t m) const { EXPECT_EQ(models_[m].token.use_count(), 1) << m; }
  std::vector<Counts> models_;
};

class ModelRegistryTest : public ::testing::Test {
 protected:
  void make(std::vector<RegisteredModel> models, ModelRegistry::Settings settings = {}) {
    auto host = std::make_unique<CountingHost>(models.size());
    host_ = host.get();
    registry_ = std::make_unique<ModelRegistry>(std::move(models), std::move(host), settings);
  }
  static RegisteredModel model(std::string name, std::optional<Duration> keep_alive = std::nullopt,
                               bool sleeps = false) {
    return {.name = std::move(name),
            .aliases = {},
            .traits = {.keep_alive = keep_alive, .sleeps = sleeps, .bytes = 100}};
  }
  Result<ContextPtr> acquire(size_t m) {
    std::promise<Result<ContextPtr>> made;
    registry_->acquire(m, [&](Result<ContextPtr> got) { made.set_value(std::move(got)); });
    return made.get_future().get();
  }
  template <typename Condition>
  static bool wait_for(Condition condition) {
    for (int i = 0; i < 10000 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(1));
    return condition();
  }
  ModelState state(size_t m) const { return registry_->reports()[m].state; }

  CountingHost* host_ = nullptr;
  std::unique_ptr<ModelRegistry> registry_;
};

TEST_F(ModelRegistryTest, RequestsDoNotWaitForTheReadingOfMemory) {
  make({model("a")});
  std::atomic<bool> is_slow{false};
  std::promise<void> reading, released;
  host_->on_free_bytes = [&] {
    if (!is_slow.exchange(false)) return;
    reading.set_value();
    released.get_future().wait_for(seconds(10));
  };
  registry_->start();
  ASSERT_TRUE(acquire(0));
  registry_->wait_until_settled();
  is_slow = true;
  ASSERT_NE(registry_->acquire_ready(0), nullptr);  // its end makes the registry read again
  reading.get_future().wait();
  std::future<bool> taken =
      std::async(std::launch::async, [&] { return registry_->acquire_ready(0) != nullptr; });
  EXPECT_EQ(taken.wait_for(seconds(5)), std::future_status::ready);
  released.set_value();
  EXPECT_TRUE(taken.get());
}

TEST_F(ModelRegistryTest, NamesAndAliasesFindModels) {
  auto second = model("b/c");
  second.aliases = {"other", "adapter"};
  make({model("a"), second});
  EXPECT_EQ(registry_->find("a"), 0u);
  EXPECT_EQ(registry_->find(""), 0u);
  EXPECT_EQ(registry_->find("b/c"), 1u);
  EXPECT_EQ(registry_->find("other"), 1u);
  EXPECT_EQ(registry_->find("b/c:adapter"), 1u);
  EXPECT_EQ(registry_->find("other:latest"), 1u);
  EXPECT_EQ(registry_->find("c"), std::nullopt);
  EXPECT_EQ(registry_->find(":latest"), std::nullopt);
}

TEST_F(ModelRegistryTest, AllWhoWaitGetTheModelThatIsLoadedOnce) {
  make({model("a"), model("b")});
  std::promise<void> go;
  host_->on_load = [done = go.get_future().share()](size_t) { done.wait(); };
  registry_->start();
  std::vector<std::future<Result<ContextPtr>>> waiting;
  for (int i = 0; i < 5; ++i) {
    auto made = std::make_shared<std::promise<Result<ContextPtr>>>();
    waiting.push_back(made->get_future());
    registry_->acquire(1, [made](Result<ContextPtr> got) { made->set_value(std::move(got)); });
  }
  EXPECT_TRUE(wait_for([&] { return state(1) == ModelState::kLoading; }));
  EXPECT_EQ(registry_->reports()[1].num_waiting, 5u);
  go.set_value();
  for (auto& each : waiting) {
    const Result<ContextPtr> got = each.get();
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_NE(*got, nullptr);
  }
  EXPECT_EQ(host_->counts(1).num_loads, 1);
  EXPECT_EQ(host_->counts(0).num_loads, 0);
  EXPECT_NE(registry_->acquire_ready(1), nullptr);
}

TEST_F(ModelRegistryTest, ModelStopsOnceNobodyHasItAndComesBack) {
  make({model("a", milliseconds(1)), model("b", milliseconds(1), true)});
  registry_->start();
  for (size_t m : {0, 1}) {
    Result<ContextPtr> got = acquire(m);
    ASSERT_TRUE(got);
    const ContextPtr copy = *got;
    *got = nullptr;
    EXPECT_EQ(state(m), ModelState::kReady);
  }
  EXPECT_TRUE(wait_for([&] { return state(0) == ModelState::kUnloaded; }));
  EXPECT_TRUE(wait_for([&] { return state(1) == ModelState::kAsleep; }));
  EXPECT_TRUE(acquire(0));
  EXPECT_TRUE(acquire(1));
  EXPECT_EQ(host_->counts(0).num_loads, 2);
  EXPECT_EQ(host_->counts(1).num_loads, 1);
  EXPECT_EQ(host_->counts(1).num_wakes, 1);
}

TEST_F(ModelRegistryTest, StatefulModelStopsOnceItsStateIsGone) {
  make({model("a", milliseconds(1))});
  host_->stateful = true;
  registry_->start();
  ASSERT_TRUE(acquire(0));
  EXPECT_TRUE(wait_for([&] { return registry_->reports()[0].num_users == 0; }));
  EXPECT_EQ(state(0), ModelState::kReady);
  host_->stateful = false;
  EXPECT_TRUE(wait_for([&] { return state(0) == ModelState::kUnloaded; }));
}

TEST_F(ModelRegistryTest, FailureStatesTheModelAndIsRetried) {
  make({model("a")});
  host_->load_status = error(StatusCode::kNotFound, "there is no such folder");
  registry_->start();
  const Result<ContextPtr> got = acquire(0);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), StatusCode::kNotFound);
  EXPECT_THAT(got.error().message(), HasSubstr("'a'"));
  EXPECT_THAT(got.error().message(), HasSubstr("there is no such folder"));
  EXPECT_EQ(registry_->reports()[0].num_failures, 1);
  host_->load_status = {};
  EXPECT_TRUE(acquire(0));
}

TEST_F(ModelRegistryTest, WhoWaitsTooLongIsAnswered) {
  make({model("a"), model("b")}, {.bytes_max = 150, .load_timeout = milliseconds(30)});
  registry_->start();
  const Result<ContextPtr> first = acquire(0);
  ASSERT_TRUE(first);
  const Result<ContextPtr> second = acquire(1);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.error().message(), HasSubstr("'b'"));
  EXPECT_THAT(second.error().message(), HasSubstr("memory_limit"));
}

TEST_F(ModelRegistryTest, LookingAtAModelDoesNotKeepIt) {
  make({model("a", milliseconds(20))});
  registry_->start();
  EXPECT_EQ(registry_->look_at(0), nullptr);
  ASSERT_TRUE(acquire(0));
  EXPECT_TRUE(wait_for([&] {
    registry_->look_at(0);
    return state(0) == ModelState::kUnloaded;
  }));
}

TEST_F(ModelRegistryTest, PreloadedModelsAreThereOnceSettled) {
  auto second = model("b");
  second.preload = true;
  make({model("a"), second});
  registry_->start();
  registry_->wait_until_settled();
  EXPECT_EQ(state(0), ModelState::kUnloaded);
  EXPECT_EQ(state(1), ModelState::kReady);
}

TEST_F(ModelRegistryTest, StopAnswersWhoWaits) {
  make({model("a"), model("b")}, {.bytes_max = 150});
  registry_->start();
  ContextPtr first = *acquire(0);
  std::promise<Status> made;  // who gets the model gives it back at once
  registry_->acquire(
      1, [&](const Result<ContextPtr>& got) { made.set_value(got ? Status() : got.error()); });
  first = nullptr;
  registry_->stop();
  const Status got = made.get_future().get();
  EXPECT_TRUE(got.ok() || got.code() == StatusCode::kUnavailable) << got.to_string();
  EXPECT_FALSE(acquire(0));
}

// Clients of all models at once, with loads that fail now and then: each gets an answer, and no
// model is stopped while somebody has it (the host checks).
TEST_F(ModelRegistryTest, ManyClientsAtOnce) {
  make({model("a", milliseconds(1)), model("b", milliseconds(1), true), model("c")},
       {.bytes_max = 250});
  std::atomic<uint64_t> num_loads{0};
  host_->fails = [&](size_t) { return mix64(num_loads++) % 4 == 0; };
  registry_->start();
  std::atomic<int> num_got{0}, num_failed{0};
  std::vector<std::thread> clients;
  for (uint64_t c = 0; c < 4; ++c)
    clients.emplace_back([&, c] {
      Rng rng(c + 1);
      for (int i = 0; i < 100; ++i) {
        const Result<ContextPtr> got = acquire(rng.below(3));
        ++(got ? num_got : num_failed);
      }
    });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(num_got + num_failed, 400);
  EXPECT_GT(num_got, 100);
  registry_->stop();
  for (size_t m = 0; m < 3; ++m)
    EXPECT_EQ(host_->counts(m).num_loads, host_->counts(m).num_unloads) << m;
}

}  // namespace
}  // namespace espalier::server
