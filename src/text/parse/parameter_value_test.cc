// Arguments that are written as plain text: which types a schema allows, and the JSON they become.
#include "text/parse/parameter_value.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/rng.h"

namespace espalier {
namespace {

namespace json = boost::json;

ParameterTypes types_of(std::string_view parameters, std::string_view name) {
  const json::value tools = {
      {{"function", {{"name", "f"}, {"parameters", json::parse(parameters)}}}}};
  return parameter_types(&tools, "f", name);
}

std::string as_json(std::string_view text, ParameterTypes types) {
  std::string out;
  ParameterValue value;
  value.begin(types, out);
  for (const char c : text) value.take(c, out);
  value.end(out);
  return out;
}

TEST(ParameterTypes, CollectsAlternativesAndReferences) {
  const ParameterTypes types = types_of(
      R"({"properties": {"a": {"anyOf": [{"$ref": "#/$defs/s"}, {"type": ["null", "integer"]}]}},
          "$defs": {"s": {"enum": ["x", true]}}})",
      "a");
  EXPECT_TRUE(types.known && types.null && types.boolean);
  EXPECT_FALSE(types.string);
  EXPECT_EQ(types.mixed_enum, (std::vector<std::string>{"\"x\"", "true"}));
}

TEST(ParameterTypes, RecursiveSchemasEnd) {
  const ParameterTypes types = types_of(
      R"({"properties": {"a": {"$ref": "#/$defs/r"}},
          "$defs": {"r": {"oneOf": [{"$ref": "#/$defs/r"}, {"type": "string"}]}}})",
      "a");
  EXPECT_TRUE(types.known && types.string);
}

TEST(ParameterTypes, UndeclaredParametersFollowAdditionalProperties) {
  EXPECT_FALSE(types_of(R"({"properties": {}})", "a").known);
  EXPECT_FALSE(types_of(R"({"additionalProperties": true})", "a").known);
  EXPECT_TRUE(types_of(R"({"additionalProperties": {"type": "string"}})", "a").string);
  EXPECT_FALSE(parameter_types(nullptr, "f", "a").known);
}

TEST(ParameterValue, BecomesWhatTheTypesAllow) {
  const ParameterTypes integer{.known = true};
  const ParameterTypes string{.known = true, .string = true};
  const ParameterTypes nullable{.known = true, .string = true, .null = true};
  const ParameterTypes boolean{.known = true, .boolean = true};
  EXPECT_EQ(as_json("\n5\n", integer), "5");
  EXPECT_EQ(as_json("\n5\n", string), "\"5\"");
  EXPECT_EQ(as_json("five", integer), "\"five\"");
  EXPECT_EQ(as_json("null", nullable), "null");
  EXPECT_EQ(as_json("nul", nullable), "\"nul\"");
  EXPECT_EQ(as_json("True", boolean), "true");
  EXPECT_EQ(as_json("5", {}), "\"5\"");
}

// The grammar writes the values of such an enumeration as JSON; a model by itself may leave the
// quotes out.
TEST(ParameterValue, MixedEnumerationsKeepTheTypesOfTheirValues) {
  const ParameterTypes mixed =
      types_of(R"({"properties": {"a": {"enum": ["red", "1", 1.5, null, true]}}})", "a");
  EXPECT_EQ(as_json("1.5", mixed), "1.5");
  EXPECT_EQ(as_json("\"red\"", mixed), "\"red\"");
  EXPECT_EQ(as_json("red", mixed), "\"red\"");
  EXPECT_EQ(as_json("1", mixed), "\"1\"");
  EXPECT_EQ(as_json("\"1\"", mixed), "\"1\"");
  EXPECT_EQ(as_json("null", mixed), "null");
  EXPECT_EQ(as_json("True", mixed), "true");
  EXPECT_EQ(as_json("blue", mixed), "\"blue\"");
}

TEST(ParameterValue, StringsAreWrittenAsTheyCome) {
  std::string out;
  ParameterValue value;
  value.begin({.known = true, .string = true}, out);
  EXPECT_EQ(out, "\"");
  value.take('a', out);
  EXPECT_EQ(out, "\"a");
  value.take('\n', out);
  EXPECT_EQ(out, "\"a");  // the line break may be the one before the end mark
  value.take('"', out);
  EXPECT_EQ(out, "\"a\\n\\\"");
  value.abandon(out);
  EXPECT_EQ(out, "\"a\\n\\\"");
}

// Any text becomes JSON, and a string has the text less one line break at each end.
TEST(ParameterValue, RandomTextsBecomeJson) {
  constexpr uint64_t kSeed = 20261123;
  Rng rng(kSeed);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (uint64_t i = rng.below(12); i > 0; --i) text += "a\"\\\n\t{}[]1,:"[rng.below(13)];
    const ParameterTypes types{.known = rng.below(4) > 0,
                               .string = rng.below(2) > 0,
                               .null = rng.below(2) > 0,
                               .boolean = rng.below(2) > 0};
    json::error_code failed;
    const json::value value = json::parse(as_json(text, types), failed);
    ASSERT_FALSE(failed) << kSeed << ": " << text;
    if (types.known && !types.string) continue;
    std::string_view expected = text;
    if (expected.starts_with('\n')) expected.remove_prefix(1);
    if (expected.ends_with('\n')) expected.remove_suffix(1);
    ASSERT_TRUE(value.is_string()) << kSeed << ": " << text;
    EXPECT_EQ(value.get_string(), expected) << kSeed;
  }
}

}  // namespace
}  // namespace espalier
