// Structural tags: their two forms, free text against a naive reading of it, and what is refused.
#include "grammar/frontends/structural_tag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "grammar/conformance.h"
#include "grammar/frontends/free_text.h"

namespace espalier::grammar {
namespace {

using ::testing::HasSubstr;

GrammarSpec spec_of(std::string source) {
  return {.kind = GrammarSpec::Kind::kStructuralTag, .source = std::move(source), .choices = {}};
}

bool accepts(const std::string& source, std::string_view text) {
  const auto grammar = compile_grammar(spec_of(source), byte_trie());
  EXPECT_TRUE(grammar) << grammar.error().to_string();
  if (!grammar) return false;
  Matcher matcher(*grammar);
  return matcher.accept_bytes(text) && matcher.can_end();
}

std::string refusal(const std::string& source) {
  const auto grammar = compile_grammar(spec_of(source), byte_trie());
  return grammar ? "compiled" : grammar.error().message();
}

constexpr const char* kFunctions = R"({"type":"structural_tag","triggers":["<f="],"structures":[
    {"begin":"<f=add>","schema":{"type":"integer"},"end":"</f>"},
    {"begin":"<f=say>","schema":{"type":"string"},"end":"</f>"}]})";

TEST(StructuralTag, TheOlderForm) {
  for (const char* text :
       {"", "just text", "<f=add>12</f>", "so: <f=say>\"x\"</f> and <f=add>1</f>.", "a < b <f <f",
        "ünicode ✓ <f=add>-3</f>"})
    EXPECT_TRUE(accepts(kFunctions, text)) << text;
  for (const char* text : {"<f=add>\"x\"</f>", "<f=", "<f=sub>1</f>", "<f=add>1", "<f=add></f>",
                           "text <f=add>1</g>", "\xff", "\xc3"})
    EXPECT_FALSE(accepts(kFunctions, text)) << text;
}

TEST(StructuralTag, AtLeastOneAndStopAfterFirst) {
  const auto format = [](const char* options) {
    return fmt::format(R"({{"format":{{"type":"triggered_tags","triggers":["["],"tags":[
        {{"type":"tag","begin":"[","content":{{"type":"regex","pattern":"[0-9]"}},"end":"]"}}]{}}}}})",
                       options);
  };
  EXPECT_TRUE(accepts(format(""), "no tag"));
  EXPECT_FALSE(accepts(format(R"(,"at_least_one":true)"), "no tag"));
  EXPECT_FALSE(accepts(format(R"(,"at_least_one":true)"), "one [1] tag [2]"));
  EXPECT_TRUE(accepts(format(R"(,"at_least_one":true)"), "[1] tag [2]"));
  EXPECT_FALSE(accepts(format(R"(,"stop_after_first":true)"), "one [1] tag"));
  EXPECT_TRUE(accepts(format(R"(,"stop_after_first":true)"), "one [1]"));
  EXPECT_FALSE(accepts(format(R"(,"excludes":["tag"])"), "one [1] tag"));
}

TEST(StructuralTag, FormatsOfFormats) {
  const std::string thinking = R"({"format":{"type":"sequence","elements":[
      {"type":"optional","content":{"type":"tag","begin":"<think>","content":{"type":"any_text"},
       "end":"</think>"}},
      {"type":"or","elements":[{"type":"const_string","value":"yes"},
       {"type":"json_schema","json_schema":{"type":"array","items":{"type":"null"}}},
       {"type":"grammar","grammar":"root ::= \"<\" [a-c]+ \">\""}]}]}})";
  for (const char* text : {"yes", "<think>a</b></think>yes", "[null,null]", "<think></think><abc>"})
    EXPECT_TRUE(accepts(thinking, text)) << text;
  for (const char* text : {"<think>yes", "<think>a</think>b</think>yes", "yesyes", "<d>"})
    EXPECT_FALSE(accepts(thinking, text)) << text;

  const std::string list = R"({"format":{"type":"tags_with_separator","separator":";",
      "at_least_one":true,"tags":[{"begin":"a","content":{"type":"repeat","min":1,"max":2,
      "content":{"type":"const_string","value":"x"}},"end":["!","?"]}]}})";
  for (const char* text : {"ax!", "axx?;ax!"}) EXPECT_TRUE(accepts(list, text)) << text;
  for (const char* text : {"", "a!", "axxx!", "ax!ax!", "ax!;"}) EXPECT_FALSE(accepts(list, text));
  const auto at_most = [](const char* max) {
    return fmt::format(R"({{"format":{{"type":"tags_with_separator","separator":";","max":{},
        "tags":[{{"begin":"a","content":{{"type":"const_string","value":"x"}},"end":"!"}}]}}}})",
                       max);
  };
  for (const char* text : {"", "ax!", "ax!;ax!"}) EXPECT_TRUE(accepts(at_most("2"), text)) << text;
  EXPECT_FALSE(accepts(at_most("2"), "ax!;ax!;ax!"));
  EXPECT_FALSE(accepts(at_most("1"), "ax!;ax!"));
  EXPECT_TRUE(accepts(at_most("-1"), "ax!;ax!;ax!"));

  const std::string inside = R"({"format":{"type":"tag","begin":"{","end":"}","content":
      {"type":"triggered_tags","triggers":["#"],"at_least_one":true,"tags":[{"begin":"#",
       "content":{"type":"star","content":{"type":"const_string","value":"n"}},"end":"#"}]}}})";
  for (const char* text : {"{##}", "{#n#b#nn#c}"}) EXPECT_TRUE(accepts(inside, text)) << text;
  for (const char* text : {"{}", "{a}", "{#a#}", "{##}}", "{}##}", "{a#n#}"})
    EXPECT_FALSE(accepts(inside, text));
}

TEST(StructuralTag, EndsAndRepetitions) {
  const std::string closed = R"({"format":{"type":"tag","begin":"B","end":["E",""],
      "content":{"type":"const_string","value":"C"}}})";
  for (const char* text : {"BC", "BCE"}) EXPECT_TRUE(accepts(closed, text)) << text;
  for (const char* text : {"B", "BE", "BCEE"}) EXPECT_FALSE(accepts(closed, text)) << text;
  const std::string open = R"({"format":{"type":"tag","begin":"B","end":["E",""],
      "content":{"type":"any_text"}}})";
  for (const char* text : {"B", "Bxy", "BxyE"}) EXPECT_TRUE(accepts(open, text)) << text;
  EXPECT_FALSE(accepts(open, "BxEy"));
  const std::string unbounded = R"({"format":{"type":"repeat","min":0,"max":-1,
      "content":{"type":"const_string","value":"x"}}})";
  for (const char* text : {"", "xx"}) EXPECT_TRUE(accepts(unbounded, text)) << text;
  const std::string stop = R"({"format":{"type":"tag","begin":"{","end":"}","content":
      {"type":"triggered_tags","triggers":["#"],"at_least_one":true,"stop_after_first":true,
       "tags":[{"begin":"#","content":{"type":"const_string","value":"n"},"end":"#"}]}}})";
  EXPECT_TRUE(accepts(stop, "{#n#}"));
  for (const char* text : {"{}", "{a#n#}", "{#n##n#}"}) EXPECT_FALSE(accepts(stop, text)) << text;
}

// What each parameter of the schema may be, alone.
TEST(StructuralTag, ParametersOneByOne) {
  const auto takes = [](const std::string& schema, const std::string& value) {
    return accepts(R"({"format":{"type":"qwen_xml_parameter","json_schema":{"type":"object",
        "$defs":{"n":{"type":"integer"}},"properties":{"p":)" +
                       schema + R"(},"required":["p"]}}})",
                   "<parameter=p>\n" + value + "\n</parameter>\n");
  };
  struct Case {
    const char* schema;
    std::vector<std::string> right, wrong;
  };
  const std::vector<Case> cases = {
      {R"({"type":"string"})",
       {"", "a", "\"x\"\n\n</parameter", "</p>é", "null"},
       {"</parameter>", "\xff"}},
      {R"({"type":"integer"})", {"3", "-12"}, {"", "x", "\"3\"", "3.5"}},
      {R"({"$ref":"#/$defs/n"})", {"3"}, {"x"}},
      {R"({"enum":["red","green"]})", {"red", "green"}, {"", "blue", "\"red\""}},
      {R"({"type":["string","null"],"maxLength":2})", {"", "ab", "éé", "null"}, {"abc"}},
      {R"({"type":"string","pattern":"^[0-9]+x","minLength":4})",
       {"123x", "1xab"},
       {"1x", "ab12x"}},
      {R"({"type":"string","format":"date"})", {"2024-02-03"}, {"2024-13-03", "soon"}},
      {R"({"anyOf":[{"type":"string","const":"a"},{"type":"null"}]})", {"a", "null"}, {"b"}},
      {R"({"type":"array","items":{"type":"string"}})", {R"(["a", "b"])", "[]"}, {"a"}},
      {R"({"type":"object","properties":{"x":{"type":"boolean"}},"required":["x"]})",
       {R"({"x": true})"},
       {"{}", "x"}},
      {"{}", {"1", "\"a\"", "[null]"}, {"a"}},
  };
  for (const Case& one : cases) {
    for (const std::string& value : one.right) EXPECT_TRUE(takes(one.schema, value)) << value;
    for (const std::string& value : one.wrong) EXPECT_FALSE(takes(one.schema, value)) << value;
  }
  const auto all = [](const std::string& schema, const std::string& text) {
    return accepts(R"({"format":{"type":"qwen_xml_parameter","json_schema":)" + schema + "}}",
                   text);
  };
  const std::string a = "<parameter=a>\n1\n</parameter>\n", b = "<parameter=b>\nx\n</parameter>\n";
  const std::string two =
      R"("properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["b"])";
  for (const std::string& text : {b, a + b}) EXPECT_TRUE(all("{" + two + "}", text)) << text;
  for (const std::string& text :
       {a, b + a, a + b + b, std::string(), a + b + "<parameter=c>\n\n</parameter>\n"})
    EXPECT_FALSE(all("{" + two + "}", text)) << text;
  EXPECT_TRUE(
      all("{" + two + R"(,"additionalProperties":true})", b + "<parameter=c>\n\n</parameter>\n"));
  EXPECT_FALSE(all("{" + two + R"(,"additionalProperties":true})", b + b));
  EXPECT_TRUE(all("{}", a + b) && all("true", "") && all(R"({"type":"object"})", b));
  EXPECT_TRUE(all(R"({"required":["b"],"additionalProperties":{"type":"integer"}})",
                  "<parameter=b>\n1\n</parameter>\n"));
  const auto refused = [](const std::string& schema) {
    return refusal(R"({"format":{"type":"qwen_xml_parameter","json_schema":)" + schema + "}}");
  };
  EXPECT_THAT(refused(R"({"minProperties":2})"), HasSubstr("/minProperties is not supported"));
  EXPECT_THAT(refused(R"({"properties":{"a":{"type":"string","not":{}}}})"),
              HasSubstr("/properties/a/not is not supported"));
  EXPECT_THAT(refused(R"({"properties":{"a":{"type":"integer","minimum":"x"}}})"),
              HasSubstr("/properties/a"));
  EXPECT_THAT(refused(R"({"type":"array"})"), HasSubstr("arguments are one"));
  EXPECT_THAT(refused(R"({"required":["x"],"additionalProperties":false})"), HasSubstr("'x'"));
}

TEST(StructuralTag, StylesOfParameters) {
  const auto takes = [](const std::string& style, const std::string& text) {
    return accepts(R"({"format":{"type":"json_schema","style":")" + style +
                       R"(","json_schema":{"type":"object","properties":{"a":{"type":"integer"},
        "b":{"type":["string","null"]}},"required":["b"]}}})",
                   text);
  };
  EXPECT_TRUE(takes("qwen_xml", "<parameter=b>\nx\n</parameter>\n"));
  EXPECT_TRUE(takes("minimax_xml",
                    "<parameter name=\"a\">1</parameter>\n<parameter name=\"b\">x</parameter>\n"));
  EXPECT_FALSE(takes("minimax_xml", "<parameter name=\"a\">1</parameter>\n"));
  EXPECT_TRUE(takes("glm_xml", "<arg_key>b</arg_key>\n<arg_value>x</parameter></arg_value>\n"));
  const std::string begin = "<｜DSML｜parameter name=\"b\" string=\"",
                    end = "</｜DSML｜parameter>\n";
  EXPECT_TRUE(takes("deepseek_xml", begin + "true\">7" + end));
  EXPECT_TRUE(takes("deepseek_xml", begin + "false\">null" + end));
  EXPECT_FALSE(takes("deepseek_xml", begin + "false\">x" + end));
  EXPECT_FALSE(takes("deepseek_xml", begin + "true\">7</｜DSML｜parameter>x" + end));
  EXPECT_THAT(refusal(R"({"format":{"type":"json_schema","style":"x","json_schema":{}}})"),
              HasSubstr("glm_xml"));
}

TEST(StructuralTag, MistakesAreNamedByTheirPath) {
  EXPECT_THAT(refusal("["), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("structural_tag.structures"));
  EXPECT_THAT(refusal(R"({"structures":[{"begin":"a","end":"b"}],"triggers":["x"]})"),
              HasSubstr("no tag begins with the trigger 'x'"));
  EXPECT_THAT(refusal(R"({"structures":[{"begin":"a","end":"b"},{"begin":"c","end":"d"}],
                          "triggers":["a"]})"),
              HasSubstr("the tag 'c' begins with no trigger"));
  EXPECT_THAT(refusal(R"({"structures":[{"begin":"a","schema":{"type":"x"},"end":"b"}],
                          "triggers":["a"]})"),
              HasSubstr("structural_tag.structures[0].schema"));
  EXPECT_THAT(refusal(R"({"structures":[{"begin":"a","end":"b","style":1}],"triggers":["a"]})"),
              HasSubstr("structural_tag.structures[0].style is not supported"));
  EXPECT_THAT(refusal(R"({"format":{"type":"qwen_xml_parameter"}})"),
              HasSubstr("structural_tag.format.json_schema is missing"));
  EXPECT_THAT(refusal(R"({"format":{"type":"poem"}})"), HasSubstr("'poem' is not supported"));
  EXPECT_THAT(refusal(R"({"format":{"type":"regex","pattern":"(a"}})"),
              HasSubstr("structural_tag.format.pattern"));
  EXPECT_THAT(refusal(R"({"format":{"type":"any_text","excludes":[""]}})"), HasSubstr("empty"));
}

// Whether `text` from `at` on is free text with tags, read by trying everything.
struct NaiveTags {
  std::vector<std::string> triggers;
  std::vector<std::pair<std::string, std::string>> tags;  // begin, the rest
  std::string forbidden;

  bool reads(std::string_view text, size_t text_begin, size_t at) const {
    for (const std::string& trigger : triggers) {
      if (!text.substr(text_begin, at - text_begin).ends_with(trigger)) continue;
      for (const auto& [begin, rest] : tags) {
        const std::string whole = begin + rest;
        const size_t from = at - trigger.size();
        if (begin.starts_with(trigger) && text.substr(from).starts_with(whole) &&
            reads(text, from + whole.size(), from + whole.size()))
          return true;
      }
      return false;
    }
    if (text.substr(text_begin, at - text_begin).ends_with(forbidden)) return false;
    return at == text.size() || reads(text, text_begin, at + 1);
  }
};

TEST(FreeText, EqualsANaiveReadingOfEverySmallText) {
  Rng rng(20);
  const auto word = [&](uint64_t size_min, uint64_t size_max) {
    std::string out(size_min + rng.below(size_max - size_min + 1), 'a');
    for (char& c : out) c = static_cast<char>('a' + rng.below(2));
    return out;
  };
  int64_t accepted = 0, refused = 0;
  for (int round = 0; round < 60; ++round) {
    NaiveTags naive{.triggers = {word(1, 3)}, .tags = {}, .forbidden = word(3, 4)};
    const std::string& trigger = naive.triggers[0];
    // Where one holds the other, which of them comes first is a question of its own.
    if (naive.forbidden.find(trigger) != std::string::npos ||
        trigger.find(naive.forbidden) != std::string::npos)
      continue;
    for (int i = 0; i < 2; ++i) naive.tags.emplace_back(trigger + word(0, 2), word(0, 2));
    Ir ir;
    std::vector<ExprId> alternatives;
    for (const auto& [begin, rest] : naive.tags)
      alternatives.push_back(ir.literal(begin.substr(trigger.size()) + rest));
    const auto expr = free_text(
        ir,
        {{trigger, ir.choice(alternatives)}, {naive.forbidden, 0, TextTrigger::After::kForbidden}},
        {});
    ASSERT_TRUE(expr);
    const RuleId root = ir.rules().add("root");
    ir.rules().set_body(root, *expr);
    auto network = build_network(ir, root, {});
    ASSERT_TRUE(network) << network.error().to_string();
    const auto grammar =
        std::make_shared<CompiledGrammar>(std::move(*network), byte_trie(), GrammarLimits{});
    for (uint32_t size = 0; size <= 9; ++size) {
      for (uint32_t bits = 0; bits < 1u << size; ++bits) {
        std::string text;
        for (uint32_t i = 0; i < size; ++i) text += bits >> i & 1 ? 'b' : 'a';
        Matcher matcher(grammar);
        const bool ours = matcher.accept_bytes(text) && matcher.can_end();
        ASSERT_EQ(ours, naive.reads(text, 0, 0))
            << text << " trigger " << trigger << " forbidden " << naive.forbidden << " tags "
            << naive.tags[0].first << "+" << naive.tags[0].second << " " << naive.tags[1].first
            << "+" << naive.tags[1].second;
        ++(ours ? accepted : refused);
      }
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace espalier::grammar
