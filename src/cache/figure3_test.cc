// Figure 3 of the SGLang paper, step by step: two chats, few-shot questions and several answers to
// one of them, under lru. Each token is a byte, so that the tree can be read.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cache/radix_cache.h"

namespace espalier {
namespace {

std::vector<TokenId> tokens_of(const std::string& text) { return {text.begin(), text.end()}; }

class Figure3 : public testing::Test {
 protected:
  static constexpr int32_t kPages = 400;

  // A request runs to its end; returns how much of its prompt was cached.
  int32_t serve(const std::string& prompt, const std::string& answer) {
    SequencePages pages = cache_.begin("", tokens_of(prompt), 0);
    const int32_t cached = pages.num_pages();
    const std::vector<TokenId> all = tokens_of(prompt + answer);
    EXPECT_TRUE(cache_.grow(pages, static_cast<int32_t>(all.size())));
    cache_.finish(std::move(pages), all);
    cache_.check_invariants({}, {});
    return cached;
  }

  // What else runs needs so much memory that `count` tokens of the cache must go.
  void need_memory(int32_t count) {
    SequencePages other = cache_.begin("other", {}, 0);
    EXPECT_TRUE(cache_.grow(other, cache_.sizes().free + count));
    cache_.release(other);
  }

  // A line for each node, indented by its depth, the oldest child first.
  std::string tree() const {
    std::string out;
    cache_.tree().for_each_node([&](int32_t depth, std::span<const TokenId> run) {
      out += std::string(static_cast<size_t>(2 * depth), ' ');
      for (const TokenId token : run) out += static_cast<char>(token);
      out += '\n';
    });
    return out;
  }

  RadixCache cache_{PrefixCacheConfig{.num_pages = kPages}};
};

TEST_F(Figure3, NineSteps) {
  EXPECT_EQ(tree(), "");  // (1)

  const std::string system = "You are a helpful assistant.";
  const std::string hello = " User: Hello! Assistant: Hi!";
  EXPECT_EQ(serve(system + " User: Hello! Assistant:", " Hi!"), 0);  // (2)
  EXPECT_EQ(tree(), "You are a helpful assistant. User: Hello! Assistant: Hi!\n");

  // (3) The first chat goes on: its first turn is reused whole.
  EXPECT_EQ(serve(system + hello + " User: Solve this. Assistant:", " Sure."), 56);
  EXPECT_EQ(tree(),
            "You are a helpful assistant. User: Hello! Assistant: Hi!\n"
            "   User: Solve this. Assistant: Sure.\n");

  // (4) A second chat shares the system prompt: the node is split.
  const std::string what = " User: What can you do? Assistant: I can help.";
  EXPECT_EQ(serve(system + " User: What can you do? Assistant:", " I can help."), 35);
  EXPECT_EQ(tree(),
            "You are a helpful assistant. User: \n"
            "  Hello! Assistant: Hi!\n"
            "     User: Solve this. Assistant: Sure.\n"
            "  What can you do? Assistant: I can help.\n");

  // (5) The second chat goes on; memory is short, and the first chat's last turn goes.
  need_memory(35);
  EXPECT_EQ(serve(system + what + " User: Write a story. Assistant:", " Once."), 74);
  EXPECT_EQ(tree(),
            "You are a helpful assistant. User: \n"
            "  Hello! Assistant: Hi!\n"
            "  What can you do? Assistant: I can help.\n"
            "     User: Write a story. Assistant: Once.\n");

  // (6) A few-shot question shares nothing.
  const std::string shots = "Q: 1+1 A: 2 Q: 2+2 A: 4 ";
  EXPECT_EQ(serve(shots + "Q: 3+3 A:", " 6"), 0);
  // (7) More of them share the examples: that node is split.
  EXPECT_EQ(serve(shots + "Q: 4+4 A:", " 8"), 27);
  EXPECT_EQ(serve(shots + "Q: 5+5 A:", " 10"), 27);
  EXPECT_EQ(tree(),
            "You are a helpful assistant. User: \n"
            "  Hello! Assistant: Hi!\n"
            "  What can you do? Assistant: I can help.\n"
            "     User: Write a story. Assistant: Once.\n"
            "Q: 1+1 A: 2 Q: 2+2 A: 4 Q: \n"
            "  3+3 A: 6\n"
            "  4+4 A: 8\n"
            "  5+5 A: 10\n");

  // (8) A message of the first chat. Used least recently are its own first turn, which it locks,
  // and the nodes of the second chat, which go: the deeper first.
  {
    SequencePages chat = cache_.begin("", tokens_of(system + hello), 0);
    EXPECT_EQ(chat.num_pages(), 56);
    need_memory(39 + 38);
  }
  EXPECT_EQ(serve(system + hello + " User: Thanks. Assistant:", " Bye."), 56);
  EXPECT_EQ(tree(),
            "You are a helpful assistant. User: \n"
            "  Hello! Assistant: Hi!\n"
            "     User: Thanks. Assistant: Bye.\n"
            "Q: 1+1 A: 2 Q: 2+2 A: 4 Q: \n"
            "  3+3 A: 6\n"
            "  4+4 A: 8\n"
            "  5+5 A: 10\n");

  // (9) More answers to one question: the other questions, its old answer and the chat's last turn
  // make room.
  {
    SequencePages question = cache_.begin("", tokens_of(shots + "Q: 4+4 A:"), 0);
    EXPECT_EQ(question.num_pages(), 33);
    need_memory(8 + 2 + 9 + 30);
  }
  EXPECT_EQ(serve(shots + "Q: 4+4 A:", " eight"), 33);
  EXPECT_EQ(serve(shots + "Q: 4+4 A:", " four and four"), 33);
  EXPECT_EQ(tree(),
            "You are a helpful assistant. User: \n"
            "  Hello! Assistant: Hi!\n"
            "Q: 1+1 A: 2 Q: 2+2 A: 4 Q: \n"
            "  4+4 A:\n"
            "     \n"  // the blank that both answers begin with
            "      eight\n"
            "      four and four\n");
}

}  // namespace
}  // namespace espalier
