// A mask never leads to a state from which no end can be reached: random walks along masks end, and
// end in valid instances. And what is exact at the edges: decimals, formats, EBNF spacing.
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

#include "base/rng.h"
#include "grammar/conformance.h"
#include "grammar/schema/json_text.h"
#include "grammar/schema/validator.h"

namespace espalier::grammar {
namespace {

std::shared_ptr<CompiledGrammar> compiled(const std::string& schema) {
  auto made = compile_grammar({.kind = GrammarSpec::Kind::kJsonSchema,
                               .source = schema,
                               .choices = {},
                               .whitespace = Whitespace::kBounded},
                              byte_trie());
  EXPECT_TRUE(made) << schema << ": " << made.error().to_string();
  return made ? *made : nullptr;
}

bool accepts(const std::string& schema, std::string_view text) {
  const auto grammar = compiled(schema);
  if (grammar == nullptr) return false;
  Matcher matcher(grammar);
  return matcher.accept_bytes(text) && matcher.can_end();
}

bool is_valid(const std::string& schema, const std::string& text) {
  const auto document = SchemaDocument::parse(schema, {}).value();
  SchemaValidator validator(*document);
  const auto value = parse_exact_json_text(text, "the instance");
  return value && validator.valid(*value, &document->root(), kNoScope).value();
}

// Follows random allowed bytes for at most `steps_max`; returns the text, or "stuck: ..." or
// "endless: ...".
std::string walk(const std::shared_ptr<CompiledGrammar>& grammar, Rng& rng, int steps_max) {
  Matcher matcher(grammar);
  std::vector<uint32_t> words(static_cast<size_t>(matcher.words_per_mask()));
  std::string text;
  for (int step = 0; step < steps_max; ++step) {
    matcher.fill_mask(words);
    std::vector<uint8_t> allowed;
    for (int b = 0; b < 256; ++b) {
      if (words[static_cast<size_t>(b) / 32] >> (b % 32) & 1)
        allowed.push_back(static_cast<uint8_t>(b));
    }
    if (matcher.can_end() && (allowed.empty() || rng.below(8) == 0)) return text;
    if (allowed.empty()) return "stuck: " + text;
    const uint8_t byte = allowed[rng.below(allowed.size())];
    EXPECT_TRUE(matcher.accept_bytes(std::string_view(reinterpret_cast<const char*>(&byte), 1)));
    text.push_back(static_cast<char>(byte));
  }
  return "endless: " + text;
}

TEST(DeadEnd, RandomWalksEndInValidInstances) {
  const char* const kSchemas[] = {
      R"({"items":{"enum":["ccc",true,false]},"type":"array","uniqueItems":true,"contains":{"enum":[false,"bb"]},"minItems":3,"maxItems":5})",
      R"({"type":"array","items":{"type":"string","maxLength":1,"pattern":"^[ab]*$"},"uniqueItems":true,"maxItems":3})",
      R"({"type":"array","items":{"enum":[0,1,2,3]},"contains":{"enum":[0,1]},"allOf":[{"contains":{"enum":[1,2]},"minContains":2}],"maxItems":3})",
      R"({"type":"array","items":{"type":"array","items":{"enum":[true,3]},"maxItems":2},"uniqueItems":true,"contains":{"enum":[[true]]},"maxContains":3,"maxItems":4})",
      R"({"type":"array","prefixItems":[{"enum":[1,2]}],"items":{"enum":[2,3]},"uniqueItems":true,"minItems":3,"maxItems":3})",
      R"({"type":"array","items":{"enum":["red","green","blue","grey"]},"uniqueItems":true,"minItems":4,"maxItems":4})",
      R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":3})",
      R"({"type":"array","items":{"type":"boolean"},"uniqueItems":true,"minItems":1})",
      R"({"type":"array","items":{"type":"integer","minimum":0,"maximum":4},"uniqueItems":true,"minItems":2})",
      R"({"type":"array","items":{"enum":[1,1.0,"x",null,{"k":[1]}]},"uniqueItems":true,"minItems":4})",
      R"({"type":"array","contains":{"enum":["p","q"]},"unevaluatedItems":false,"minItems":3,"maxItems":3})",
      R"({"type":"array","contains":{"const":1},"unevaluatedItems":{"const":2},"minItems":2,"maxItems":4})",
      R"({"type":"array","items":{"enum":[1,2,3]},"contains":{"const":1},"minContains":2,"maxContains":2,"maxItems":5})",
      R"({"type":"array","items":{"enum":[1,2]},"contains":{"const":1},"minContains":0,"maxContains":1,"maxItems":4})",
      R"({"type":"object","propertyNames":{"enum":["a","b","c"]},"minProperties":3,"additionalProperties":{"type":"null"}})",
      R"({"type":"object","propertyNames":{"enum":["a","b","c"]},"minProperties":2,"maxProperties":2,"additionalProperties":{"type":"boolean"}})",
  };
  for (const std::string schema : kSchemas) {
    const auto grammar = compiled(schema);
    ASSERT_NE(grammar, nullptr);
    Rng rng(7);
    for (int i = 0; i < 60; ++i) {
      const std::string text = walk(grammar, rng, 4000);
      EXPECT_TRUE(is_valid(schema, text)) << schema << "\n" << text;
    }
  }
}

TEST(DeadEnd, ArraysCloseWhenNoNewValueIsLeft) {
  const std::string schema =
      R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":3})";
  Matcher matcher(compiled(schema));
  ASSERT_TRUE(matcher.accept_bytes(R"(["c","a","b")"));
  EXPECT_FALSE(matcher.accept_bytes(","));
  EXPECT_TRUE(matcher.accept_bytes("]"));
  EXPECT_FALSE(accepts(schema, R"(["a","a","b"])"));
  // Larger finite sets bound the number of items.
  std::string values;
  for (int i = 0; i < 12; ++i) values += (i > 0 ? "," : "") + std::to_string(i);
  const std::string twelve =
      R"({"type":"array","items":{"enum":[)" + values + R"(]},"uniqueItems":true})";
  EXPECT_TRUE(accepts(twelve, "[" + values + "]"));
  Matcher full(compiled(twelve));
  ASSERT_TRUE(full.accept_bytes("[" + values));
  EXPECT_FALSE(full.accept_bytes(",1"));
}

// An item that is spelled as only unlisted items were spelled counts for `contains` by its value.
TEST(DeadEnd, ListedStructuresAreSpelledAsTheOthers) {
  struct Case {
    const char *schema, *text;
  };
  const Case cases[] = {
      {R"({"type":"array","items":{"type":"array","items":{"enum":[true,"bb",4,2]},"uniqueItems":true,
           "minItems":3},"uniqueItems":true,"contains":{"enum":[["bb",2,true],false]},"minItems":1})",
       R"([["bb" ,2 , true]])"},
      {R"({"type":"array","items":{"type":"array","items":{"type":"string","maxLength":3}},
           "contains":{"const":["bb","c"]},"maxContains":1})",
       R"([["a" , "c"], ["bb" ,"c"]])"},
      {R"({"type":"array","items":{"type":"object","additionalProperties":{"type":"string"}},
           "contains":{"const":{"a":"b","c":"d"}},"uniqueItems":true})",
       R"([{"a": "b" ,"c": "d"}])"},
  };
  for (const Case& one : cases) EXPECT_TRUE(accepts(one.schema, one.text)) << one.text;
}

TEST(DeadEnd, UnsatisfiableCountsAreRefused) {
  const auto made = compile_grammar(
      {.kind = GrammarSpec::Kind::kJsonSchema,
       .source = R"({"type":"array","items":{"enum":[1,2]},"uniqueItems":true,"minItems":3})",
       .choices = {}},
      byte_trie());
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), StatusCode::kInvalidArgument);
}

struct Case {
  const char* schema;
  const char* text;
  bool accept;
};

TEST(DeadEnd, DecimalsAreExact) {
  const Case cases[] = {
      {R"({"const":12345678901234567890123})", "12345678901234567890123", true},
      {R"({"const":12345678901234567890123})", "1.2345678901234568e+22", false},
      {R"({"const":[{"a":12345678901234567890123}]})", R"([{"a":12345678901234567890123}])", true},
      {R"({"enum":[0.1234567890123456789]})", "0.1234567890123456789", true},
      {R"({"type":"integer","minimum":123456789012345678901234567890})",
       "123456789012345678901234567890", true},
      {R"({"type":"integer","minimum":123456789012345678901234567890})",
       "123456789012345678901234567889", false},
      {R"({"type":"integer","maximum":123456789012345678901234567890})",
       "123456789012345678901234567891", false},
      {R"({"type":"number","maximum":4503599627370496.5})", "4503599627370496.6", false},
      {R"({"type":"number","maximum":4503599627370496.5})", "4503599627370496.5", true},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(accepts(c.schema, c.text), c.accept) << c.schema << " " << c.text;
    EXPECT_EQ(is_valid(c.schema, c.text), c.accept) << c.schema << " " << c.text;
  }
  EXPECT_TRUE(is_valid(R"({"not":{"const":12345678901234567890123}})", "12345678901234567890124"));
  EXPECT_TRUE(is_valid(R"({"multipleOf":3})", "123456789012345678901234566"));
  EXPECT_FALSE(is_valid(R"({"type":"object"})", "12345678901234567890123"));
}

TEST(DeadEnd, FormatsFollowTheirStandards) {
  const Case cases[] = {
      {"date", "2021-02-29", false},
      {"date", "2020-02-29", true},
      {"date", "2100-02-29", false},
      {"date", "2000-02-29", true},
      {"date-time", "2021-02-29T00:00:00Z", false},
      {"time", "23:59:60+01:00", false},
      {"time", "15:59:60-08:00", true},
      {"time", "23:59:60Z", true},
      {"time", "01:29:60+01:30", true},
      {"time", "00:29:60-23:30", true},
      {"time", "22:59:60Z", false},
      {"time", "23:29:60+23:30", true},
      {"time", "23:59:60+00:30", false},
      {"date-time", "1998-12-31T15:59:60.123-08:00", true},
      {"date-time", "1998-12-31T22:59:60Z", false},
      {"email", "joe.bloggs@[127.0.0.300]", false},
      {"email", "joe.bloggs@[127.0.0.1]", true},
      {"email", "joe.bloggs@[IPv6:::1]", true},
      {"uri", "http://[:::]/", false},
      {"uri", "http://[::ffff:01.2.3.4]", false},
      {"uri", "http://[::ffff:1.2.3.4]/x", true},
      {"uri", "http://[v1.test]/", true},
      {"regex", "a**", false},
      {"regex", "a*", true},
  };
  for (const Case& c : cases) {
    const std::string schema = std::string(R"({"type":"string","format":")") + c.schema + "\"}";
    const std::string text = std::string("\"") + c.text + "\"";
    EXPECT_EQ(accepts(schema, text), c.accept) << schema << " " << text;
    EXPECT_EQ(is_valid(schema, text), c.accept) << schema << " " << text;
  }
  const std::string label(63, 'a');
  const std::string host = R"({"type":"string","format":"hostname"})";
  const std::string name = label + "." + label + "." + label + ".";
  EXPECT_FALSE(accepts(host, "\"" + name + label + ".com\""));
  EXPECT_TRUE(accepts(host, "\"" + name + label.substr(2) + "\""));
  EXPECT_FALSE(accepts(host, "\"" + name + label.substr(1) + "\""));
}

}  // namespace
}  // namespace espalier::grammar
