#include "lang/interpreter/pending_message.h"

#include <gtest/gtest.h>

namespace espalier::lang {
namespace {

std::shared_ptr<const Gen> gen_with(Strings stops) {
  return std::make_shared<const Gen>(Gen{.options = {.stop = std::move(stops)}});
}

Operation operation() {
  Operation op;
  op.target = std::make_shared<Variable>();
  return op;
}

TEST(PendingMessage, AnAnswerMatchesItsTextsInOrder) {
  PendingMessage message;
  message.add_text(" Na");
  message.add_text("me: ");  // two texts in a row are one
  message.add_gen(operation(), gen_with({}));
  message.add_text("; age: ");
  message.add_gen(operation(), gen_with({"."}));
  const auto gens = message.match("Name: Ada; age: 36. More");
  ASSERT_TRUE(gens.has_value());
  EXPECT_EQ(*gens, (std::vector<std::string>{"Ada", "36"}));
  EXPECT_FALSE(message.match("Name: Ada, 36").has_value());
}

TEST(PendingMessage, OnlyALastGenMayEndTheCall) {
  PendingMessage message;
  message.add_gen(operation(), gen_with({"."}));
  EXPECT_TRUE(message.ends_with_only_gen());
  message.add_text("!");
  EXPECT_FALSE(message.ends_with_only_gen());
  message.add_gen(operation(), gen_with({"."}));
  EXPECT_FALSE(message.ends_with_only_gen());
}

TEST(PendingMessage, TriesAreBounded) {
  PendingMessage message;
  for (int round = 0; round < 2; ++round) {
    for (int i = 1; i < PendingMessage::kTriesMax; ++i) EXPECT_TRUE(message.may_retry());
    EXPECT_FALSE(message.may_retry());
  }
}

TEST(PendingMessage, AFailureFailsItsGens) {
  PendingMessage message;
  Operation op = operation();
  const VariablePtr target = op.target;
  message.add_gen(std::move(op), gen_with({}));
  message.fail(error(StatusCode::kAborted, "cancelled"), {});
  EXPECT_FALSE(message.has_gens());
  ASSERT_TRUE(target->ready());
  EXPECT_EQ(target->read().content.error().message(), "cancelled");
}

}  // namespace
}  // namespace espalier::lang
