#include "nodes/greeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/rng.h"

namespace espalier::nodes {
namespace {

using testing::HasSubstr;

Hello a_hello() {
  return {.nonce = transfer::draw_nonce(),
          .node = 3,
          .num_nodes = 4,
          .channel = Channel::kHeartbeat,
          .agreement = {{"the version", "1.2"}, {"the model", "abc"}}};
}

TEST(NodeGreeting, ReturnsWhatWasEncoded) {
  const Hello hello = a_hello();
  const auto got = decode_hello(encode(hello));
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_EQ(got->nonce, hello.nonce);
  EXPECT_EQ(got->node, 3);
  EXPECT_EQ(got->num_nodes, 4);
  EXPECT_EQ(got->channel, Channel::kHeartbeat);
  EXPECT_EQ(got->agreement, hello.agreement);
  const Challenge challenge{.version = 7, .nonce = hello.nonce};
  EXPECT_EQ(decode_challenge(encode(challenge))->version, 7u);
}

TEST(NodeGreeting, RefusesAnyTruncationAndAnyAppendedByte) {
  const std::string bytes = encode(a_hello());
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(decode_hello(std::string_view(bytes).substr(0, n))) << n;
  EXPECT_FALSE(decode_hello(bytes + '\0'));
}

TEST(NodeGreeting, TakesAnyBytes) {
  const char* scale = std::getenv("ESPALIER_FUZZ_SCALE");
  const int rounds = 20000 * (scale == nullptr ? 1 : std::atoi(scale));
  Rng rng(11);
  const std::string bytes = encode(a_hello());
  int taken = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string mutated = bytes;
    const auto times = 1 + rng() % 4;
    for (uint64_t i = 0; i < times; ++i) mutated[rng() % mutated.size()] = static_cast<char>(rng());
    const auto got = decode_hello(mutated);
    if (!got) continue;
    ++taken;
    EXPECT_GE(got->node, 1);
    EXPECT_LT(got->node, kNodesMax);
  }
  EXPECT_GT(taken, 0);
  EXPECT_LT(taken, rounds);
}

TEST(NodeGreeting, NamesWhatDiffers) {
  const Agreement leader = {{"the version", "1"}, {"--tp-size", "4"}};
  EXPECT_TRUE(check_agreement(leader, leader, 1).ok());
  const Status status = check_agreement(leader, {{"the version", "1"}, {"--tp-size", "2"}}, 2);
  EXPECT_THAT(status.message(), HasSubstr("--tp-size of node 2 is \"2\", the leader's is \"4\""));
  EXPECT_FALSE(check_agreement(leader, {{"the version", "1"}}, 1).ok());
  EXPECT_FALSE(check_agreement({}, leader, 1).ok());
}

}  // namespace
}  // namespace espalier::nodes
