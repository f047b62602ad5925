#include "apps/warm_prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace espalier::apps {
namespace {

class WarmPromptsTest : public testing::Test {
 protected:
  ~WarmPromptsTest() override { std::filesystem::remove(path_); }
  Result<std::vector<GenerateRequest>> read(const std::string& text) const {
    std::ofstream(path_) << text;
    return read_warm_prompts(path_);
  }

  const std::filesystem::path path_ = std::filesystem::path(testing::TempDir()) /
                                      ("warm_prompts_" + std::to_string(::getpid()) + ".jsonl");
};

TEST_F(WarmPromptsTest, ReadsTextsAndIds) {
  const auto prompts = read("\"one\\ntwo\"\n\n  \r\n{\"input_ids\": [5, 6], \"extra_key\": \"t\"}");
  ASSERT_TRUE(prompts) << prompts.error().to_string();
  ASSERT_EQ(prompts->size(), 2u);
  EXPECT_EQ((*prompts)[0].text, "one\ntwo");
  EXPECT_EQ((*prompts)[0].sampling.max_new_tokens, 0);
  EXPECT_THAT((*prompts)[1].input_ids, testing::ElementsAre(5, 6));
  EXPECT_EQ((*prompts)[1].extra_key, "t");
  EXPECT_TRUE(read("").value().empty());
}

TEST_F(WarmPromptsTest, NamesTheLineThatIsWrong) {
  for (const char* line :
       {"no JSON", "7", "{}", "{\"text\": 1}", "{\"input_ids\": [-1]}", "{\"input_ids\": 3}",
        "{\"text\": \"a\", \"input_ids\": [1]}", "{\"text\": \"a\", \"colour\": 1}", "\"\""}) {
    const auto prompts = read(std::string("\"fine\"\n") + line + "\n");
    ASSERT_FALSE(prompts) << line;
    EXPECT_THAT(prompts.error().message(), testing::HasSubstr("line 2")) << line;
  }
  EXPECT_FALSE(read_warm_prompts("/no/such/file"));
}

}  // namespace
}  // namespace espalier::apps
