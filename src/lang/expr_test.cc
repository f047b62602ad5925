#include "lang/expr.h"

#include <gtest/gtest.h>

#include "espalier/lang.h"

namespace espalier::lang {
namespace {

using lang::system;  // not the C library's

TEST(Expr, ConcatenatesInOrder) {
  const std::string essay = "On sailing";
  const Expr e = user(image("sea.png") + "Essay: " + essay) + assistant("Sure!" + gen("more"));
  ASSERT_EQ(e.nodes().size(), 9u);
  EXPECT_EQ(std::get<RoleBegin>(e.nodes()[0].what).role, Role::kUser);
  EXPECT_EQ(std::get<Media>(e.nodes()[1].what).path, "sea.png");
  EXPECT_EQ(std::get<Text>(e.nodes()[3].what).text, essay);
  EXPECT_EQ(std::get<Text>(e.nodes()[6].what).text, "Sure!");
  EXPECT_EQ(std::get<std::shared_ptr<const Gen>>(e.nodes()[7].what)->name, "more");
  EXPECT_EQ(std::get<RoleEnd>(e.nodes()[8].what).role, Role::kAssistant);
}

TEST(Expr, EachPrimitiveKnowsItsLine) {
  const auto line = std::source_location::current().line();
  Expr e = "text" + gen("a");
  e += select("b", {"x", "y"});
  ASSERT_EQ(e.nodes().size(), 3u);
  EXPECT_EQ(e.nodes()[0].where.line, line + 1);
  EXPECT_EQ(e.nodes()[1].where.line, line + 1);
  EXPECT_EQ(e.nodes()[2].where.line, line + 2);
  EXPECT_EQ(to_string(e.nodes()[2].where), fmt::format("expr_test.cc:{}", line + 2));
}

TEST(Expr, EmptyTextIsNothing) {
  EXPECT_TRUE(Expr("").empty());
  EXPECT_TRUE(Expr(Value()).empty());
  EXPECT_EQ(system("").nodes().size(), 2u);
}

TEST(Expr, OptionsTakeOneStringOrSeveral) {
  const Expr e = gen("a", {.max_tokens = 8, .stop = "END"}) + gen("b", {.stop = {"\n", "."}});
  EXPECT_EQ(std::get<std::shared_ptr<const Gen>>(e.nodes()[0].what)->options.stop,
            (std::vector<std::string>{"END"}));
  EXPECT_EQ(std::get<std::shared_ptr<const Gen>>(e.nodes()[1].what)->options.stop,
            (std::vector<std::string>{"\n", "."}));
}

TEST(Expr, GenWithChoicesIsASelect) {
  const Expr e = gen("a", {.choices = {"x", "y"}, .choices_method = greedy_token_selection});
  EXPECT_EQ(std::get<Select>(e.nodes()[0].what).method, greedy_token_selection);
}

TEST(Expr, JoinPutsSeparatorsBetween) {
  const Expr e = join({Value("a"), Value("b"), Value("c")}, ", ");
  ASSERT_EQ(e.nodes().size(), 5u);
  EXPECT_EQ(std::get<Text>(e.nodes()[1].what).text, ", ");
}

TEST(Options, DefaultsFillWhatIsAbsent) {
  const GenOptions defaults{.max_tokens = 128, .stop = "\n", .temperature = 0.5f, .regex = "a+"};
  const GenOptions o = GenOptions{.temperature = 0.0f, .json_schema = "{}"}.with_defaults(defaults);
  EXPECT_EQ(o.max_tokens, 128);
  EXPECT_EQ(o.stop, (std::vector<std::string>{"\n"}));
  EXPECT_EQ(o.temperature, 0.0f);
  EXPECT_EQ(o.regex, "");  // one grammar
}

TEST(Options, RefusesContradictions) {
  EXPECT_TRUE(validate({.max_tokens = 4}).ok());
  EXPECT_FALSE(validate({.dtype = Dtype::kInt, .regex = "a"}).ok());
  EXPECT_FALSE(validate({.max_tokens = -1}).ok());
  EXPECT_FALSE(validate({.max_tokens = 3, .min_tokens = 4}).ok());
  EXPECT_FALSE(validate({.n = 0}).ok());
  EXPECT_FALSE(validate({.stop = ""}).ok());
}

TEST(Value, ConstantsAreThere) {
  const Value value = "sea";
  EXPECT_TRUE(value.ready());
  EXPECT_TRUE(value == "sea");
  EXPECT_EQ(value.items(), (std::vector<std::string>{"sea"}));
  const std::string text = value;
  EXPECT_EQ(text, "sea");
}

TEST(Error, NamesItsLine) {
  const Error e(invalid_argument("no"), Location("/a/b/judge.cc", 12, "judge"));
  EXPECT_STREQ(e.what(), "judge.cc:12: invalid_argument: no");
}

}  // namespace
}  // namespace espalier::lang
