#include "net/deadline.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <chrono>

namespace espalier::net {
namespace {

using namespace std::chrono_literals;

class DeadlineTest : public ::testing::Test {
 protected:
  void start() {
    deadline_.start(owner_, [this] { ++num_passed_; });
  }

  boost::asio::io_context context_;
  std::shared_ptr<int> owner_ = std::make_shared<int>();
  Deadline deadline_{context_.get_executor()};
  int num_passed_ = 0;
};

TEST_F(DeadlineTest, PassesOnce) {
  start();
  deadline_.set(1ms);
  context_.run();
  EXPECT_EQ(num_passed_, 1);
}

TEST_F(DeadlineTest, MovedLaterThePassIsLater) {
  start();
  const auto begin = std::chrono::steady_clock::now();
  deadline_.set(1ms);
  deadline_.set(20ms);
  context_.run();
  EXPECT_EQ(num_passed_, 1);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 20ms);
}

TEST_F(DeadlineTest, MovedEarlierThePassIsEarlier) {
  start();
  deadline_.set(1h);
  deadline_.set(1ms);
  context_.run_for(10s);
  EXPECT_EQ(num_passed_, 1);
}

TEST_F(DeadlineTest, WithoutDeadlineOwnerOrAfterStopNothingPasses) {
  start();
  deadline_.set(1ms);
  deadline_.clear();
  context_.run();
  EXPECT_EQ(num_passed_, 0);
  context_.restart();
  deadline_.set(1ms);
  deadline_.stop();
  deadline_.set(1ms);
  context_.run();
  EXPECT_EQ(num_passed_, 0);

  Deadline orphan{context_.get_executor()};
  orphan.start(owner_, [this] { ++num_passed_; });
  orphan.set(1ms);
  owner_.reset();
  context_.restart();
  context_.run();
  EXPECT_EQ(num_passed_, 0);
}

}  // namespace
}  // namespace espalier::net
