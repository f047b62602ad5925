// Random satisfiable schemas of uniqueItems, contains, propertyNames and counts: random walks along
// their masks end in valid instances. The comparison of unique items that are too many to list
// refuses some ends late, so a few walks in a thousand may end where nothing can follow.
//   ESPALIER_RANDOM_SCHEMAS   number of schemas (300; tools/long_tests: 10000)
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/rng.h"
#include "grammar/conformance.h"
#include "grammar/schema/json_text.h"
#include "grammar/schema/validator.h"

namespace espalier::grammar {
namespace {

namespace json = boost::json;

// Draws an instance and a schema that it satisfies.
class RandomSchema {
 public:
  explicit RandomSchema(uint64_t seed) : rng_(seed) {}

  struct Pair {
    json::value instance;
    json::object schema;
  };
  Pair draw(int depth) {
    switch (rng_.below(depth > 0 ? 6 : 3)) {
      case 0:
      case 1:
      case 2:
        return scalar();
      case 3:
        return object(depth);
      default:
        return array(depth);
    }
  }

 private:
  size_t up_to(size_t most) { return static_cast<size_t>(rng_.below(most + 1)); }
  bool one_in(uint64_t count) { return rng_.below(count) == 0; }

  json::value leaf() {
    switch (rng_.below(4)) {
      case 0:
        return static_cast<int64_t>(rng_.below(6));
      case 1:
        return rng_.below(2) == 0;
      case 2:
        return nullptr;
      default:
        return json::value(std::string(1 + up_to(2), static_cast<char>('a' + rng_.below(4))));
    }
  }

  Pair scalar() {
    json::value instance = leaf();
    json::object schema;
    if (one_in(2)) {
      json::array values = {instance};
      for (size_t i = up_to(4); i > 0; --i) values.push_back(leaf());
      schema["enum"] = distinct(std::move(values));
    } else if (instance.is_string()) {
      schema["type"] = "string";
      schema["maxLength"] = instance.get_string().size() + up_to(2);
    } else if (instance.is_int64()) {
      schema["type"] = "integer";
      schema["minimum"] = instance.get_int64() - static_cast<int64_t>(up_to(3));
      schema["maximum"] = instance.get_int64() + static_cast<int64_t>(up_to(9));
    } else {
      schema["type"] = instance.is_bool() ? "boolean" : "null";
    }
    return {instance, schema};
  }

  static json::array distinct(json::array values) {
    json::array kept;
    for (json::value& value : values) {
      if (std::ranges::find(kept, value) == kept.end()) kept.push_back(std::move(value));
    }
    return kept;
  }

  Pair array(int depth) {
    Pair item = draw(depth - 1);
    json::array instance;
    json::object schema = {{"type", "array"}};
    if (one_in(3)) {
      instance.push_back(item.instance);
      schema["items"] = item.schema;
    } else {
      json::array pool;
      for (size_t i = 1 + up_to(5); i > 0; --i) pool.push_back(leaf());
      pool = distinct(std::move(pool));
      for (size_t i = up_to(5); i > 0; --i) instance.push_back(pool[up_to(pool.size() - 1)]);
      schema["items"] = {{"enum", pool}};
    }
    if (one_in(2)) {
      instance = distinct(std::move(instance));
      schema["uniqueItems"] = true;
    }
    if (!instance.empty() && one_in(2)) add_contains(instance, schema);
    if (one_in(2))
      schema["minItems"] = instance.size() - up_to(std::min<size_t>(instance.size(), 2));
    if (one_in(2)) schema["maxItems"] = instance.size() + up_to(3);
    return {instance, schema};
  }

  void add_contains(const json::array& instance, json::object& schema) {
    json::array wanted = {instance[up_to(instance.size() - 1)]};
    if (one_in(2)) wanted.push_back(leaf());
    wanted = distinct(std::move(wanted));
    const auto count =
        static_cast<size_t>(std::ranges::count_if(instance, [&](const json::value& v) {
          return std::ranges::find(wanted, v) != wanted.end();
        }));
    schema["contains"] = {{"enum", wanted}};
    if (one_in(2)) schema["minContains"] = count - up_to(count);
    if (one_in(2)) schema["maxContains"] = count + up_to(2);
  }

  Pair object(int depth) {
    const std::vector<std::string> names = {"a", "b", "cd", "ef", "ghi"};
    json::object instance, properties;
    json::array required, allowed;
    for (const std::string& name : names) {
      if (one_in(2)) continue;
      Pair member = draw(depth - 1);
      allowed.emplace_back(name);
      if (one_in(2)) {
        properties[name] = member.schema;
        instance[name] = member.instance;
        if (one_in(3)) required.emplace_back(name);
      } else {
        instance[name] = nullptr;
      }
    }
    json::object schema = {{"type", "object"},
                           {"properties", properties},
                           {"additionalProperties", {{"type", "null"}}}};
    if (!required.empty()) schema["required"] = required;
    if (one_in(2)) {
      if (one_in(2)) allowed.emplace_back("x");
      schema["propertyNames"] =
          one_in(3) ? json::object{{"maxLength", 3}} : json::object{{"enum", allowed}};
    }
    if (one_in(2))
      schema["minProperties"] = instance.size() - up_to(std::min<size_t>(instance.size(), 2));
    if (one_in(2)) schema["maxProperties"] = instance.size() + up_to(2);
    return {instance, schema};
  }

  Rng rng_;
};

struct Outcomes {
  int64_t valid = 0, invalid = 0, stuck = 0, endless = 0, refused = 0;
};

// Follows random allowed bytes; a text that may end does so one time in four.
void walk(const std::shared_ptr<CompiledGrammar>& grammar, const std::string& schema, Rng& rng,
          Outcomes& outcomes) {
  constexpr int kStepsMax = 4000;
  const auto document = SchemaDocument::parse(schema, {}).value();
  SchemaValidator validator(*document);
  Matcher matcher(grammar);
  std::vector<uint32_t> words(static_cast<size_t>(matcher.words_per_mask()));
  std::string text;
  for (int step = 0; step < kStepsMax; ++step) {
    matcher.fill_mask(words);
    std::vector<char> allowed;
    for (size_t b = 0; b < 256; ++b) {
      if (words[b / 32] >> (b % 32) & 1) allowed.push_back(static_cast<char>(b));
    }
    if (matcher.can_end() && (allowed.empty() || rng.below(4) == 0)) {
      const auto value = parse_exact_json_text(text, "the instance");
      const bool valid = value && validator.valid(*value, &document->root(), kNoScope).value();
      ++(valid ? outcomes.valid : outcomes.invalid);
      EXPECT_TRUE(valid) << schema << "\n" << text;
      return;
    }
    if (allowed.empty()) {
      ++outcomes.stuck;
      fmt::print(stderr, "a dead end: {}\n{}\n", schema, text);
      return;
    }
    text.push_back(allowed[rng.below(allowed.size())]);
    ASSERT_TRUE(matcher.accept_bytes(std::string_view(text).substr(text.size() - 1)));
  }
  ++outcomes.endless;
}

TEST(RandomSchema, WalksEndInValidInstances) {
  const char* const wanted = std::getenv("ESPALIER_RANDOM_SCHEMAS");
  const int count = wanted == nullptr ? 300 : std::atoi(wanted);
  Outcomes outcomes;
  for (int i = 0; i < count; ++i) {
    const uint64_t seed = 1000 + static_cast<uint64_t>(i);
    SCOPED_TRACE(seed);
    const RandomSchema::Pair drawn = RandomSchema(seed).draw(3);
    const std::string schema = json::serialize(drawn.schema);
    const auto grammar = compile_grammar(
        {.kind = GrammarSpec::Kind::kJsonSchema, .source = schema, .choices = {}}, byte_trie());
    if (!grammar) {
      ++outcomes.refused;
      EXPECT_NE(grammar.error().code(), StatusCode::kInvalidArgument) << schema << "\n"
                                                                      << grammar.error().message();
      continue;
    }
    Rng rng(seed);
    for (int walks = 0; walks < 3; ++walks) walk(*grammar, schema, rng, outcomes);
  }
  fmt::print(
      "{} schemas: {} refused; {} walks ended in valid instances, {} in others, {} in dead "
      "ends, {} went on\n",
      count, outcomes.refused, outcomes.valid, outcomes.invalid, outcomes.stuck, outcomes.endless);
  EXPECT_LE(outcomes.refused * 100, count);
  EXPECT_LE(outcomes.endless * 100, 3 * count);
  EXPECT_LE(outcomes.stuck * 400, 3 * count);  // 42 of 30,000 walks on 2026-11-23
}

}  // namespace
}  // namespace espalier::grammar
