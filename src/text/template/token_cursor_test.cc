// The parsers' cursor, and the names that statements bind.
#include "text/template/token_cursor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/template/bindings.h"

namespace espalier::jinja {
namespace {

using ::testing::HasSubstr;

// A cursor at the first token behind "{{".
TokenCursor cursor_in_tag(std::string_view expression) {
  Result<std::vector<Token>> tokens = tokenize_template(fmt::format("{{{{ {} }}}}", expression));
  EXPECT_TRUE(tokens.has_value());
  TokenCursor cursor(std::move(*tokens));
  cursor.advance();
  return cursor;
}

TEST(TokenCursor, NeverPassesTheEnd) {
  TokenCursor cursor(std::vector<Token>(1));
  cursor.advance();
  EXPECT_EQ(cursor.current().kind, TokenKind::kEnd);
  EXPECT_EQ(cursor.peek().kind, TokenKind::kEnd);
  EXPECT_THAT(cursor.expect_operator("(").message(), HasSubstr("the end of the template"));
}

TEST(TokenCursor, SkipsOnlyWhatIsThere) {
  TokenCursor cursor = cursor_in_tag("a + b");
  EXPECT_FALSE(cursor.skip_operator("+"));
  EXPECT_TRUE(cursor.skip_name("a"));
  EXPECT_FALSE(cursor.skip_name("+"));
  EXPECT_TRUE(cursor.expect_operator("+").ok());
  EXPECT_EQ(*cursor.expect_name(), "b");
  EXPECT_THAT(cursor.expect_name().error().message(), HasSubstr("expected a name, got '}}'"));
  EXPECT_TRUE(cursor.expect_kind(TokenKind::kVariableEnd, "'}}'").ok());
}

TEST(TokenCursor, BoundsNesting) {
  TokenCursor cursor(std::vector<Token>(1));
  int levels = 0;
  while (levels < 1000 && cursor.enter("statements are").ok()) ++levels;
  EXPECT_EQ(levels, 100);
  cursor.leave();
  cursor.leave();
  EXPECT_TRUE(cursor.enter("statements are").ok());
  EXPECT_THAT(cursor.enter("statements are").message(),
              HasSubstr("statements are nested too deeply"));
}

TEST(Bindings, ParsesTargets) {
  TokenCursor cursor = cursor_in_tag("(a, ns.b), c in");
  const Result<ExpressionPtr> targets = parse_targets(cursor, "in");
  ASSERT_TRUE(targets.has_value()) << targets.error().to_string();
  EXPECT_TRUE(cursor.current().is_operator(","));  // a bracket closes the whole list
  EXPECT_EQ((*targets)->kind, ExpressionKind::kTuple);
  ASSERT_EQ((*targets)->children.size(), 2u);
  EXPECT_EQ((*targets)->children[0]->name, "a");
  EXPECT_EQ((*targets)->children[1]->kind, ExpressionKind::kAttribute);
  EXPECT_EQ((*targets)->children[1]->name, "b");
  TokenCursor reserved = cursor_in_tag("loop =");
  EXPECT_THAT(parse_targets(reserved, "=").error().message(),
              HasSubstr("'loop' cannot be assigned to"));
}

TEST(Bindings, BoundsNestedTargets) {
  TokenCursor cursor = cursor_in_tag(std::string(4000, '(') + "a" + std::string(4000, ')'));
  EXPECT_THAT(parse_targets(cursor, "=").error().message(),
              HasSubstr("the targets are nested too deeply"));
}

TEST(Bindings, ParsesParameters) {
  TokenCursor cursor = cursor_in_tag("(a, b=1, c='x',) d");
  ExpressionParser expressions(cursor);
  std::vector<Parameter> parameters;
  ASSERT_TRUE(parse_parameters(cursor, expressions, parameters).ok());
  ASSERT_EQ(parameters.size(), 3u);
  EXPECT_EQ(parameters[0].otherwise, nullptr);
  EXPECT_EQ(parameters[1].otherwise->value.integer(), 1);
  EXPECT_TRUE(cursor.current().is_name("d"));
  TokenCursor wrong = cursor_in_tag("(a=1, b)");
  ExpressionParser wrong_expressions(wrong);
  parameters.clear();
  EXPECT_THAT(parse_parameters(wrong, wrong_expressions, parameters).message(),
              HasSubstr("a parameter without default"));
}

}  // namespace
}  // namespace espalier::jinja
