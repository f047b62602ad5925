// For tests that join branches in the cache, on any device.
#pragma once

#include <future>
#include <string>
#include <utility>
#include <vector>

#include "engine/testing/test_requests.h"

namespace espalier {

using Ids = std::vector<TokenId>;

inline Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Result<JoinedPrompt> join(Engine& engine, JoinRequest request) {
  std::promise<Result<JoinedPrompt>> done;
  engine.join_branches(std::move(request),
                       [&](Result<JoinedPrompt> made) { done.set_value(std::move(made)); });
  return done.get_future().get();
}

inline void compute(Engine& engine, const Ids& ids, std::string key = {}) {
  const auto r = engine.generate(
      {.input_ids = ids, .sampling = {.max_new_tokens = 0}, .extra_key = std::move(key)});
  EXPECT_TRUE(r) << r.error().to_string();
}

inline Ids random_ids(Rng& rng, int64_t least, int64_t most) {
  Ids ids(static_cast<size_t>(rng.between(least, most)));
  for (TokenId& id : ids) id = static_cast<TokenId>(3 + rng.below(kVocab - 3));
  return ids;
}

// Over a model: what follows sees the branches at the same positions in whatever order they are
// joined, so only the order of sums differs; computed as one text the order matters.
inline void expect_branches_in_no_order(const std::string& model, const std::string& device) {
  const auto engine =
      load_golden(model, {.model = {.dtype = "float32"}, .compute = {.device = device}});
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->can_join_branches());
  Rng rng(7);
  const Ids prefix = random_ids(rng, 12, 12), a = random_ids(rng, 9, 9), b = random_ids(rng, 6, 6),
            rest = random_ids(rng, 3, 3);
  for (const Ids& branch : {a, b}) compute(*engine, prefix + branch);
  const auto ask = [&](Ids ids, std::string key) {
    GenerateRequest request{.input_ids = std::move(ids) + rest, .extra_key = std::move(key)};
    request.sampling = {.max_new_tokens = 1, .temperature = 0.0f, .ignore_eos = true};
    request.return_logprob = true;
    for (TokenId id = 0; id < kVocab; ++id) request.token_ids_logprob.push_back(id);
    std::vector<float> logprobs;
    const auto r = engine->generate(request);
    EXPECT_TRUE(r) << r.error().to_string();
    if (r)
      for (const auto& [id, logprob] : r->output_logprobs.front().wanted)
        logprobs.push_back(logprob);
    return logprobs;
  };
  const auto difference = [](const std::vector<float>& x, const std::vector<float>& y) {
    EXPECT_EQ(x.size(), y.size());
    float most = 0;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      most = std::max(most, std::abs(x[i] - y[i]));
    return most;
  };
  const auto ab = join(*engine, {.prefix = prefix, .branches = {a, b}});
  const auto ba = join(*engine, {.prefix = prefix, .branches = {b, a}});
  ASSERT_TRUE(ab && ba);
  const auto one = ask(ab->input_ids, ab->extra_key), other = ask(ba->input_ids, ba->extra_key);
  EXPECT_LT(difference(one, other), 1e-4f) << model;
  const auto whole_ab = ask(prefix + a + b, ""), whole_ba = ask(prefix + b + a, "");
  EXPECT_GT(difference(whole_ab, whole_ba), 1e-3f) << model;
  EXPECT_GT(difference(one, whole_ab), 1e-4f) << model;
}

}  // namespace espalier
