#include "lang/interpreter/prompt_text.h"

#include <gtest/gtest.h>

namespace espalier::lang {
namespace {

TEST(PromptText, MessagesCollectTheTextBetweenTheirEnds) {
  Monitor monitor;
  PromptText text(monitor);
  text.append("before ");
  EXPECT_FALSE(text.previous_role().has_value());
  text.begin_message(Role::kUser);
  text.append("a");
  text.append("b");
  text.append(Media{.path = "cat.png"});
  text.append("c");
  EXPECT_EQ(text.messages().size(), 1u);  // the open one
  text.end_message();
  text.append(" after");
  EXPECT_EQ(text.all(), "before ab" + std::string(kMediaMark) + "c after");
  const std::vector<Message> messages = text.messages();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].parts.size(), 3u);
  EXPECT_EQ(messages[0].text(), "abc");
  EXPECT_EQ(text.previous_role(), Role::kUser);
}

TEST(PromptText, RewindDropsStreamedTextOfTheTextAndTheOpenMessage) {
  Monitor monitor;
  PromptText text(monitor);
  text.append("user: ");
  text.begin_message(Role::kUser);
  text.append("kept");
  const size_t begin = text.all().size();
  text.append(" streamed");
  text.append(" twice");
  text.rewind(begin);
  EXPECT_EQ(text.all(), "user: kept");
  EXPECT_EQ(text.messages()[0].text(), "kept");
  text.rewind(begin);  // nothing streamed
  EXPECT_EQ(text.messages()[0].text(), "kept");
}

TEST(PromptText, ABranchKnowsItsOwnPart) {
  Monitor monitor, branch_monitor;
  PromptText parent(monitor), branch(branch_monitor);
  parent.append("common");
  branch.start_from(parent.written());
  branch.append(" own");
  branch.begin_message(Role::kAssistant);
  branch.append("said");
  branch.end_message();
  const BranchText own = branch.since_fork();
  EXPECT_EQ(own.text, " ownsaid");
  ASSERT_EQ(own.messages.size(), 1u);
  EXPECT_TRUE(branch.continues(parent.written()));

  parent.append(own);
  EXPECT_EQ(parent.all(), "common ownsaid");
  EXPECT_EQ(parent.messages().size(), 1u);
  EXPECT_FALSE(branch.continues(parent.written()));  // the parent has gone on
}

TEST(PromptText, ABranchWithMediaHasNoKeysBehindItsParent) {
  Monitor monitor, branch_monitor;
  PromptText parent(monitor), branch(branch_monitor);
  parent.append("common");
  branch.start_from(parent.written());
  branch.append(Media{.path = "cat.png"});
  EXPECT_FALSE(branch.continues(parent.written()));
}

TEST(PromptText, AJoinedPrefixIsCached) {
  Monitor monitor;
  PromptText text(monitor);
  text.append("abc");
  text.set_cached();
  text.append("def");
  EXPECT_EQ(text.written().cached_chars, 3u);
  text.set_joined(std::make_shared<const JoinedPrefix>(JoinedPrefix{.text = "abcdef"}));
  EXPECT_EQ(text.written().cached_chars, 6u);
}

}  // namespace
}  // namespace espalier::lang
