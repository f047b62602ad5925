// JSON Schema keyword by keyword: what is allowed, what is not, and what is refused by name; then
// whole families of numbers against arithmetic.
#include "grammar/schema/json_schema.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/rng.h"
#include "fmt/core.h"
#include "grammar/automata/earley.h"
#include "grammar/automata/left_factoring.h"
#include "grammar/grammar.h"
#include "grammar/schema/number_ranges.h"

namespace espalier::grammar {
namespace {

std::shared_ptr<const TokenTrie> byte_trie() {
  static const auto trie = [] {
    std::vector<std::string> tokens;
    for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
    const std::vector<std::string_view> views(tokens.begin(), tokens.end());
    VocabView view;
    view.token_bytes = views;
    return std::make_shared<const TokenTrie>(view);
  }();
  return trie;
}

Result<std::shared_ptr<CompiledGrammar>> compiled(std::string schema,
                                                  Whitespace whitespace = Whitespace::kAny) {
  return compile_grammar({.kind = GrammarSpec::Kind::kJsonSchema,
                          .source = std::move(schema),
                          .choices = {},
                          .whitespace = whitespace},
                         byte_trie());
}

bool accepts(const std::shared_ptr<CompiledGrammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  return matcher.accept_bytes(text) && matcher.can_end();
}

struct Case {
  const char* schema;
  std::vector<const char*> valid, invalid;
};

// Schemas that say the same are one rule, whatever their titles; those that differ in what counts,
// or that a reference may find by a name, are not.
TEST(Schema, AlikeSchemasAreMadeOnce) {
  const auto rules_of = [](const char* first, const char* second) {
    const auto grammar = compiled(fmt::format(
        R"({{"properties":{{"p":{},"q":{}}},"additionalProperties":false}})", first, second));
    EXPECT_TRUE(grammar) << grammar.error().to_string();
    return grammar ? (*grammar)->whole_network().starts.size() : 0;
  };
  // Large enough for a rule of its own.
  const char* const list = R"({"type":"array","maxItems":9,"items":{"enum":["ab","cd"]}})";
  const size_t once = rules_of(list, list);
  const char* const others[] = {
      R"({"type":"array","maxItems":9,"items":{"enum":["cd","ab"]}})",
      R"({"type":"array","maxItems":8,"items":{"enum":["ab","cd"]}})",
      R"({"maxItems":9,"type":"array","items":{"enum":["ab","cd"]}})",
      R"({"type":"array","maxItems":9,"items":{"enum":["ab","cd"],"title":"x","$anchor":"here"}})"};
  for (const char* other : others) EXPECT_GT(rules_of(list, other), once) << other;
  EXPECT_EQ(once, rules_of(list, R"({"title":"t","type":"array","description":"d","maxItems":9,
                                     "items":{"enum":["ab","cd"],"default":"ab"}})"));
  // Properties come in the order in which each schema declares them.
  const auto both = compiled(R"({"properties":{
      "p":{"properties":{"a":{},"b":{}},"additionalProperties":false},
      "q":{"properties":{"b":{},"a":{}},"additionalProperties":false}}})");
  ASSERT_TRUE(both);
  EXPECT_TRUE(accepts(*both, R"({"p":{"a":1,"b":2},"q":{"b":1,"a":2}})"));
  EXPECT_FALSE(accepts(*both, R"({"p":{"b":1,"a":2}})"));
  EXPECT_FALSE(accepts(*both, R"({"q":{"a":1,"b":2}})"));
}

// Random choices of rules that begin alike match what their ways match one by one.
TEST(Schema, SharedPrefixesMatchTheSame) {
  Rng rng(20);
  for (int round = 0; round < 300; ++round) {
    Ir ir;
    const RuleId open = ir.rules().add("not made yet");
    std::vector<ExprId> alternatives;
    std::vector<std::string> texts;
    const std::string common(rng.below(12), 'a');
    for (uint64_t alternative = 0, count = 1 + rng.below(8); alternative < count; ++alternative) {
      // Bytes, a constant in a rule of its own, bytes.
      std::string parts[3] = {common, "", ""};
      for (std::string& part : parts) {
        for (uint64_t size = rng.below(8); size > 0; --size)
          part += static_cast<char>('a' + rng.below(2));
      }
      const RuleId constant = ir.rules().add("constant");
      ir.rules().set_body(constant, ir.literal(parts[1]));
      const RuleId rule = ir.rules().add("way");
      ir.rules().set_body(
          rule, ir.sequence({ir.literal(parts[0]), ir.rule(constant), ir.literal(parts[2])}));
      alternatives.push_back(ir.rule(rule));
      texts.push_back(parts[0] + parts[1] + parts[2]);
    }
    const RuleId root = ir.rules().add("root");
    ir.rules().set_body(
        root, left_factored_choice(ir, alternatives, [&](RuleId rule) { return rule != open; }));
    const auto network = build_network(ir, root, {});
    ASSERT_TRUE(network) << network.error().to_string();
    const auto matches = [&](const std::string& text) {
      EarleyRecogniser earley(*network, {});
      SetId at = earley.start();
      for (const char c : text) at = earley.step(at, static_cast<uint8_t>(c));
      return earley.accepting(at);
    };
    for (const std::string& text : texts) {
      EXPECT_TRUE(matches(text)) << text;
      for (size_t i = 0; i <= text.size(); ++i) {
        std::string shorter = text, other = text, longer = text;
        longer.insert(i, "a");
        std::vector<std::string> tried = {longer};
        if (i < text.size()) {
          other[i] = other[i] == 'a' ? 'b' : 'a';
          shorter.erase(i, 1);
          tried.insert(tried.end(), {other, shorter});
        }
        for (const std::string& one : tried)
          EXPECT_EQ(matches(one), std::ranges::find(texts, one) != texts.end()) << one;
      }
    }
  }
}

// White space before an end that is checked does not leave it as the only continuation.
TEST(Schema, WhatMayNotEndYetGoesOnBehindWhiteSpace) {
  const char* const distinct = R"({"type":"array","items":{"type":"integer"},"uniqueItems":true})";
  const auto grammar = compiled(distinct, Whitespace::kBounded);
  ASSERT_TRUE(grammar) << grammar.error().to_string();
  EXPECT_TRUE(accepts(*grammar, "[7\n , 8\n]"));
  EXPECT_FALSE(accepts(*grammar, "[7,7\n ]"));
  Matcher matcher(*grammar);
  ASSERT_TRUE(matcher.accept_bytes("[7,7\n "));
  std::vector<uint32_t> words(static_cast<size_t>(matcher.words_per_mask()));
  EXPECT_TRUE(matcher.fill_mask(words));
}

// Not every length fits behind each character: the counter of a maximum leaves room for the least.
TEST(Schema, CountsPatternsThatMayNotEndEverywhere) {
  const auto grammar =
      compiled(R"({"type":"string","pattern":"^([a/]|a[a/]*a)$","maxLength":100})");
  ASSERT_TRUE(grammar) << grammar.error().to_string();
  EXPECT_TRUE((*grammar)->network().checks.empty());
  EXPECT_FALSE((*grammar)->network().counters.empty());
  for (const size_t slashes : {0u, 1u, 97u, 98u}) {
    EXPECT_TRUE(accepts(*grammar, "\"a" + std::string(slashes, '/') + "a\"")) << slashes;
  }
  for (const char* text : {"\"a\"", "\"/\""}) EXPECT_TRUE(accepts(*grammar, text)) << text;
  for (const char* text : {"\"\"", "\"a/\"", "\"//\"", "\"/a\""})
    EXPECT_FALSE(accepts(*grammar, text)) << text;
  Matcher matcher(*grammar);
  EXPECT_TRUE(matcher.accept_bytes("\"a" + std::string(98, '/')));
  EXPECT_FALSE(matcher.accept_bytes("/"));
  EXPECT_TRUE(matcher.accept_bytes("a"));
  EXPECT_EQ(matcher.forced_bytes(2), "\"");
}

class SchemaTest : public ::testing::TestWithParam<Case> {};

TEST_P(SchemaTest, AllowsExactlyWhatIsValid) {
  const Case& c = GetParam();
  const auto grammar = compiled(c.schema);
  ASSERT_TRUE(grammar) << c.schema << ": " << grammar.error().to_string();
  for (const char* text : c.valid) EXPECT_TRUE(accepts(*grammar, text)) << c.schema << " " << text;
  for (const char* text : c.invalid)
    EXPECT_FALSE(accepts(*grammar, text)) << c.schema << " " << text;
}

INSTANTIATE_TEST_SUITE_P(
    Keywords, SchemaTest,
    ::testing::Values(
        Case{"true", {"1", "[null]"}, {"nope"}},
        Case{R"({"type":"integer"})", {"0", "-12"}, {"1.5", "\"1\"", "01"}},
        Case{R"({"type":["null","boolean"]})", {"null", "true"}, {"0"}},
        Case{R"({"enum":["a\"b",1,null,[1,2],{"k":true}]})",
             {R"("a\"b")", "1", "null", "[1, 2]", R"({"k": true})"},
             {"2", "[2,1]", "\"a\""}},
        Case{R"({"const":"x"})", {"\"x\""}, {"\"y\"", "1"}},
        // Alternatives that begin alike, one of them a beginning of another.
        Case{
            R"({"anyOf":[{"type":"object","properties":{"kind":{"const":"go"},"n":{"type":"integer"}},
                          "required":["kind"],"additionalProperties":false},
                         {"type":"object","properties":{"kind":{"const":"gone"},"s":{"type":"string"}},
                          "required":["kind","s"],"additionalProperties":false},
                         {"type":"object","properties":{"kind":{"const":"gone"},"n":{"type":"null"}},
                          "required":["kind","n"]},
                         {"type":"object","properties":{"kind":{"type":"boolean"}},
                          "required":["kind"],"additionalProperties":false}]})",
            {R"({"kind":"go"})", R"({"kind":"go","n":1})", R"({"kind":"gone","s":"x"})",
             R"({"kind":"gone","n":null,"more":[]})", R"({ "kind" : true })"},
            {R"({"kind":"gone"})", R"({"kind":"go","s":"x"})", R"({"kind":"gone","n":1})",
             R"({"kind":"gon"})", R"({"kind":"go","more":1})", R"({"kind":1})", "{}"}},
        Case{R"({"type":"string","enum":["a",1]})", {"\"a\""}, {"1"}},
        Case{R"({"enum":[1,5,9],"minimum":4})", {"5", "9"}, {"1"}},
        // Exponents, where they cannot lead out of the bounds.
        Case{
            R"({"type":"number","minimum":0})", {"1e-06", "2.5E+3", "0", "7e10"}, {"-1e-06", "-1"}},
        Case{R"({"type":"number","exclusiveMinimum":0,"maximum":3})",
             {"1e-06", "3"},
             {"0e-1", "0", "3e1", "3.1e-0"}},
        Case{R"({"type":"number","exclusiveMaximum":0})", {"-1e-06", "-1e5"}, {"1e-06", "-0e-5"}},
        Case{R"({"type":"number","minimum":2})", {"2.5"}, {"1e-06", "2e-1"}},
        Case{R"({"type":"number","minimum":0,"not":{"multipleOf":2}})", {"3"}, {"40e-1", "4"}},
        Case{R"({"type":"integer","minimum":-3,"exclusiveMaximum":12})",
             {"-3", "0", "11"},
             {"-4", "12", "100"}},
        Case{R"({"type":"number","exclusiveMinimum":0.5})", {"0.51", "1", "7.25"}, {"0.5", "-1"}},
        Case{R"({"$schema":"http://json-schema.org/draft-04/schema#","type":"integer","minimum":3,
                 "exclusiveMinimum":true})",
             {"4"},
             {"3"}},
        Case{R"({"type":"string","pattern":"^[ab]{3,70}$","maxLength":6})",
             {"\"aba\"", "\"ababab\""},
             {"\"ab\"", "\"abababa\"", "\"abc\""}},
        Case{R"({"type":"string","pattern":"^xy?[ab]{0,70}$","minLength":2})",
             {"\"xy\"", "\"xa\"", "\"xyabab\""},
             {"\"x\"", "\"ya\"", "\"xyy\""}},
        Case{R"({"type":"string","pattern":"^x[ab]{65,}c$"})",
             {"\"xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac\""},
             {"\"xac\"", "\"xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac\""}},
        Case{R"({"type":"integer","multipleOf":7})", {"0", "-14", "21"}, {"8"}},
        Case{R"({"type":"number","multipleOf":0.25})", {"0.5", "1.75", "3", "-2.250"}, {"0.3"}},
        Case{R"({"type":"string","minLength":2,"maxLength":3})",
             {R"("ab")", R"("\u00e9\n")", "\"\xF0\x9F\x98\x80z\"", R"("\ud83d\ude00z")"},
             {R"("a")", R"("abcd")"}},
        Case{R"({"type":"string","pattern":"^a+$"})", {R"("aa")"}, {R"("")", R"("ab")"}},
        Case{R"({"type":"string","pattern":"b","maxLength":2})",
             {R"("ab")"},
             {R"("abc")", R"("a")"}},
        Case{R"({"type":"string","format":"date"})", {R"("2026-02-28")"}, {R"("2026-13-01")"}},
        Case{R"({"format":"date"})", {"12", R"("2026-02-28")"}, {R"("today")"}},
        Case{R"({"type":"string","format":"ipv4"})", {R"("10.0.255.1")"}, {R"("256.0.0.1")"}},
        Case{R"({"type":"string","format":"made-up"})", {R"("anything")"}, {"1"}},
        Case{R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":2})",
             {"[1]", "[ 1 , 2 ]"},
             {"[]", "[1,2,3]", "[\"a\"]"}},
        Case{R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"items":false})",
             {"[]", "[1]", "[1,2]"},
             {"[2]", "[1,2,3]"}},
        Case{R"({"type":"array","items":[{"const":1}],"additionalItems":{"const":9}})",
             {"[1,9,9]"},
             {"[1,2]"}},
        Case{R"({"type":"array","contains":{"const":5}})", {"[5]", "[1,5,2]"}, {"[]", "[1]"}},
        Case{R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"}},
                 "required":["b"],"additionalProperties":false})",
             {R"({"a":1,"b":true})", R"({ "b" : false })"},
             {R"({"a":1})", R"({"a":1,"b":true,"c":1})", "{}", R"({"b":1})"}},
        Case{R"({"type":"object","properties":{"a":{"type":"integer"}}})",
             {"{}", R"({"a":1,"z":[1]})", R"({"ab":"x"})"},
             {R"({"a":"1"})", R"({"z":1,"a":"x"})"}},
        Case{R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,
                 "maxProperties":2})",
             {R"({"x":1})", R"({"x":1,"y":2})"},
             {"{}", R"({"x":1,"y":2,"z":3})", R"({"x":"1"})"}},
        Case{R"({"type":"object","patternProperties":{"^n_":{"type":"integer"}},
                 "additionalProperties":{"type":"string"}})",
             {R"({"n_a":1,"b":"x"})"},
             {R"({"n_a":"x"})", R"({"b":1})"}},
        Case{R"({"type":"object","propertyNames":{"maxLength":2}})",
             {R"({"ab":1})"},
             {R"({"abc":1})"}},
        Case{R"({"type":"object","required":["later"],"properties":{"first":{"type":"null"}}})",
             {R"({"first":null,"later":3})", R"({"later":[]})"},
             {R"({"first":null})"}},
        Case{R"({"allOf":[{"type":"integer"},{"minimum":3},{"maximum":4}]})",
             {"3", "4"},
             {"2", "5"}},
        Case{R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})",
             {"7", R"("x")"},
             {R"("xy")", "null"}},
        Case{R"({"oneOf":[{"type":"integer","minimum":2},{"type":"integer","maximum":5}]})",
             {"1", "6"},
             {"2", "4", "5"}},
        Case{R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"v":{"type":"integer"}},
                 "required":["k","v"]},{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]}]})",
             {R"({"k":"a","v":1})", R"({"k":"b","v":"x"})"},
             {R"({"k":"a"})", R"({"k":"c"})"}},
        Case{R"({"not":{"type":"integer"},"type":["number","string"]})",
             {"1.5", "-0.250", R"("x")"},
             {"1", "2.0"}},
        Case{R"({"not":{"type":"string"}})", {"1", "[]"}, {R"("x")"}},
        Case{R"({"type":"string","not":{"enum":["a","b"]}})", {R"("c")", R"("ab")"}, {R"("a")"}},
        Case{R"({"type":"integer","not":{"const":7}})", {"6", "77"}, {"7"}},
        Case{R"({"type":"object","properties":{"t":{"enum":["x","y"]},"n":{}},"required":["t"],
                 "if":{"properties":{"t":{"const":"x"}}},"then":{"required":["n"]}})",
             {R"({"t":"x","n":1})", R"({"t":"y"})"},
             {R"({"t":"x"})"}},
        Case{R"({"type":"object","properties":{"a":{},"b":{}},"dependentRequired":{"a":["b"]}})",
             {R"({"a":1,"b":2})", R"({"b":2})", "{}"},
             {R"({"a":1})"}},
        Case{R"({"$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer"},
                 "next":{"$ref":"#/$defs/tree"}},"required":["v"],"additionalProperties":false}},
                 "$ref":"#/$defs/tree"})",
             {R"({"v":1})", R"({"v":1,"next":{"v":2,"next":{"v":3}}})"},
             {R"({"v":1,"next":{}})", R"({"next":{"v":1}})"}},
        // What is judged at the end of the value.
        Case{R"({"type":"array","uniqueItems":true})",
             {"[]", "[1,2]", R"([{"a":1,"b":2},{"a":1}])"},
             {"[1,1]", "[1,1.0]", R"([{"a":1,"b":2},{"b":2,"a":1}])"}},
        Case{R"({"type":"array","contains":{"type":"integer"},"minContains":2,"maxContains":3})",
             {"[1,2]", R"([1,"a",2,3])"},
             {"[1]", "[1,2,3,4]", "[]"}},
        Case{R"({"type":"object","allOf":[{"properties":{"a":{}}}],"properties":{"b":{}},
                 "unevaluatedProperties":false})",
             {R"({"b":2,"a":1})", R"({"b":2})", "{}"},
             {R"({"c":1})", R"({"a":1,"c":1})"}},
        Case{R"({"prefixItems":[{}],"anyOf":[{"prefixItems":[{},{"const":1}]},true],
                 "unevaluatedItems":false})",
             {"[5]", "[5,1]"},
             {"[5,2]", "[5,1,1]"}},
        Case{R"({"oneOf":[{"type":"object","properties":{"a":{"type":"string","pattern":"^x"}},
                 "patternProperties":{"^b":{"type":"integer"}}},
                 {"type":"object","propertyNames":{"maxLength":2},"required":["a"]}]})",
             {R"({"a":"y"})", R"({"abc":1})"},
             {R"({"a":"x"})", R"({"abc":1,"b":"q"})"}},
        // What counters bound.
        Case{R"({"type":"string","pattern":"^a+b*$","minLength":3,"maxLength":4})",
             {R"("aab")", R"("aaaa")"},
             {R"("ab")", R"("aaaab")", R"("b")"}},
        Case{R"({"type":"array","items":{"const":0},"minItems":6,"maxItems":7})",
             {"[0,0,0,0,0,0]", "[0, 0,0,0,0,0,0]"},
             {"[0,0,0,0,0]", "[0,0,0,0,0,0,0,0]"}},
        // Where references lead.
        Case{
            R"({"$id":"http://x.org/a/","$defs":{"n":{"$id":"n.json","$anchor":"i","type":"integer"},
                 "s":{"$id":"http://x.org/s","$anchor":"i","type":"string"}},
                 "properties":{"i":{"$ref":"n.json#i"},"s":{"$ref":"/s"}}})",
            {R"({"i":1,"s":"x"})"},
            {R"({"i":"x"})", R"({"s":1})"}},
        Case{R"({"$id":"http://x.org/strict","$dynamicAnchor":"node","$ref":"tree",
                 "unevaluatedProperties":false,"$defs":{"t":{"$id":"tree","$dynamicAnchor":"node",
                 "type":"object","properties":{"kids":{"type":"array",
                 "items":{"$dynamicRef":"#node"}}}}}})",
             {R"({"kids":[{"kids":[]}]})"},
             {R"({"kids":[{"kidz":[]}]})", R"({"x":1})"}},
        Case{R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]"}},
        Case{R"({"properties":{"a b/c~":{"$ref":"#/properties/x~1y"},"x/y":{"type":"null"}}})",
             {R"({"a b/c~":null})"},
             {R"({"a b/c~":1})"}}));

TEST(Schema, RefusesByPointerAndKeyword) {
  for (const auto& [schema, message] : std::initializer_list<std::pair<const char*, const char*>>{
           {R"({"properties":{"a":{"type":"array","uniqueItems":3}}})",
            "#/properties/a/uniqueItems"},
           {R"({"pattern":"^(a)\\1$"})", "back-references are not supported"},
           {R"({"$ref":"other.json"})", "leads out of this schema"},
           {R"({"$ref":"#/nowhere"})", "leads nowhere"},
           {R"({"type":"text"})", "#/type"},
           {R"({"minLength":-1})", "#/minLength"},
           {R"({"pattern":"(a"})", "does not end"},
           {R"({"anyOf":[]})", "#/anyOf"},
           {"[1]", "a schema is an object"},
           {"{", "not valid JSON"},
           {R"({"const":1,"type":"string"})", "matches nothing"}}) {
    const auto result = compiled(schema);
    ASSERT_FALSE(result) << schema;
    EXPECT_NE(result.error().message().find(message), std::string::npos)
        << schema << ": " << result.error().message();
  }
}

TEST(Schema, AKeyThatComesTwiceCountsOnce) {
  const auto grammar = compile_grammar(
      {.kind = GrammarSpec::Kind::kJsonSchema,
       .source = R"({"type":"object","properties":{"p":{"type":"null"}},"minProperties":3,
                     "additionalProperties":{"type":"integer"}})",
       .choices = {},
       .whitespace = Whitespace::kCompact},
      byte_trie());
  ASSERT_TRUE(grammar) << grammar.error().to_string();
  const auto whole = [&](std::string_view text) {
    Matcher matcher(*grammar);
    return matcher.accept_bytes(text) && matcher.can_end();
  };
  EXPECT_TRUE(whole(R"({"a":1,"b":2,"c":3})"));
  EXPECT_TRUE(whole(R"({"p":null,"b":2,"c":3})"));
  EXPECT_TRUE(whole(R"({"a":1,"a":2,"b":1,"c":1})"));
  EXPECT_FALSE(whole(R"({"a":1,"b":2,"a":3})"));
  EXPECT_FALSE(whole(R"({"p":null,"b":2})"));
}

TEST(Schema, AnyOrderTakesEachOrder) {
  const auto grammar =
      compile_grammar({.kind = GrammarSpec::Kind::kJsonSchema,
                       .source = R"({"type":"object","properties":{"a":{"type":"integer"},
                                     "b":{"type":"boolean"}},"required":["a","b"],
                                     "additionalProperties":false})",
                       .choices = {},
                       .json = {.any_order = true}},
                      byte_trie())
          .value();
  EXPECT_TRUE(accepts(grammar, R"({"a":1,"b":true})"));
  EXPECT_TRUE(accepts(grammar, R"({"b":true,"a":1})"));
  EXPECT_FALSE(accepts(grammar, R"({"b":true})"));
  EXPECT_FALSE(accepts(grammar, R"({"b":true,"a":1,"c":2})"));
}

TEST(Schema, ReferencesLeadToSuppliedDocuments) {
  const SchemaOptions options{
      .documents = {{"http://x.org/other.json", R"({"$defs":{"n":{"type":"integer"}}})"}}};
  const auto grammar = compile_grammar({.kind = GrammarSpec::Kind::kJsonSchema,
                                        .source = R"({"$ref":"http://x.org/other.json#/$defs/n"})",
                                        .choices = {},
                                        .json = options},
                                       byte_trie())
                           .value();
  EXPECT_TRUE(accepts(grammar, "12"));
  EXPECT_FALSE(accepts(grammar, "\"x\""));
}

// A check looks at the text, so masks and rollback must follow it.
TEST(Schema, ChecksFollowTheTextThroughMasksAndRollback) {
  const auto grammar =
      compiled(R"({"type":"array","items":{"type":"integer"},"uniqueItems":true})").value();
  Matcher matcher(grammar);
  std::vector<uint32_t> words(static_cast<size_t>(matcher.words_per_mask()));
  const auto allowed = [&](char c) {
    matcher.fill_mask(words);
    const auto t = static_cast<uint8_t>(c);
    return (words[t / 32] >> (t % 32) & 1) == 1;
  };
  ASSERT_TRUE(matcher.accept_bytes("[1,"));
  ASSERT_TRUE(matcher.accept_bytes("1"));
  EXPECT_FALSE(allowed(']'));
  EXPECT_TRUE(allowed(','));
  matcher.rollback(1);
  ASSERT_TRUE(matcher.accept_bytes("2"));
  EXPECT_TRUE(allowed(']'));
  EXPECT_TRUE(matcher.accept_bytes("]"));
  EXPECT_TRUE(matcher.can_end());
}

TEST(Schema, WhitespacePolicies) {
  const char* schema = R"({"type":"object","properties":{"a":{"type":"array"}},"required":["a"]})";
  const auto compact = compiled(schema, Whitespace::kCompact).value();
  const auto bounded = compiled(schema, Whitespace::kBounded).value();
  const auto any = compiled(schema, Whitespace::kAny).value();
  EXPECT_TRUE(accepts(compact, R"({"a":[1,2]})"));
  EXPECT_FALSE(accepts(compact, R"({"a": [1,2]})"));
  EXPECT_TRUE(accepts(bounded, "{\n  \"a\": [1, 2]\n}"));
  EXPECT_FALSE(accepts(bounded, "{\"a\":   [1, 2]}"));
  EXPECT_TRUE(accepts(any, "{ \t\"a\"  :   [1 , 2]\r\n}"));
}

TEST(Schema, KeysAndLiteralsAreForced) {
  const auto grammar =
      compiled(R"({"type":"object","properties":{"answer":{"const":"yes"}},"required":["answer"],
                   "additionalProperties":false})",
               Whitespace::kCompact)
          .value();
  EXPECT_EQ(Matcher(grammar).forced_bytes(100), R"({"answer":"yes"})");
}

// Numbers in bounds against arithmetic on scaled integers.
TEST(JsonNumber, BoundsAgreeWithArithmetic) {
  const uint64_t seed = 99;
  Rng rng(seed);
  const auto decimal = [](int64_t thousandths) {
    return fmt::format("{}{}.{:03}", thousandths < 0 ? "-" : "", std::abs(thousandths) / 1000,
                       std::abs(thousandths) % 1000);
  };
  for (int round = 0; round < 60; ++round) {
    const int64_t spread = round % 2 ? 3'000 : 200'000;
    const int64_t a = rng.between(-spread, spread), b = a + rng.between(0, spread);
    const bool integers = rng.below(2), low_open = rng.below(2), high_open = rng.below(2);
    NumberBounds bounds;
    bounds.at_least(*Decimal::parse(decimal(a)), low_open);
    bounds.at_most(*Decimal::parse(decimal(b)), high_open);
    Ir ir;
    const RuleId root = ir.rules().add("root");
    ir.rules().set_body(root, bounded_number(ir, bounds, integers, {}).value());
    const auto network = build_network(ir, root, {});
    std::optional<EarleyRecogniser> earley;
    if (network) earley.emplace(*network, GrammarLimits{});
    const auto in = [&](const std::string& text) {
      if (!earley) return false;
      SetId set = earley->start();
      for (char c : text) set = earley->step(set, static_cast<uint8_t>(c));
      return earley->accepting(set);
    };
    for (int i = 0; i < 200; ++i) {
      int64_t x = i % 4 == 0 ? a : i % 4 == 1 ? b : rng.between(a - 2000, b + 2000);
      if (integers) x = x / 1000 * 1000;
      const bool expected = (low_open ? x > a : x >= a) && (high_open ? x < b : x <= b);
      const std::string text = integers || x % 1000 == 0 ? std::to_string(x / 1000) : decimal(x);
      if (text == "0" && x < 0) continue;
      EXPECT_EQ(in(text), expected)
          << "seed " << seed << ": " << text << " in " << decimal(a)
          << (low_open ? " (open) " : " ") << decimal(b) << (high_open ? " (open)" : "");
    }
    if (HasFailure()) return;
  }
}

TEST(Schema, FuzzedSchemasNeverCrash) {
  const std::vector<std::string> seeds = {
      R"({"type":"object","properties":{"a":{"type":"string","pattern":"^a"},"b":{"$ref":"#"}}})",
      R"({"oneOf":[{"type":"integer","multipleOf":3},{"enum":[1,"x"]}],"not":{"const":4}})",
      R"({"type":"array","items":{"anyOf":[{"type":"null"},{"$ref":"#/items"}]},"minItems":2})",
      R"({"if":{"required":["a"]},"then":{"minProperties":2},"patternProperties":{"a":{}}})"};
  const std::string_view alphabet = "{}[]\",:0123456789.-aebtrunull#/$";
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    Rng rng(seed);
    std::string text = seeds[rng.below(seeds.size())];
    for (int64_t n = rng.between(1, 4); n > 0; --n) {
      const size_t at = rng.below(text.size());
      switch (rng.below(3)) {
        case 0:
          text[at] = alphabet[rng.below(alphabet.size())];
          break;
        case 1:
          text.erase(at, 1 + rng.below(3));
          break;
        default:
          text.insert(at, 1, alphabet[rng.below(alphabet.size())]);
          break;
      }
      if (text.empty()) text = "{}";
    }
    (void)compiled(text);
  }
}

}  // namespace
}  // namespace espalier::grammar
