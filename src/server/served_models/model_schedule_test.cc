#include "server/served_models/model_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"

namespace espalier::server {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using Kind = ModelStep::Kind;

constexpr int64_t kPlenty = 1 << 30;
TimePoint at(int s) { return TimePoint(seconds(s)); }

ModelTraits traits(int64_t bytes, std::optional<Duration> keep_alive = seconds(10),
                   bool sleeps = false) {
  return {.keep_alive = keep_alive, .sleeps = sleeps, .bytes = bytes};
}

void expect_step(const std::optional<ModelStep>& step, Kind kind, size_t model) {
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->kind, kind);
  EXPECT_EQ(step->model, model);
}

// Loads the model, uses it once and lets it go.
void use_once(ModelSchedule& s, size_t model, int64_t bytes, TimePoint now) {
  s.want(model);
  expect_step(s.begin_step(now, kPlenty), Kind::kLoad, model);
  s.end_step({}, bytes, now);
  ASSERT_TRUE(s.begin_use(model));
  s.end_use(model, now);
}

TEST(ModelSchedule, ModelIsLoadedOnceWantedAndUnloadedOnceIdle) {
  ModelSchedule s({traits(100)}, 0);
  EXPECT_FALSE(s.begin_step(at(0), kPlenty));
  EXPECT_FALSE(s.begin_use(0));
  s.want(0);
  expect_step(s.begin_step(at(0), kPlenty), Kind::kLoad, 0);
  EXPECT_EQ(s.state(0), ModelState::kLoading);
  EXPECT_FALSE(s.begin_step(at(0), kPlenty)) << "one step at a time";
  s.end_step({}, 120, at(3));
  EXPECT_EQ(s.bytes(0), 120);
  ASSERT_TRUE(s.begin_use(0));
  EXPECT_FALSE(s.begin_step(at(100), kPlenty)) << "in use";
  EXPECT_FALSE(s.next_stop());
  s.end_use(0, at(100));
  EXPECT_EQ(s.next_stop(), at(110));
  EXPECT_FALSE(s.begin_step(at(109), kPlenty));
  expect_step(s.begin_step(at(110), kPlenty), Kind::kUnload, 0);
  s.end_step({}, 0, at(111));
  EXPECT_EQ(s.state(0), ModelState::kUnloaded);
  EXPECT_EQ(s.total_bytes(), 0);
  s.check_invariants();
}

TEST(ModelSchedule, SleeperSleepsAndWakes) {
  ModelSchedule s({traits(100, seconds(1), true)}, 0);
  use_once(s, 0, 100, at(0));
  expect_step(s.begin_step(at(1), kPlenty), Kind::kSleep, 0);
  s.end_step({}, 30, at(1));
  EXPECT_EQ(s.state(0), ModelState::kAsleep);
  EXPECT_EQ(s.bytes(0), 30);
  s.want(0);
  expect_step(s.begin_step(at(2), kPlenty), Kind::kWake, 0);
  s.end_step({}, 100, at(2));
  EXPECT_TRUE(s.begin_use(0));
}

TEST(ModelSchedule, ModelThatCannotSleepIsUnloaded) {
  ModelSchedule s({traits(100, seconds(1), true)}, 0);
  use_once(s, 0, 100, at(0));
  expect_step(s.begin_step(at(1), kPlenty), Kind::kSleep, 0);
  s.end_step(error(StatusCode::kUnimplemented, "replicas"), 100, at(1));
  EXPECT_EQ(s.state(0), ModelState::kReady);
  expect_step(s.begin_step(at(2), kPlenty), Kind::kUnload, 0);
  s.end_step({}, 0, at(2));
  use_once(s, 0, 100, at(3));
  expect_step(s.begin_step(at(4), kPlenty), Kind::kSleep, 0);  // memory may suffice this time
}

TEST(ModelSchedule, WhoWantsAModelWhoseSleepFailsHasIt) {
  ModelSchedule s({traits(100, seconds(1), true)}, 0);
  use_once(s, 0, 100, at(0));
  expect_step(s.begin_step(at(1), kPlenty), Kind::kSleep, 0);
  s.want(0);
  s.end_step(error(StatusCode::kUnimplemented, "replicas"), 100, at(1));
  s.check_invariants();
  EXPECT_FALSE(s.wanted(0));
  EXPECT_TRUE(s.begin_use(0));
}

TEST(ModelSchedule, WithoutKeepAliveItStays) {
  ModelSchedule s({traits(100, std::nullopt)}, 0);
  use_once(s, 0, 100, at(0));
  EXPECT_FALSE(s.next_stop());
  EXPECT_FALSE(s.begin_step(at(1'000'000), kPlenty));
}

TEST(ModelSchedule, LeastRecentlyUsedGivesWay) {
  ModelSchedule s({traits(100), traits(100), traits(100)}, 250);
  use_once(s, 0, 100, at(0));
  use_once(s, 1, 100, at(1));
  ASSERT_TRUE(s.begin_use(0));
  s.end_use(0, at(2));
  s.want(2);
  expect_step(s.begin_step(at(3), kPlenty), Kind::kUnload, 1);
  s.end_step({}, 0, at(3));
  expect_step(s.begin_step(at(3), kPlenty), Kind::kLoad, 2);
}

TEST(ModelSchedule, DeviceMemoryCountsToo) {
  ModelSchedule s({traits(100), traits(100)}, 0);
  use_once(s, 0, 100, at(0));
  s.want(1);
  expect_step(s.begin_step(at(1), 50), Kind::kUnload, 0);
  s.end_step({}, 0, at(1));
  expect_step(s.begin_step(at(1), 150), Kind::kLoad, 1);
}

TEST(ModelSchedule, ModelInUseIsNotTakenAwayAndTheOtherWaits) {
  ModelSchedule s({traits(100), traits(100)}, 150);
  use_once(s, 0, 100, at(0));
  ASSERT_TRUE(s.begin_use(0));
  s.want(1);
  EXPECT_FALSE(s.begin_step(at(60), kPlenty));
  EXPECT_TRUE(s.failure(1, kPlenty).ok()) << "it may come";
  EXPECT_THAT(s.reason(1, kPlenty).message(), HasSubstr("memory_limit"));
  s.end_use(0, at(61));
  expect_step(s.begin_step(at(61), kPlenty), Kind::kUnload, 0);
}

TEST(ModelSchedule, ModelThatNeverFitsFailsAtOnce) {
  ModelSchedule s({traits(100), traits(300)}, 150);
  use_once(s, 0, 100, at(0));
  ASSERT_TRUE(s.begin_use(0));
  s.want(1);
  EXPECT_FALSE(s.begin_step(at(1), kPlenty));
  const Status failure = s.failure(1, kPlenty);
  EXPECT_EQ(failure.code(), StatusCode::kUnavailable);
  EXPECT_THAT(failure.message(), HasSubstr("memory_limit"));
}

TEST(ModelSchedule, StatefulModelIsNotUnloaded) {
  ModelSchedule s({traits(100), traits(100)}, 150);
  use_once(s, 0, 100, at(0));
  s.set_stateful(0, true);
  EXPECT_FALSE(s.begin_step(at(60), kPlenty));
  s.want(1);
  EXPECT_FALSE(s.begin_step(at(60), kPlenty));
  EXPECT_FALSE(s.failure(1, kPlenty).ok());
  s.set_stateful(0, false);
  expect_step(s.begin_step(at(60), kPlenty), Kind::kUnload, 0);
}

TEST(ModelSchedule, LoadThatLacksMemoryIsTriedAgainBehindAnotherOnesUnload) {
  ModelSchedule s({traits(100), traits(10)}, 0);
  use_once(s, 0, 100, at(0));
  s.want(1);
  expect_step(s.begin_step(at(1), kPlenty), Kind::kLoad, 1);
  s.end_step(error(StatusCode::kResourceExhausted, "no room"), 0, at(1));
  EXPECT_TRUE(s.failure(1, kPlenty).ok());
  expect_step(s.begin_step(at(1), kPlenty), Kind::kUnload, 0);
  s.end_step({}, 0, at(1));
  expect_step(s.begin_step(at(1), kPlenty), Kind::kLoad, 1);
  s.end_step(error(StatusCode::kResourceExhausted, "still no room"), 0, at(1));
  EXPECT_THAT(s.failure(1, kPlenty).message(), HasSubstr("still no room"));
}

TEST(ModelSchedule, FailedLoadFailsWhoWaitsAndIsTriedAgainWhenWanted) {
  ModelSchedule s({traits(100)}, 0);
  s.want(0);
  expect_step(s.begin_step(at(0), kPlenty), Kind::kLoad, 0);
  s.end_step(error(StatusCode::kNotFound, "no file"), 0, at(0));
  EXPECT_EQ(s.failure(0, kPlenty).code(), StatusCode::kNotFound);
  EXPECT_EQ(s.last_failure(0).code(), StatusCode::kNotFound);
  s.unwant(0);
  EXPECT_FALSE(s.begin_step(at(1), kPlenty));
  s.want(0);
  EXPECT_TRUE(s.failure(0, kPlenty).ok());
  expect_step(s.begin_step(at(2), kPlenty), Kind::kLoad, 0);
}

TEST(ModelSchedule, LoadThatTakesMoreThanKnownMakesOthersGiveWay) {
  ModelSchedule s({traits(100), traits(10)}, 150);
  use_once(s, 0, 100, at(0));
  use_once(s, 1, 100, at(1));
  expect_step(s.begin_step(at(1), kPlenty), Kind::kUnload, 0);
  s.end_step({}, 0, at(1));
  EXPECT_FALSE(s.begin_step(at(1), kPlenty));
}

// Random use of models by a world of its own, in which loads fail, take more than was known and
// lack memory.
class World {
 public:
  explicit World(uint64_t seed) : rng_(seed) {
    const size_t num_models = 1 + rng_.below(5);
    std::vector<ModelTraits> all;
    for (size_t i = 0; i < num_models; ++i) {
      const auto bytes = static_cast<int64_t>(10 + rng_.below(100));
      std::optional<Duration> keep;
      if (rng_.below(4) > 0) keep = seconds(rng_.below(20));
      all.push_back(traits(bytes, keep, rng_.below(2) == 0));
      keep_.push_back(keep);
      true_bytes_.push_back(bytes + static_cast<int64_t>(rng_.below(20)));
    }
    limit_ = rng_.below(3) == 0 ? 0 : static_cast<int64_t>(60 + rng_.below(250));
    device_ = static_cast<int64_t>(60 + rng_.below(300));
    users_.resize(num_models);
    last_.resize(num_models);
    schedule_ = std::make_unique<ModelSchedule>(std::move(all), limit_);
  }

  void run(int num_events) {
    for (int i = 0; i < num_events; ++i) {
      event();
      schedule_->check_invariants();
      for (size_t m = 0; m < users_.size(); ++m) ASSERT_EQ(schedule_->num_users(m), users_[m]);
    }
    settle();
  }

 private:
  int64_t free_bytes() const { return device_ - schedule_->total_bytes(); }
  bool is_ready(size_t m) const { return schedule_->state(m) == ModelState::kReady; }

  void event() {
    const size_t m = rng_.below(users_.size());
    switch (rng_.below(6)) {
      case 0:
        schedule_->want(m);
        break;
      case 1:
        if (schedule_->begin_use(m)) ++users_[m];
        break;
      case 2:
        if (users_[m] > 0) end_use(m);
        break;
      case 3:
        now_ += seconds(rng_.below(8));
        break;
      default:
        step();
    }
  }

  void end_use(size_t m) {
    --users_[m];
    last_[m] = now_;
    schedule_->end_use(m, now_);
  }

  void step() {
    if (under_way_) return end_step();
    std::vector<bool> ready;
    for (size_t m = 0; m < users_.size(); ++m) ready.push_back(is_ready(m));
    under_way_ = schedule_->begin_step(now_, free_bytes());
    if (under_way_) return check(*under_way_, ready);
    for (size_t m = 0; m < users_.size(); ++m)
      if (!schedule_->failure(m, free_bytes()).ok()) schedule_->unwant(m);
  }

  void check(const ModelStep& step, const std::vector<bool>& was_ready) {
    ASSERT_EQ(users_[step.model], 0);
    if (step.kind == Kind::kLoad || step.kind == Kind::kWake) {
      ASSERT_FALSE(was_ready[step.model]);
      ASSERT_TRUE(schedule_->wanted(step.model));
      return;
    }
    ASSERT_TRUE(step.kind == Kind::kUnload || was_ready[step.model]);
    if (!was_ready[step.model] || is_due(step.model)) return;
    // What gives way before its time was used no later than any other idle model that is ready.
    for (size_t m = 0; m < users_.size(); ++m)
      ASSERT_TRUE(!was_ready[m] || users_[m] > 0 || last_[step.model] <= last_[m]) << m;
  }

  bool is_due(size_t m) const { return keep_[m] && now_ >= last_[m] + *keep_[m]; }

  void end_step() {
    const ModelStep step = *std::exchange(under_way_, std::nullopt);
    const size_t m = step.model;
    const bool brings = step.kind == Kind::kLoad || step.kind == Kind::kWake;
    const int64_t more = true_bytes_[m] - schedule_->bytes(m);
    Status status;
    if (brings && rng_.below(5) == 0)
      status = error(StatusCode::kInternal, "a bad file");
    else if (brings && more > free_bytes())
      status = error(StatusCode::kResourceExhausted, "no room");
    else if (step.kind == Kind::kSleep && rng_.below(6) == 0)
      status = error(StatusCode::kUnimplemented, "no sleep");
    int64_t bytes = brings ? true_bytes_[m] : schedule_->bytes(m);
    if (step.kind == Kind::kSleep && status.ok()) bytes /= 3;
    if (brings) last_[m] = now_;
    schedule_->end_step(status, bytes, now_);
    if (brings && status.ok()) {  // who waited uses it
      ASSERT_TRUE(schedule_->begin_use(m));
      ++users_[m];
    } else if (!schedule_->failure(m, free_bytes()).ok()) {
      schedule_->unwant(m);
    }
  }

  // Everybody leaves: all that is wanted comes or fails, and in the end no idle model is ready.
  void settle() {
    for (int i = 0; i < 400; ++i) {
      for (size_t m = 0; m < users_.size(); ++m)
        while (users_[m] > 0) end_use(m);
      step();
    }
    for (size_t m = 0; m < users_.size(); ++m) EXPECT_FALSE(schedule_->wanted(m)) << m;
    EXPECT_TRUE(limit_ == 0 || schedule_->total_bytes() <= limit_);
    now_ += seconds(1000);
    for (int i = 0; i < 100; ++i) step();
    EXPECT_FALSE(schedule_->next_stop());
    EXPECT_FALSE(schedule_->is_stepping());
  }

  Rng rng_;
  std::unique_ptr<ModelSchedule> schedule_;
  std::vector<int64_t> true_bytes_;
  int64_t limit_ = 0, device_ = 0;
  std::vector<int32_t> users_;
  std::vector<TimePoint> last_;
  std::vector<std::optional<Duration>> keep_;
  std::optional<ModelStep> under_way_;
  TimePoint now_ = at(1);
};

TEST(ModelSchedule, RandomUseKeepsItsInvariants) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    World(seed).run(400);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace espalier::server
