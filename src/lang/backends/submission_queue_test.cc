#include "lang/backends/submission_queue.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/rng.h"

namespace espalier::lang {
namespace {

Submission submission(std::string rid, int32_t n = 1) {
  Submission s;
  s.request.rid = std::move(rid);
  s.request.sampling.n = n;
  return s;
}

bool admit(SubmissionQueue& queue, std::string rid, int32_t n = 1) {
  Submission s = submission(std::move(rid), n);
  return queue.admit(s);
}

std::vector<std::string> rids_of(const std::vector<Submission>& all) {
  std::vector<std::string> rids;
  for (const Submission& s : all) rids.push_back(s.request.rid);
  return rids;
}

using Rids = std::vector<std::string>;

TEST(SubmissionQueue, WhatDoesNotFitWaitsInOrder) {
  SubmissionQueue queue(4);
  EXPECT_TRUE(admit(queue, "a", 3));
  EXPECT_FALSE(admit(queue, "b", 2));
  EXPECT_FALSE(admit(queue, "c", 1));  // fits, but "b" came first
  EXPECT_EQ(rids_of(queue.remove("a", 3)), (Rids{"b", "c"}));
}

TEST(SubmissionQueue, ALargeRequestRunsAlone) {
  SubmissionQueue queue(2);
  EXPECT_TRUE(admit(queue, "large", 8));
  EXPECT_FALSE(admit(queue, "small"));
  EXPECT_EQ(rids_of(queue.remove("large", 8)), (Rids{"small"}));
}

TEST(SubmissionQueue, ACallIsItsIdAndItsParts) {
  SubmissionQueue queue(2);
  for (const char* rid : {"c1", "c1/0", "c10", "c1/1"}) admit(queue, rid);
  EXPECT_EQ(queue.rids("c1"), (Rids{"c1", "c1/0", "c1/1"}));
  EXPECT_EQ(rids_of(queue.take_waiting("c1")), (Rids{"c1/1"}));
  EXPECT_EQ(queue.rids(""), (Rids{"c1", "c1/0", "c10"}));
  EXPECT_EQ(rids_of(queue.take_waiting("")), (Rids{"c10"}));
}

// Random requests against the rule, with the samples counted beside it.
TEST(SubmissionQueue, NeverMoreSamplesThanAllowedAndNothingIsLost) {
  const uint64_t seed = 7;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  SubmissionQueue queue(6);
  std::vector<std::pair<std::string, int32_t>> running;
  int64_t num_running = 0;
  int num_begun = 0;
  const auto begin = [&](const std::string& rid, int32_t n) {
    running.emplace_back(rid, n);
    num_running += n;
    ++num_begun;
    ASSERT_TRUE(num_running <= 6 || running.size() == 1);
  };
  std::map<std::string, int32_t> sizes;
  for (int i = 0; i < 500; ++i) {
    if (rng.below(2) == 0) {
      const std::string rid = "r" + std::to_string(i);
      const int32_t n = sizes[rid] = 1 + static_cast<int32_t>(rng.below(8));
      if (admit(queue, rid, n)) begin(rid, n);
    } else if (!running.empty()) {
      const size_t at = rng.below(running.size());
      const auto [rid, n] = running[at];
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
      num_running -= n;
      for (const std::string& next : rids_of(queue.remove(rid, n))) begin(next, sizes[next]);
    }
  }
  while (!running.empty()) {
    const auto [rid, n] = running.back();
    running.pop_back();
    num_running -= n;
    for (const std::string& next : rids_of(queue.remove(rid, n))) begin(next, sizes[next]);
  }
  EXPECT_EQ(num_begun, static_cast<int>(sizes.size()));
  queue.wait_empty();
}

}  // namespace
}  // namespace espalier::lang
