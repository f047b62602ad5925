#include "server/task_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "server/detached_call.h"

namespace espalier::server {
namespace {

TEST(TaskThread, RunsTasksInOrderAndOthersNotBeforeTheirTime) {
  TaskThread thread("t");
  std::vector<int> ran;
  std::promise<void> last;
  const auto begin = std::chrono::steady_clock::now();
  thread.post_after(std::chrono::milliseconds(30), [&] {
    ran.push_back(100);
    last.set_value();
  });
  for (int i = 0; i < 50; ++i) thread.post([&ran, i] { ran.push_back(i); });
  thread.post([] { throw std::bad_alloc(); });  // the rest goes on
  last.get_future().wait();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(30));
  ASSERT_EQ(ran.size(), 51u);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
}

TEST(TaskThread, DropsWhatHasNotBegunWhenItStops) {
  std::atomic<int> num_ran{0};
  auto alive = std::make_shared<int>();
  TaskThread thread("t");
  thread.post_after(std::chrono::hours(1), [&num_ran, alive] { ++num_ran; });
  thread.stop();
  thread.post([&num_ran] { ++num_ran; });
  EXPECT_EQ(num_ran, 0);
  EXPECT_EQ(alive.use_count(), 1);
}

struct Reader final : DetachedReader {
  void on_bytes(std::string more) override { bytes += more; }
  void on_end(net::HttpResponse given) override { answer.set_value(std::move(given)); }
  std::string bytes;
  std::promise<net::HttpResponse> answer;
};

struct DetachedCallTest : ::testing::Test {
  std::shared_ptr<TaskThread> thread = std::make_shared<TaskThread>("t");
  std::shared_ptr<Reader> reader = std::make_shared<Reader>();
  std::shared_ptr<DetachedCall> call = std::make_shared<DetachedCall>(thread, reader);
  std::future<net::HttpResponse> answer = reader->answer.get_future();
};

TEST_F(DetachedCallTest, AWholeAnswerComesOnce) {
  call->send(net::HttpResponse::json(201, "{}"));
  call->send(net::HttpResponse::json(500, "second"));
  EXPECT_TRUE(call->closed());
  const net::HttpResponse got = answer.get();
  EXPECT_EQ(got.status, 201);
  EXPECT_EQ(got.body, "{}");
}

TEST_F(DetachedCallTest, AStreamEndsWithItsStatus) {
  call->start_stream(200, {});
  call->write("a");
  call->write("b");
  call->finish();
  EXPECT_EQ(answer.get().status, 200);
  EXPECT_EQ(reader->bytes, "ab");
}

TEST_F(DetachedCallTest, WhoNeverAnswersGives500) {
  call.reset();
  EXPECT_EQ(answer.get().status, 500);
}

TEST_F(DetachedCallTest, ACancelledCallReportsItAndEndsWithoutAnAnswer) {
  std::promise<void> gone, gone_again;
  call->on_disconnect([&] { gone.set_value(); });
  call->cancel();
  gone.get_future().wait();
  call->send(net::HttpResponse::json(200, "late"));
  call->on_disconnect([&] { gone_again.set_value(); });  // at once, for it is gone already
  gone_again.get_future().wait();
  EXPECT_EQ(answer.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
}

// Who answers keeps the call alive, and the call keeps who answers: the end breaks the ring.
TEST_F(DetachedCallTest, TheDisconnectCallbackGoesWithTheEnd) {
  auto owner = std::make_shared<int>();
  call->on_disconnect([owner] {});
  EXPECT_EQ(owner.use_count(), 2);
  call->send(net::HttpResponse::json(200, ""));
  answer.get();
  EXPECT_EQ(owner.use_count(), 1);
}

}  // namespace
}  // namespace espalier::server
