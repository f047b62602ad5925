// The trie of character classes against the classes of each token's text, and the runs inside
// strings against the automata of the lexemes.
#include <gtest/gtest.h>

#include <set>

#include "grammar/masks/stored_mask.h"
#include "grammar/masks/test_vocabulary.h"

namespace espalier::grammar {
namespace {

TEST(CharClassTrie, HasEachTokenOnceBelowTheClassesOfItsText) {
  const auto trie = made_up_vocabulary(3);
  const CharClassTrie& classes = trie->classes();
  std::vector<int> count(static_cast<size_t>(trie->vocab_size()), 0);
  for (uint32_t i = 0; i + 1 < classes.nodes().size(); ++i) {
    const CharClassTrie::Node& node = classes.nodes()[i];
    for (const TokenId token : classes.whole(i)) {
      ++count[static_cast<size_t>(token)];
      EXPECT_EQ(char_classes_of(trie->bytes(token)), node.path_classes) << trie->bytes(token);
    }
    if (node.rests < 0) continue;
    for (const TokenId token : classes.rests(i).token_ids) {
      ++count[static_cast<size_t>(token)];
      EXPECT_NE(char_classes_of(trie->bytes(token)) & kOtherBytes, 0) << trie->bytes(token);
    }
  }
  for (TokenId token = 0; token < trie->vocab_size(); ++token)
    EXPECT_EQ(count[static_cast<size_t>(token)], trie->bytes(token).empty() ? 0 : 1) << token;
}

TEST(CharClassTrie, MasksOfClassesHoldTheTokensOfTheseClassesAlone) {
  const auto trie = made_up_vocabulary(4);
  for (const int kinds : {0, 1, 5, 0x3ff, 0x40f, int{kAllCharClasses}}) {
    const std::vector<uint32_t>& words = *trie->of_char_classes(static_cast<CharClassSet>(kinds));
    for (TokenId token = 0; token < trie->vocab_size(); ++token) {
      const std::string_view text = trie->bytes(token);
      const bool expected = !text.empty() && (char_classes_of(text) & ~kinds) == 0;
      ASSERT_EQ(has_token(words, token), expected) << kinds << " '" << text << "'";
    }
  }
}

// A vocabulary whose masks of all classes would hold twice what may be kept.
TEST(CharClassTrie, MasksOfClassesStayWithinTheirBound) {
  constexpr size_t kTokens = 2 * TokenTrie::kClassMasksBytesMax * 8 / (kAllCharClasses + 1);
  std::vector<std::string> tokens;
  for (size_t i = 0; i < kTokens; ++i) tokens.push_back(std::to_string(i) + "aB /"[i % 5]);
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  VocabView view;
  view.token_bytes = views;
  const TokenTrie trie(view);
  std::vector<uint32_t> words(static_cast<size_t>(trie.words_per_mask()));
  size_t num_kept = 0;
  for (CharClassSet kinds = 0; kinds <= kAllCharClasses; ++kinds) {
    const std::vector<uint32_t>* const kept = trie.of_char_classes(kinds);
    if (kept == nullptr) continue;
    ++num_kept;
    std::ranges::fill(words, 0);
    trie.add_char_classes(kinds, words);
    ASSERT_EQ(*kept, words) << kinds;
  }
  EXPECT_EQ(num_kept, TokenTrie::kClassMasksBytesMax / (words.size() * sizeof(uint32_t)));
  EXPECT_NE(trie.of_char_classes(0), nullptr) << "what is kept stays";
}

TEST(CharKinds, SplitTheClasses) {
  std::set<int> seen;
  for (int code = 0; code < 0x80; ++code) {
    const std::string text(1, static_cast<char>(code));
    std::string_view rest = text;
    const int kind = take_char_kind(rest);
    const CharClassSet classes = char_classes_of(text);
    if (kind == kNumCharKinds) {
      EXPECT_EQ(classes, kOtherBytes) << code;
      EXPECT_EQ(rest.size(), 1u);
      continue;
    }
    seen.insert(kind);
    EXPECT_TRUE(rest.empty());
    EXPECT_EQ(classes, 1 << char_class_of_kind(kind)) << code;
    const std::vector<uint8_t>& bytes = ascii_of_kind(kind);
    EXPECT_NE(std::ranges::find(bytes, code), bytes.end()) << code;
  }
  EXPECT_EQ(seen.size(), kNumCharKinds - 2u);  // all but those beyond ASCII
}

// What the automaton makes of a text from between two characters.
struct Read {
  uint8_t state;
  size_t rest;  // bytes behind the end of the lexeme
};
Read read_inside(const LexemeAutomaton& automaton, std::string_view text) {
  uint8_t state = automaton.inside;
  while (!text.empty() && state != LexemeAutomaton::kDead && state != automaton.end) {
    state = automaton.next[state][static_cast<uint8_t>(text[0])];
    text.remove_prefix(1);
  }
  return {state, text.size()};
}

TEST(StringRuns, HoldTheTokensThatStayInsideAndThoseThatEnd) {
  const auto trie = made_up_vocabulary(5);
  const TrieWalk& all = trie->all();
  size_t num_rows = 0;
  for (uint32_t node = 0; node + 1 < all.nodes.size(); ++node) {
    if (!trie->string_runs().has(node + 1)) continue;
    ++num_rows;
    for (const Lexeme lexeme : {Lexeme::kString, Lexeme::kKey}) {
      const StringRun& run = trie->string_runs().at(node + 1, lexeme);
      const std::set<TokenId> whole(run.run.whole_ids.begin(), run.run.whole_ids.end());
      const std::set<TokenId> rests(run.run.rests.token_ids.begin(), run.run.rests.token_ids.end());
      const LexemeAutomaton& automaton = lexeme_automaton(lexeme);
      for (uint32_t t = all.nodes[node + 1].tokens_begin;
           t < all.nodes[all.nodes[node].skip].tokens_begin; ++t) {
        const TokenId id = all.token_ids[t];
        const Read read =
            read_inside(automaton, trie->bytes(id).substr(all.nodes[node].depth + size_t{1}));
        const bool ends = read.state == automaton.end;
        EXPECT_EQ(rests.contains(id), ends) << trie->bytes(id);
        EXPECT_EQ(whole.contains(id), !ends && read.state != LexemeAutomaton::kDead)
            << trie->bytes(id);
      }
      EXPECT_EQ(run.run.rests_of.size(), rests.size());
      EXPECT_EQ(run.characters.size(), rests.size());
    }
  }
  EXPECT_GT(num_rows, 5u);
}

}  // namespace
}  // namespace espalier::grammar
