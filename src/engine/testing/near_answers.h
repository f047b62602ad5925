// For tests of engines on GPUs: answers that must have the tokens of others, and log-probabilities
// near theirs, since sums have another order than on the CPU.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/testing/test_requests.h"

namespace espalier {

inline constexpr float kLogprobTolerance = 2e-3f;  // natural logarithms

inline void expect_logprobs_near(const std::vector<float>& got, const std::vector<float>& want,
                                 const std::string& where) {
  ASSERT_EQ(got.size(), want.size()) << where;
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], kLogprobTolerance) << where << ", " << i;
}

inline void expect_near_answers(const std::vector<Answer>& got, const std::vector<Answer>& want,
                                const std::string& how) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const std::string where = how + ", request " + std::to_string(i);
    EXPECT_EQ(got[i].ids, want[i].ids) << where;
    expect_logprobs_near(got[i].logprobs, want[i].logprobs, where);
    expect_logprobs_near(got[i].input_logprobs, want[i].input_logprobs, where);
  }
}

}  // namespace espalier
