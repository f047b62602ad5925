#include "base/thread_stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <future>
#include <thread>

#include "base/thread.h"

namespace espalier {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

// A thread with a name, which waits until it is released.
class NamedThread {
 public:
  NamedThread(std::string name, bool blocks_signals)
      : thread_([this, name = std::move(name), blocks_signals] {
          set_thread_name(name);
          if (blocks_signals) {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, nullptr);
          }
          ready_.set_value();
          released_.get_future().wait();
        }) {
    ready_.get_future().wait();
  }
  ~NamedThread() {
    released_.set_value();
    thread_.join();
  }

 private:
  std::promise<void> ready_, released_;
  std::thread thread_;
};

const ThreadStack* find(const std::vector<ThreadStack>& all, std::string_view name) {
  for (const ThreadStack& each : all)
    if (each.name == name) return &each;
  return nullptr;
}

TEST(ThreadStacks, ListsEachThreadWithItsFrames) {
  const NamedThread first("stack (a) b", false), second("stack-two", false);
  for (int round = 0; round < 3; ++round) {
    const auto all = read_thread_stacks(std::chrono::seconds(60));
    for (const char* name : {"stack (a) b", "stack-two"}) {
      const ThreadStack* const thread = find(all, name);
      ASSERT_NE(thread, nullptr) << name;
      EXPECT_THAT(thread->frames, Not(IsEmpty())) << name;
    }
  }
}

TEST(ThreadStacks, AThreadThatBlocksSignalsHasNoFrames) {
  const NamedThread open("open", false);
  {
    const NamedThread blocked("blocked", true);
    for (int round = 0; round < 2; ++round) {
      const auto all = read_thread_stacks(std::chrono::milliseconds(20));
      const ThreadStack* const thread = find(all, "blocked");
      ASSERT_NE(thread, nullptr);
      EXPECT_THAT(thread->frames, IsEmpty());
    }
  }
  const auto all = read_thread_stacks(std::chrono::seconds(60));
  ASSERT_NE(find(all, "open"), nullptr);
  EXPECT_THAT(find(all, "open")->frames, Not(IsEmpty()));
}

TEST(ThreadStacks, TheSignalsHandlerIsAsBefore) {
  (void)read_thread_stacks();
  struct sigaction now {};
  ASSERT_EQ(sigaction(SIGURG, nullptr, &now), 0);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace espalier
