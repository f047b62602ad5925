// Programs on the model that ships.
#include <gtest/gtest.h>

#include <cmath>

#include "lang/backends/engine_backend.h"
#include "lang/lang.h"

namespace espalier::lang {
namespace {

std::shared_ptr<Backend> shipped() {
  static const std::shared_ptr<Backend> backend = [] {
    auto made = engine_backend(EngineConfig{.model = {.model_path = "share/default_model"}});
    EXPECT_TRUE(made) << made.error().to_string();
    return made ? *made : nullptr;
  }();
  return backend;
}

TEST(ShippedModel, FramesMessagesAsItsTemplateDoes) {
  const State s =
      run([](State& p) { p += user("Hello there") + assistant("Hi"); }, {.backend = shipped()});
  EXPECT_EQ(s.text(), "<|user|>Hello there<|eos|><|assistant|>Hi<|eos|>");
}

TEST(ShippedModel, KnowsACapital) {
  const State s = run(
      [](State& p) {
        p += user("What is the capital of France?") +
             assistant(gen("answer", {.max_tokens = 24, .temperature = 0}));
      },
      {.backend = shipped()});
  ASSERT_TRUE(s.error().ok()) << s.error().to_string();
  EXPECT_NE(s["answer"].str().find("Paris"), std::string::npos) << s["answer"].str();
}

// The exact probability is a probability: of texts of which none begins another, they sum to one
// at most, and a text's is at least that of its usual spelling.
TEST(ShippedModel, ExactProbabilitiesAreProbabilities) {
  const State s = run(
      [](State& p) {
        p += user("Is snow cold? Answer yes or no.");
        p += assistant(select("answer", {"yes", "Yes", "no", "No"}, exact_likelihood));
      },
      {.backend = shipped()});
  ASSERT_TRUE(s.error().ok()) << s.error().to_string();
  const std::string json = s.meta_info("answer").json;
  double sum = 0;
  size_t at = json.find('[') + 1;
  for (int i = 0; i < 4; ++i) {
    const double logprob = std::strtod(json.c_str() + at, nullptr);
    EXPECT_LE(logprob, 0.0);
    sum += std::exp(logprob);
    at = json.find(',', at) + 1;
  }
  EXPECT_LE(sum, 1.0 + 1e-4);
  EXPECT_GT(sum, 0.0);
}

TEST(ShippedModel, AFieldIsHeldToItsPattern) {
  const State s = run(
      [](State& p) {
        p += user("How old is Maria Keller, who is 34 years old?");
        p += assistant(gen_int("age", {.max_tokens = 6, .temperature = 0}));
      },
      {.backend = shipped()});
  ASSERT_TRUE(s.error().ok()) << s.error().to_string();
  EXPECT_FALSE(s["age"].str().empty());
  EXPECT_EQ(s["age"].str().find_first_not_of("0123456789+-"), std::string::npos);
}

}  // namespace
}  // namespace espalier::lang
