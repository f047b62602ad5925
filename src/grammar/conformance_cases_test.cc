// Cases as files hold them, how they are judged, and the drawing of automata.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "grammar/conformance.h"
#include "grammar/drawing.h"

namespace espalier::grammar {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TextVerdict judged(std::string_view line) {
  const auto test = parse_text_case(line);
  EXPECT_TRUE(test) << test.error().to_string();
  return check_text_case(*test).verdict;
}

TEST(TextCases, EachKindIsJudged) {
  EXPECT_EQ(judged(R"({"kind":"regex","grammar":"a+","input":"aa","accept":true})"),
            TextVerdict::kAgrees);
  EXPECT_EQ(judged(R"({"kind":"regex","grammar":"a+","input":"ab","accept":true})"),
            TextVerdict::kWronglyRejected);
  EXPECT_EQ(judged(R"({"kind":"regex","grammar":"a+","input":"a","accept":false})"),
            TextVerdict::kWronglyAccepted);
  EXPECT_EQ(judged(R"({"kind":"regex","grammar":"(a","input":"a","accept":false})"),
            TextVerdict::kRefused);
  EXPECT_EQ(judged(R"({"kind":"ebnf","grammar":"root ::= \"x\"","input":"x","accept":true})"),
            TextVerdict::kAgrees);
  EXPECT_EQ(judged(R"({"kind":"json","input":"{\"a\" : [1]}","accept":true})"),
            TextVerdict::kAgrees);
  EXPECT_EQ(judged(R"({"kind":"choices","grammar":["a","b"],"input":"b","accept":true})"),
            TextVerdict::kAgrees);
  for (const char* grammar : {R"({"type":"integer"})", R"("{\"type\":\"integer\"}")"})
    EXPECT_EQ(
        judged(fmt::format(R"({{"kind":"json_schema","grammar":{},"input":"1.5","accept":false}})",
                           grammar)),
        TextVerdict::kAgrees);
  // A schema that nothing satisfies is no refusal: it accepts nothing.
  EXPECT_EQ(judged(R"({"kind":"json_schema","grammar":false,"input":"1","accept":false})"),
            TextVerdict::kAgrees);
}

TEST(TextCases, WhatIsMissingIsNamed) {
  const auto why = [](std::string_view line) { return parse_text_case(line).error().message(); };
  EXPECT_THAT(why("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(why("[]"), HasSubstr("object"));
  EXPECT_THAT(why(R"({"kind":"pcre","grammar":"a","input":"","accept":true})"),
              HasSubstr("json_schema"));
  EXPECT_THAT(why(R"({"kind":"regex","input":"","accept":true})"), HasSubstr("grammar"));
  EXPECT_THAT(why(R"({"kind":"regex","grammar":"a","accept":true})"), HasSubstr("input"));
  EXPECT_THAT(why(R"({"kind":"regex","grammar":"a","input":"a"})"), HasSubstr("accept"));
}

TEST(SchemaCases, ASchemaCountsOnceUnderTheWorst) {
  const auto test = parse_schema_case(
      R"({"name":"n","schema":{"type":"integer","maximum":5},"tests":[
          {"valid":true,"data":3},{"valid":true,"data":7},{"valid":false,"data":2},
          {"valid":false,"data":1.5}]})");
  ASSERT_TRUE(test) << test.error().to_string();
  const SchemaOutcome outcome = check_schema_case(*test);
  EXPECT_EQ(outcome.verdict, SchemaVerdict::kInvalidAccepted);
  EXPECT_EQ(outcome.num_instances, 4);
  EXPECT_EQ(outcome.num_instances_right, 2);
  EXPECT_EQ(outcome.detail, "2");
  SchemaTally tally;
  tally.add(outcome);
  SchemaCase unknown{.name = {}, .schema = R"({"$ref":"http://elsewhere/x"})", .instances = {}};
  tally.add(check_schema_case(unknown));
  EXPECT_EQ(tally.total, 2);
  EXPECT_EQ(tally.invalid_accepted, 1);
  EXPECT_EQ(tally.declined, 1);
  EXPECT_EQ(tally.declined_by_reason.size(), 1u);
}

TEST(SchemaCases, FilesOfTheSuite) {
  const auto cases = parse_suite_file(
      "f.json", R"([{"description":"d","schema":true,"tests":[{"data":null,"valid":true}]}])");
  ASSERT_TRUE(cases) << cases.error().to_string();
  ASSERT_EQ(cases->size(), 1u);
  EXPECT_EQ(cases->front().name, "f.json: d");
  EXPECT_EQ(check_schema_case(cases->front()).verdict, SchemaVerdict::kRight);
  EXPECT_FALSE(parse_suite_file("f.json", "{}"));
}

TEST(Drawing, ChainsAreOneEdgeAndNothingIsLeftOpen) {
  const auto grammar = compile_grammar(
      {.kind = GrammarSpec::Kind::kRegex, .source = "(yes|no)<&> please"}, byte_trie());
  ASSERT_TRUE(grammar);
  const std::string svg = draw_svg((*grammar)->whole_network());
  EXPECT_THAT(svg, HasSubstr(">yes<"));
  EXPECT_THAT(svg, HasSubstr(">&lt;&amp;&gt;␣please<"));
  EXPECT_THAT(svg, Not(HasSubstr("<&")));
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  // Recursive rules have a row each.
  const auto nested = compile_grammar(
      {.kind = GrammarSpec::Kind::kEbnf, .source = "root ::= \"(\" root? \")\" | \"x\""},
      byte_trie());
  ASSERT_TRUE(nested);
  EXPECT_THAT(draw_svg((*nested)->whole_network()), HasSubstr("⟨root⟩"));
  EXPECT_THAT(draw_svg((*nested)->whole_network(), 1), HasSubstr("(the first 1 states)"));
}

TEST(Drawing, WhiteSpaceThatMayBeLeftOutIsNotDrawnOtherIs) {
  const auto drawn = [](GrammarSpec::Kind kind, std::string source) {
    const auto grammar = compile_grammar({.kind = kind, .source = std::move(source)}, byte_trie());
    EXPECT_TRUE(grammar);
    return draw_svg((*grammar)->whole_network());
  };
  constexpr std::string_view kSaid = "(without the white space that may be left out)";
  const std::string schema = drawn(
      GrammarSpec::Kind::kJsonSchema,
      R"({"type":"object","properties":{"a":{"enum":[true]}},"required":["a"],"additionalProperties":false})");
  EXPECT_THAT(schema, HasSubstr(kSaid));
  EXPECT_THAT(schema, HasSubstr(">{&quot;a&quot;:true}<"));
  EXPECT_THAT(drawn(GrammarSpec::Kind::kRegex, "a ?b"), HasSubstr(kSaid));
  const std::string must = drawn(GrammarSpec::Kind::kRegex, "(a +b|a *c)d");
  EXPECT_THAT(must, Not(HasSubstr(kSaid)));
  EXPECT_THAT(must, HasSubstr(">␣<"));
}

TEST(Drawing, CountsAreDrawn) {
  const auto grammar = compile_grammar(
      {.kind = GrammarSpec::Kind::kJsonSchema, .source = R"({"type":"string","maxLength":800})"},
      byte_trie());
  ASSERT_TRUE(grammar);
  const std::string svg = draw_svg((*grammar)->whole_network());
  EXPECT_THAT(svg, HasSubstr(">(count)<"));
  EXPECT_THAT(svg, HasSubstr(">(if 0 to 800)<"));
}

TEST(SchemaCases, ReferencesLeadToDocumentsOfTheirLine) {
  const auto test = parse_schema_case(
      R"({"schema":{"$ref":"http://elsewhere/x#/$defs/y"},"documents":{"http://elsewhere/x":)"
      R"({"$defs":{"y":{"$ref":"z"}}},"http://elsewhere/z":{"type":"null"}},)"
      R"("tests":[{"valid":true,"data":null},{"valid":false,"data":1}]})");
  ASSERT_TRUE(test) << test.error().to_string();
  EXPECT_EQ(check_schema_case(*test).verdict, SchemaVerdict::kRight);
  // In a request they come along under $defs, each with its address.
  const SchemaCase bundled{
      .name = {},
      .schema = R"({"$ref":"http://elsewhere/x","$defs":{"1":{"$id":"http://elsewhere/x",)"
                R"("items":{"$ref":"z"}},"2":{"$id":"http://elsewhere/z","type":"null"}}})",
      .instances = {{"[null]", true}, {"[1]", false}}};
  EXPECT_EQ(check_schema_case(bundled).verdict, SchemaVerdict::kRight);
  EXPECT_THAT(parse_schema_case(R"({"schema":{},"documents":[],"tests":[]})").error().message(),
              HasSubstr("documents"));
  EXPECT_THAT(documents_in("/nowhere").error().message(), HasSubstr("no such folder"));
}

TEST(SchemaCases, DeepNestingIsAnErrorWithItsPointer) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_THAT(parse_schema_case(R"({"schema":{},"tests":[{"valid":true,"data":)" + deep + "}]}")
                  .error()
                  .message(),
              HasSubstr("nests deeper than 500 values at byte"));
}

// Every field distinguishes specs, and no field runs into the next.
TEST(GrammarKey, DiffersWhereAnyFieldDoes) {
  using Kind = GrammarSpec::Kind;
  const GrammarSpec base{.kind = Kind::kChoices, .source = "s", .choices = {"a", "b"}};
  const auto with = [&](auto change) {
    GrammarSpec spec = base;
    change(spec);
    return spec;
  };
  const std::vector<GrammarSpec> specs = {
      base,
      with([](GrammarSpec& s) { s.kind = Kind::kRegex; }),
      with([](GrammarSpec& s) { s.source = "t"; }),
      with([](GrammarSpec& s) { s.source = ""; }),
      with([](GrammarSpec& s) { s.choices = {"ab"}; }),
      with([](GrammarSpec& s) {
        s.choices = {"a", "b", ""};
      }),
      with([](GrammarSpec& s) { s.choices = {"a1 b"}; }),
      with([](GrammarSpec& s) { s.choices.clear(); }),
      with([](GrammarSpec& s) { s.whitespace = Whitespace::kCompact; }),
      with([](GrammarSpec& s) { s.reasoning_begin = "x"; }),
      with([](GrammarSpec& s) { s.reasoning_end = "x"; }),
      with([](GrammarSpec& s) { s.json.any_order = true; }),
      with([](GrammarSpec& s) { s.json.whole_fractions = true; }),
      with([](GrammarSpec& s) { s.json.formats_annotate = true; }),
      with([](GrammarSpec& s) { s.json.draft = "x"; }),
      with([](GrammarSpec& s) {
        s.json.documents = {{"x", ""}};
      }),
      with([](GrammarSpec& s) {
        s.json.documents = {{"", "x"}};
      }),
      with([](GrammarSpec& s) {
        s.json.documents = {{"", ""}, {"", "x"}};
      })};
  for (size_t i = 0; i < specs.size(); ++i) {
    for (size_t j = 0; j < specs.size(); ++j) {
      EXPECT_EQ(key_of(specs[i]) == key_of(specs[j]), i == j) << i << " and " << j;
      EXPECT_EQ(specs[i] == specs[j], i == j) << i << " and " << j;
    }
  }
}

}  // namespace
}  // namespace espalier::grammar
