// Branches appended to each other in the cache: over the null executor, where each token of a
// page has a hash of its history, and over a model.
#include "engine/testing/test_joins.h"

namespace espalier {
namespace {

TEST(Join, WhatFollowsComesOfTheBranchesAsTheyWereComputed) {
  const TestEngine test = make_test_engine();
  const Ids prefix = bytes_of("Tips: "), a = bytes_of("sail "), b = bytes_of("row "),
            rest = bytes_of("so");
  for (const Ids& branch : {a, b}) compute(*test.engine, prefix + branch);
  const auto joined = join(*test.engine, {.prefix = prefix, .branches = {a, b}});
  ASSERT_TRUE(joined) << joined.error().to_string();
  EXPECT_EQ(joined->input_ids, prefix + a + b);
  const auto r = test.engine->generate({.input_ids = joined->input_ids + rest,
                                        .sampling = {.max_new_tokens = 8, .ignore_eos = true},
                                        .extra_key = joined->extra_key});
  ASSERT_TRUE(r) << r.error().to_string();
  EXPECT_EQ(r->stats.cached_tokens, static_cast<int32_t>(joined->input_ids.size()));
  // The device goes on from the last branch's last token, which was computed behind the prefix.
  EXPECT_EQ(r->output_ids, Script().answer(prefix + b + rest, 8));
  // Without the key nothing of it is found.
  const auto whole = test.engine->generate(
      {.input_ids = prefix + a + b + rest, .sampling = {.max_new_tokens = 8, .ignore_eos = true}});
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->output_ids, Script().answer(prefix + a + b + rest, 8));
}

TEST(Join, JoinsOfJoins) {
  const TestEngine test = make_test_engine();
  const Ids prefix = bytes_of("p"), a = bytes_of("aa"), b = bytes_of("bbb"), c = bytes_of("c"),
            d = bytes_of("dd");
  for (const Ids& branch : {a, b}) compute(*test.engine, prefix + branch);
  const auto first = join(*test.engine, {.prefix = prefix, .branches = {a, b}});
  ASSERT_TRUE(first);
  for (const Ids& branch : {c, d})
    compute(*test.engine, first->input_ids + branch, first->extra_key);
  const auto second =
      join(*test.engine,
           {.extra_key = first->extra_key, .prefix = first->input_ids, .branches = {c, d}});
  ASSERT_TRUE(second);
  EXPECT_NE(second->extra_key, first->extra_key);
  const auto r = test.engine->generate({.input_ids = second->input_ids + bytes_of("!"),
                                        .sampling = {.max_new_tokens = 4, .ignore_eos = true},
                                        .extra_key = second->extra_key});
  ASSERT_TRUE(r);
  EXPECT_EQ(r->output_ids, Script().answer(prefix + b + d + bytes_of("!"), 4));
  EXPECT_EQ(r->stats.cached_tokens, static_cast<int32_t>(second->input_ids.size()));
}

TEST(Join, RefusesWhatItCannot) {
  const TestEngine test = make_test_engine();
  const Ids prefix = bytes_of("p"), a = bytes_of("a"), b = bytes_of("b");
  const auto code = [&](JoinRequest request) {
    const auto made = join(*test.engine, std::move(request));
    return made ? StatusCode::kOk : made.error().code();
  };
  EXPECT_EQ(code({.prefix = prefix, .branches = {a}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.prefix = prefix, .branches = {a, {}}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.branches = {a, b}}), StatusCode::kInvalidArgument);
  compute(*test.engine, prefix + a);
  EXPECT_EQ(code({.prefix = prefix, .branches = {a, b}}), StatusCode::kFailedPrecondition);
  EXPECT_EQ(code({.extra_key = "other", .prefix = prefix, .branches = {a, a}}),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(code({.prefix = prefix, .branches = {a, a}}), StatusCode::kOk);

  const TestEngine pages = make_test_engine({.config = {.cache = {.page_size = 4}}});
  EXPECT_FALSE(pages.engine->can_join_branches());
  EXPECT_EQ(join(*pages.engine, {.prefix = prefix, .branches = {a, b}}).error().code(),
            StatusCode::kUnimplemented);

  const TestEngine small = make_test_engine({.config = {.cache = {.max_total_tokens = 60}}});
  const Ids long_a(20, 'a'), long_b(20, 'b');
  for (const Ids& branch : {long_a, long_b}) compute(*small.engine, prefix + branch);
  EXPECT_EQ(join(*small.engine, {.prefix = prefix, .branches = {long_a, long_b}}).error().code(),
            StatusCode::kResourceExhausted);
  compute(*small.engine, prefix + long_b);  // and no page stays in use
  EXPECT_EQ(small.engine->stats().memory.kv_tokens_running, 0);
}

// Random branches, joined while others run, whose answers stay theirs.
TEST(Join, BesideRunningRequests) {
  constexpr uint64_t kSeed = 31;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  Rng rng(kSeed);
  const TestEngine test = make_test_engine({.config = {.cache = {.max_total_tokens = 2000}}});
  for (int round = 0; round < 20; ++round) {
    const Ids other = random_ids(rng, 1, 20), prefix = random_ids(rng, 1, 30);
    Collector running;
    ASSERT_TRUE(test.engine->submit(
        {.input_ids = other, .sampling = {.max_new_tokens = 60, .ignore_eos = true}},
        running.sink()));
    JoinRequest request{.prefix = prefix};
    for (int64_t n = rng.between(2, 5); n > 0; --n) {
      request.branches.push_back(random_ids(rng, 1, 12));
      compute(*test.engine, prefix + request.branches.back());
    }
    const Ids last = request.branches.back();
    const auto joined = join(*test.engine, std::move(request));
    ASSERT_TRUE(joined) << joined.error().to_string();
    const auto r = test.engine->generate({.input_ids = joined->input_ids + Ids{5},
                                          .sampling = {.max_new_tokens = 5, .ignore_eos = true},
                                          .extra_key = joined->extra_key});
    ASSERT_TRUE(r);
    EXPECT_EQ(r->output_ids, Script().answer(prefix + last + Ids{5}, 5));
    ASSERT_TRUE(running.wait_end());
    EXPECT_EQ(running.result().output_ids, Script().answer(other, 60));
  }
}

TEST(Join, AModelSeesTheBranchesInNoOrder) {
  for (const std::string model : {"llama_tied_llama3", "deepseek_v2"})
    expect_branches_in_no_order(model, "cpu");
}

}  // namespace
}  // namespace espalier
