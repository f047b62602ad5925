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

// As the library guidance writes its grammars.
TEST(Lark, TakesWhatGuidanceSends) {
  expect_texts(
      "%llguidance {}\n\n"
      "start: \"It is \" c \"\\ud83d\\ude00\"\n"
      "c[capture=\"colour\", temperature=0.5]: C\n\n"
      "C: \"red\"\n     | \"/\\u00e9\"\n\n",
      {{"It is red\xf0\x9f\x98\x80", true},
       {"It is /\xc3\xa9\xf0\x9f\x98\x80", true},
       {"It is red", false},
       {"It is blue\xf0\x9f\x98\x80", false}});
  expect_texts(
      "%llguidance {\"no_forcing\": true}\n"
      "start: x \";\"\n"
      "x[capture]: X\n"
      "X: /a\\/(?s:.){2}(?i:b)c/\n",
      {{"a/\n\nBc;", true}, {"a/xybc;", true}, {"a/xybC;", false}, {"a/xbc;", false}});
  expect_texts("start: /x.y/s\n", {{"x\ny", true}, {"xay", true}});
}

TEST(Lark, HasSchemasAndGrammarsInRules) {
  const std::string schema =
      R"({"type": "object", "required": ["a", "b"], "additionalProperties": false,
          "properties": {"a": {"type": "integer"}, "b": {"const": "{"}})";
  expect_texts("start: \"v=\" j \";\"\nj[capture]: %json " + schema + "}\n",
               {{R"(v={"a":1,"b":"{"};)", true},
                {R"(v={"a": 1, "b": "{"};)", true},
                {R"(v={"a":1};)", false}});
  expect_texts("start: %json " + schema + R"(, "x-guidance": {"item_separator": ", "}})",
               {{R"({"a": 1, "b": "{"})", true}, {R"({"a": 1})", false}});
  // Rules of a grammar within a rule are its own.
  expect_texts(
      "start: a b\n"
      "a: \"x\"\n"
      "b: %lark {\n"
      "  start: a /[}]{2}/ \"}\"  // }\n"
      "  a: \"y\"\n"
      "}\n",
      {{"xy}}}", true}, {"xx}}}", false}, {"xy}}", false}});
}

TEST(Lark, IsRecognisedBesideEbnf) {
  EXPECT_TRUE(is_lark("%llguidance {}\nstart: \"a\""));
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
           {"start: %regex {}\n", "the directive %regex in a rule is not supported"},
           {"%json {}\n", "the directive %json is not supported"},
           {"start: %json {\"type\": 5}\n", "grammar, line 1: "},
           {"start: %json {\"type\":\n", "a part in braces does not end"},
           {"start: %json {\"type\" 5}\n", "a JSON object is expected"},
           {"start: %json []\n", "'{' is expected"},
           {"start: %lark { begin: \"a\" }\n", "no rule 'start'"},
           {"%llguidance {\"allow_initial_skip\": true}\nstart: \"a\"\n",
            "the option allow_initial_skip of %llguidance"},
           {"%llguidance\nstart: \"a\"\n", "'{' is expected"},
           {"a[max_tokens=5]: \"a\"\nstart: a\n", "the attribute 'max_tokens' of a rule"},
           {"start[capture, stop=\"x\"]: \"a\"\n", "the attribute 'stop' of a rule"},
           {"start[capture=]: \"a\"\n", "a string or a number is expected"},
           {"start[capture: \"a\"\n", "the attributes do not end"},
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
