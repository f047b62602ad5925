#include "base/fatal_exit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <new>
#include <thread>

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

TEST(FatalExitDeathTest, TheProcessEndsAfterPendingAnswersAreSent) {
  const auto end = [] {
    end_process_soon(error(StatusCode::kInternal, "the GPU failed: an address of nobody"));
    fputs("answered", stderr);  // a caller's work goes on meanwhile
    std::this_thread::sleep_for(std::chrono::seconds(60));
  };
  EXPECT_EXIT(end(), ExitedWithCode(kExitCannotGoOn),
              AllOf(HasSubstr("answered"), HasSubstr("an address of nobody"), HasSubstr("anew")));
}

TEST(FatalExitDeathTest, ExhaustedMemoryIsReported) {
  const auto end = [] {
    report_memory_exhaustion();
    std::thread([] { throw std::bad_alloc(); }).join();
  };
  EXPECT_EXIT(end(), ExitedWithCode(kExitCannotGoOn), HasSubstr("no more memory"));
}

TEST(FatalExitDeathTest, OtherExceptionsEndAsEver) {
  const auto end = [] {
    report_memory_exhaustion();
    std::thread([] { throw 1; }).join();
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGABRT), "");
}

}  // namespace
}  // namespace espalier
