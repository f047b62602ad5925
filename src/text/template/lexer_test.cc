// The lexer's tokens: white space control outside tags, literals and operators within them.
#include "text/template/lexer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/template/tag_token.h"

namespace espalier::jinja {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The texts of all tokens that have one.
std::vector<std::string> texts(std::string_view source) {
  const Result<std::vector<Token>> tokens = tokenize_template(source);
  EXPECT_TRUE(tokens.has_value()) << tokens.error().to_string();
  std::vector<std::string> out;
  if (!tokens) return out;
  for (const Token& token : *tokens) {
    if (!token.text.empty()) out.push_back(token.text);
  }
  return out;
}

std::string error_of(std::string_view source) {
  const Result<std::vector<Token>> tokens = tokenize_template(source);
  return tokens ? "" : std::string(tokens.error().message());
}

Result<Token> lex_one(std::string_view source) {
  SourceCursor cursor{std::string(source)};
  return lex_tag_token(cursor);
}

TEST(TemplateLexer, ControlsWhiteSpace) {
  EXPECT_THAT(texts("a \n  {% x %}\n b"), ElementsAre("a \n", "x", " b"));
  EXPECT_THAT(texts("a \n  {%+ x +%}\n b"), ElementsAre("a \n  ", "x", "\n b"));
  EXPECT_THAT(texts("a \n  {%- x -%}\n b"), ElementsAre("a", "x", "b"));
  EXPECT_THAT(texts("a {{- x -}} b"), ElementsAre("a", "x", "b"));
  EXPECT_THAT(texts("a\n  {# note #}\n b\n"), ElementsAre("a\n", " b"));
  EXPECT_THAT(texts("{% raw %}{{ x }}{%- endraw -%} y"), ElementsAre("{{ x }}", "y"));
}

TEST(TemplateLexer, TakesTheLongestOperator) {
  EXPECT_THAT(texts("{{ a**b//c<=d<e!=f }}"),
              ElementsAre("a", "**", "b", "//", "c", "<=", "d", "<", "e", "!=", "f"));
  EXPECT_THAT(texts("{{ {'}}': 1} }}"), ElementsAre("{", "}}", ":", "1", "}"));
}

TEST(TemplateLexer, ErrorsNameTheLine) {
  EXPECT_THAT(error_of("\n{{ a"), HasSubstr("line 2: a tag has no end '}}'"));
  EXPECT_THAT(error_of("\n\n{# a"), HasSubstr("line 3: a comment"));
  EXPECT_THAT(error_of("{{ a ) }}"), HasSubstr("unexpected ')'"));
  EXPECT_THAT(error_of("{{ a $ }}"), HasSubstr("unexpected '$'"));
  EXPECT_THAT(error_of("{% raw %}"), HasSubstr("'{% raw %}' has no '{% endraw %}'"));
}

TEST(TagToken, ReadsNumbers) {
  for (const std::string_view text : {"12", "0x1F", "0o7", "0b1"}) {
    const Result<Token> token = lex_one(text);
    ASSERT_TRUE(token.has_value());
    EXPECT_EQ(token->kind, TokenKind::kInteger) << text;
    EXPECT_EQ(token->text, text);
  }
  for (const std::string_view text : {"1.5", "1e3", "1.5e-3"}) {
    const Result<Token> token = lex_one(text);
    ASSERT_TRUE(token.has_value());
    EXPECT_EQ(token->kind, TokenKind::kFloat) << text;
    EXPECT_EQ(token->text, text);
  }
  EXPECT_EQ(lex_one("1_000")->text, "1000");
  EXPECT_EQ(lex_one("1.foo")->text, "1");
  EXPECT_EQ(lex_one("1e")->text, "1");
}

TEST(TagToken, DecodesEscapes) {
  EXPECT_EQ(lex_one(R"("a\n\x41\u00e9\U0001F600\101\q\'")")->text, "a\nA\u00e9\U0001F600A\\q'");
  EXPECT_EQ(lex_one("'a\\\nb'")->text, "ab");
  EXPECT_FALSE(lex_one(R"('\xZZ')").has_value());
  EXPECT_FALSE(lex_one(R"('\uD800')").has_value());
  EXPECT_FALSE(lex_one(R"('\u12')").has_value());
  EXPECT_FALSE(lex_one("'a").has_value());
}

}  // namespace
}  // namespace espalier::jinja
