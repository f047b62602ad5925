// Grammars in Lark's syntax: which texts they accept, and what is refused.
#include "grammar/frontends/lark.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/masks/test_vocabulary.h"

namespace espalier::grammar {
namespace {

Result<std::shared_ptr<CompiledGrammar>> compiled(const std::string& source) {
  static const auto trie = made_up_vocabulary(5);
  return compile_grammar({.kind = GrammarSpec::Kind::kEbnf, .source = source, .choices = {}}, trie);
}

void expect_texts(const std::string& source,
                  const std::vector<std::pair<std::string, bool>>& texts) {
  SCOPED_TRACE(source);
  const auto grammar = compiled(source);
  ASSERT_TRUE(grammar) << grammar.error().to_string();
  for (const auto& [text, expected] : texts) {
    Matcher matcher(*grammar);
    EXPECT_EQ(matcher.accept_bytes(text) && matcher.can_end(), expected) << "'" << text << "'";
  }
}

TEST(Lark, AcceptsWhatItsRulesSay) {
  expect_texts(
      "start: greeting NAME (\",\" NAME)*  // a list\n"
      "greeting: \"hello\"\n"
      "        | \"hi\"i -> short\n"
      "NAME: /[A-Z][a-z]+/\n"
      "%ignore \" \"\n",
      {{"hello Anna", true},
       {"helloAnna,Bo", true},
       {"HI Anna , Bo", true},
       {"hi anna", false},
       {"HELLO Anna", false},
       {"hello An na", false}});
}

TEST(Lark, HasRangesGroupsAndRepetitions) {
  expect_texts(
      "# hexadecimal\n"
      "start: [SIGN] DIGIT~2..3 (\"x\" | \"y\")? END{1,2}\n"
      "SIGN: \"+\" | \"-\"\n"
      "DIGIT.2: \"0\"..\"9\" | \"a\"..\"f\"\n"
      "END: \"\\n\" | \"\\u00e4\"\n",
      {{"+0f\n", true},
       {"12a\n\n", true},
       {"12ax\xc3\xa4", true},
       {"1\n", false},
       {"1234\n", false},
       {"12xx\n", false},
       {"12", false}});
}

TEST(Lark, MatchesRecursiveRules) {
  expect_texts(
      "?start: sum\n"
      "?sum: product | sum \"+\" product | sum \"-\" product\n"
      "?product: atom | product \"*\" atom\n"
      "?atom: NUMBER | \"(\" sum \")\"\n"
      "%import common.NUMBER\n"
      "%import common.WS_INLINE\n"
      "%ignore WS_INLINE\n",
      {{"1 + 2.5*(3 - 4)", true},
       {"(1)", true},
       {"1 2", false},
       {"1 +", false},
       {"1e5*2", true},
       {"((1)", false}});
}

TEST(Lark, ImportsListsAndAliases) {
  expect_texts(
      "%import common (INT, CNAME)\n"
      "%import common.ESCAPED_STRING -> TEXT\n"
      "start: CNAME \"=\" (INT | TEXT)\n",
      {{"a_1=12", true}, {"b=\"x\\\"y\"", true}, {"1=2", false}, {"a=\"x", false}});
}

TEST(Lark, IsRecognisedBesideEbnf) {
  EXPECT_TRUE(is_lark("start: \"a\""));
  EXPECT_TRUE(is_lark("// comment\n%ignore \" \"\nstart: \"a\""));
  EXPECT_TRUE(is_lark("# comment\n?start.2 : \"a\""));
  EXPECT_FALSE(is_lark("root ::= \"a: b\""));
  EXPECT_FALSE(is_lark("# start: x\nroot ::= \"a\""));
  EXPECT_FALSE(is_lark(""));
}

TEST(Lark, RefusesByNameAndLine) {
  for (const auto& [source, message] : std::initializer_list<std::pair<const char*, const char*>>{
           {"start: A\n", "rule 'A' is used and not defined"},
           {"begin: \"a\"\n", "no rule 'start'"},
           {"start: \"a\"\nstart: \"b\"\n", "line 2: rule 'start' is defined twice"},
           {"start: (\"a\"\n", "a group does not end"},
           {"start: \"a\n", "a literal does not end"},
           {"start: /a\n", "a regular expression does not end"},
           {"start: /a/x\n", "the flag 'x'"},
           {"start: \"z\"..\"a\"\n", "reversed"},
           {"start: \"ab\"..\"c\"\n", "single characters"},
           {"start: <|eot|>\n", "special tokens are not supported"},
           {"start: %json {}\n", "grammars within rules are not supported"},
           {"%json {}\n", "the directive %json is not supported"},
           {"start[capture]: \"a\"\n", "attributes of rules are not supported"},
           {"pair{x}: x\nstart: \"a\"\n", "templates are not supported"},
           {"%import python.NAME\n", "anything but 'common'"},
           {"%import common.NAME\nstart: NAME\n", "no terminal common.NAME"},
           {"start: \"a\" )\n", "')' is not understood"},
           {"start: \"a\"~3..2\n", "reversed"},
           {"start: /(a/\n", "regex"},
       }) {
    const auto made = compiled(source);
    ASSERT_FALSE(made) << source;
    EXPECT_NE(made.error().message().find(message), std::string::npos)
        << source << ": " << made.error().message();
  }
}

}  // namespace
}  // namespace espalier::grammar
