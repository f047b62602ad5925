#include "lang/interpreter/operation_queue.h"

#include <gtest/gtest.h>

#include <utility>

namespace espalier::lang {
namespace {

class OperationQueueTest : public ::testing::Test {
 protected:
  // `number` is the operation's line, by which it is recognised.
  static Operation operation(uint32_t number) {
    Operation op;
    op.where.line = number;
    return op;
  }
  bool push(uint32_t number) {
    const Monitor::Lock lock = monitor_.lock();
    return queue_.push(operation(number), lock);
  }
  bool is_idle() {
    const Monitor::Lock lock = monitor_.lock();
    return queue_.is_idle(lock);
  }
  static Status broken() { return error(StatusCode::kInternal, "broken"); }

  Monitor monitor_;
  OperationQueue queue_{monitor_, /*busy=*/false, /*cancelled=*/false};
};

TEST_F(OperationQueueTest, OnlyTheFirstPushOfAnIdleQueueDrains) {
  EXPECT_TRUE(is_idle());
  EXPECT_TRUE(push(1));
  EXPECT_FALSE(push(2));
  EXPECT_EQ(queue_.take()->op.where.line, 1u);
  EXPECT_EQ(queue_.take()->op.where.line, 2u);
  EXPECT_FALSE(is_idle());
  EXPECT_FALSE(queue_.take().has_value());
  EXPECT_TRUE(is_idle());
  EXPECT_TRUE(push(3));
}

TEST_F(OperationQueueTest, ABranchIsBusyUntilItsFork) {
  OperationQueue branch{monitor_, /*busy=*/true, /*cancelled=*/false};
  const Monitor::Lock lock = monitor_.lock();
  EXPECT_FALSE(branch.push(operation(1), lock));
}

TEST_F(OperationQueueTest, OnlyTheLastSuspensionResumesAndOnce) {
  push(1);
  const uint64_t first = queue_.suspend(std::move(queue_.take()->op));
  EXPECT_FALSE(queue_.end_call(first).has_value());  // it awaits a value, no call
  EXPECT_EQ(queue_.resume(first)->op.where.line, 1u);
  EXPECT_FALSE(queue_.resume(first).has_value());
  const uint64_t second = queue_.suspend(operation(2));
  EXPECT_FALSE(queue_.resume(first).has_value());
  EXPECT_TRUE(queue_.resume(second).has_value());
}

TEST_F(OperationQueueTest, ACallEndsOnce) {
  Operation op = operation(7);
  op.target = std::make_shared<Variable>();
  const VariablePtr target = op.target;
  const uint64_t turn = queue_.begin_call(op, "call-0");
  ASSERT_NE(turn, 0u);
  EXPECT_EQ(queue_.call_in_flight(), "call-0");
  EXPECT_FALSE(queue_.resume(turn).has_value());  // it awaits a call, no value
  VariablePtr found;
  EXPECT_TRUE(queue_.find_target(turn, found));
  EXPECT_EQ(found, target);
  EXPECT_FALSE(queue_.find_target(turn + 1, found));
  EXPECT_EQ(queue_.end_call(turn)->op.where.line, 7u);
  EXPECT_FALSE(queue_.end_call(turn).has_value());
  EXPECT_EQ(queue_.call_in_flight(), "");
}

TEST_F(OperationQueueTest, AfterAFailureOperationsAreMarkedAndCallsRefused) {
  push(1);
  queue_.fail(broken(), {});
  queue_.fail(error(StatusCode::kAborted, "later"), {});
  EXPECT_EQ(queue_.failure().status.message(), "broken");
  EXPECT_TRUE(queue_.take()->failed);
  Operation op = operation(2);
  EXPECT_EQ(queue_.begin_call(op, "call-0"), 0u);
  EXPECT_EQ(op.where.line, 2u);  // untouched
}

TEST_F(OperationQueueTest, ACancelGivesTheCallsIdOrTheWaitingOperation) {
  Operation op = operation(1);
  const uint64_t turn = queue_.begin_call(op, "call-0");
  EXPECT_EQ(queue_.cancelled_call(turn), "");
  const auto with_call = queue_.cancel(error(StatusCode::kAborted, "cancelled"));
  EXPECT_EQ(with_call.call_id, "call-0");
  EXPECT_FALSE(with_call.abandoned.has_value());
  EXPECT_EQ(queue_.cancelled_call(turn), "call-0");
  EXPECT_TRUE(queue_.end_call(turn)->failed);

  const uint64_t waiting = queue_.suspend(operation(2));
  const auto with_value = queue_.cancel(error(StatusCode::kAborted, "cancelled"));
  EXPECT_EQ(with_value.call_id, "");
  ASSERT_TRUE(with_value.abandoned.has_value());
  EXPECT_EQ(with_value.abandoned->where.line, 2u);
  EXPECT_FALSE(queue_.resume(waiting).has_value());
}

TEST_F(OperationQueueTest, IdleCallbacksComeOnceTheQueueIsEmpty) {
  int num_calls = 0;
  queue_.when_idle([&] { ++num_calls; });
  EXPECT_EQ(num_calls, 1);  // it is idle
  push(1);
  queue_.when_idle([&] { ++num_calls; });
  EXPECT_TRUE(queue_.take().has_value());
  EXPECT_EQ(num_calls, 1);
  EXPECT_FALSE(queue_.take().has_value());
  EXPECT_EQ(num_calls, 2);
}

}  // namespace
}  // namespace espalier::lang
