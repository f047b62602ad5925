// Objects and arrays whose choices combine, made as states of a formula: every small value is
// accepted exactly when the validator, which shares no lowering code, finds it valid, and random
// texts never come to where no end can be reached.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "base/rng.h"
#include "grammar/conformance.h"
#include "grammar/grammar.h"
#include "grammar/schema/formula.h"
#include "grammar/schema/validator.h"

namespace espalier::grammar {
namespace {

namespace json = boost::json;

// A formula beside its truth table over four atoms.
struct Judged {
  Formulas::Id id = 0;
  uint32_t table = 0;  // bit a: it holds where the atoms are the bits of a
};
constexpr uint32_t kAtoms = 4, kAll = 0xffff;

Judged random_formula(Formulas& formulas, Rng& rng, int depth) {
  if (depth == 0 || rng.below(6) == 0) {
    const auto atom = static_cast<uint32_t>(rng.below(kAtoms));
    Judged out{formulas.atom(atom), 0};
    for (uint32_t a = 0; a < 16; ++a) out.table |= (a >> atom & 1) << a;
    return out;
  }
  std::vector<Judged> parts(1 + rng.below(4));
  std::vector<Formulas::Id> ids;
  for (Judged& part : parts) {
    part = random_formula(formulas, rng, depth - 1);
    ids.push_back(part.id);
  }
  Judged out;
  switch (rng.below(4)) {
    case 0:
      return {formulas.negated(parts[0].id), ~parts[0].table & kAll};
    case 1:
      out = {formulas.all(ids), kAll};
      for (const Judged& part : parts) out.table &= part.table;
      return out;
    case 2:
      out = {formulas.any(ids), 0};
      for (const Judged& part : parts) out.table |= part.table;
      return out;
    default:
      out = {formulas.one(ids), 0};
      for (uint32_t a = 0; a < 16; ++a) {
        uint32_t holding = 0;
        for (const Judged& part : parts) holding += part.table >> a & 1;
        out.table |= (holding == 1 ? 1u : 0u) << a;
      }
      return out;
  }
}

TEST(Formula, SettlesToItsTruthTable) {
  Rng rng(7);
  for (int round = 0; round < 3000; ++round) {
    Formulas formulas;
    const Judged f = random_formula(formulas, rng, 4);
    for (uint32_t a = 0; a < 16; ++a) {
      Formulas::Id left = f.id;
      for (uint32_t atom = 0; atom < kAtoms; ++atom) {
        // What only wants an atom loses nothing when it holds.
        if (formulas.only_wants(left, atom) &&
            formulas.settled(left, atom, false) == Formulas::kTrue) {
          ASSERT_EQ(formulas.settled(left, atom, true), Formulas::kTrue);
        }
        left = formulas.settled(left, atom, a >> atom & 1);
        ASSERT_FALSE(formulas.mentions(left, atom));
      }
      ASSERT_EQ(left, f.table >> a & 1 ? Formulas::kTrue : Formulas::kFalse) << round;
    }
  }
}

// The most that these may need a check for is a key that comes twice.
constexpr const char* kSchemas[] = {
    // exclusive choices of objects that overlap
    R"({"type":"object","oneOf":[{"properties":{"a":{"enum":[1]},"b":{"type":"string"}}},
       {"properties":{"a":{"enum":["x"]},"b":{"type":"integer"}},"required":["b"]},
       {"properties":{"a":{"type":"boolean"}}}]})",
    R"({"type":"object","properties":{"a":true,"b":true,"c":true},"allOf":[
       {"oneOf":[{"required":["a"]},{"required":["b"]}]},
       {"oneOf":[{"required":["b"]},{"required":["c"]},{"minProperties":3}]}]})",
    // negations of what is said of all properties
    R"({"type":"object","not":{"patternProperties":{"^a":{"type":"integer"}}},"maxProperties":1})",
    R"({"type":"object","not":{"propertyNames":{"not":{"pattern":"x"}}},"maxProperties":1})",
    R"({"type":"object","properties":{"a":true,"b":true},
       "not":{"additionalProperties":{"type":"string"},"properties":{"a":{"type":"integer"}}}})",
    R"({"properties":{"a":{"const":1}},"not":{"enum":[{},{"a":1},[],3]},"type":["object","integer"]})",
    R"({"type":"object","patternProperties":{"^[a-c]$":{"type":["integer","string"]}},
       "additionalProperties":false,"oneOf":[{"minProperties":2},{"required":["a"]}]})",
    R"({"properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"dependencies":{"a":["b"]},
       "oneOf":[{"required":["a"]},{"propertyNames":{"enum":["b","x1"]}}],"type":"object"})",
    R"({"type":"object","properties":{"a":true,"b":true},"if":{"required":["a"],"maxProperties":1},
       "then":{"additionalProperties":{"type":"null"}},
       "else":{"not":{"additionalProperties":{"type":"integer"}}}})",
    // arrays
    R"({"type":"array","oneOf":[{"items":{"type":"integer"}},{"contains":{"const":1}}]})",
    R"({"type":"array","contains":{"type":"string"},"not":{"contains":{"const":2}},"minItems":2})",
    R"({"type":"array","allOf":[{"contains":{"type":"string"}},{"contains":{"type":"integer"}}],
       "maxItems":3})",
    R"({"type":"array","items":[{"type":"integer"}],"oneOf":[{"contains":{"enum":[1,"x"]}},
       {"additionalItems":{"type":"string"}}]})",
    R"({"oneOf":[{"contains":{"type":"null"}},{"minProperties":2},{"required":["a"]},{"const":1}]})",
};

// Every object of some keys and values, in this order; arrays; and some others.
std::vector<std::string> small_values() {
  const std::vector<std::string> values = {"1", "2", "\"x\"", "true", "null", "{}"};
  std::vector<std::string> out = {"1", "3", "\"x\"", "null", "[]", "{}", "false"};
  const std::vector<std::string> keys = {"a", "b", "c", "x1"};
  for (const std::string& v : values) {
    out.push_back("[" + v + "]");
    for (const std::string& w : values) {
      out.push_back("[" + v + "," + w + "]");
      for (const std::string& x : values) out.push_back("[" + v + "," + w + "," + x + "]");
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::string first = "{\"" + keys[i] + "\":" + v;
      out.push_back(first + "}");
      for (size_t j = i + 1; j < keys.size(); ++j) {
        for (const std::string& w : values) {
          const std::string second = first + ",\"" + keys[j] + "\":" + w;
          out.push_back(second + "}");
          for (size_t k = j + 1; k < keys.size(); ++k) {
            for (const std::string& x : values)
              out.push_back(second + ",\"" + keys[k] + "\":" + x + "}");
          }
        }
      }
    }
  }
  return out;
}

bool accepts(const std::shared_ptr<CompiledGrammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  return matcher.accept_bytes(text) && matcher.can_end();
}

TEST(SchemaFormula, AcceptsWhatIsValidAmongAllSmallValues) {
  const std::vector<std::string> values = small_values();
  for (const char* schema : kSchemas) {
    SCOPED_TRACE(schema);
    const auto made = compile_grammar({.kind = GrammarSpec::Kind::kJsonSchema,
                                       .source = schema,
                                       .whitespace = Whitespace::kCompact},
                                      byte_trie());
    ASSERT_TRUE(made) << made.error().to_string();
    const auto document = SchemaDocument::parse(schema, {});
    ASSERT_TRUE(document);
    SchemaValidator validator(**document);
    int64_t num_valid = 0;
    for (const std::string& value : values) {
      const auto valid = validator.valid(json::parse(value), &(*document)->root(), kNoScope);
      ASSERT_TRUE(valid) << valid.error().to_string();
      num_valid += *valid ? 1 : 0;
      ASSERT_EQ(accepts(*made, value), *valid) << value;
    }
    EXPECT_GT(num_valid, 0);
    EXPECT_LT(num_valid, std::ssize(values));
  }
}

TEST(SchemaFormula, RefusesEnumsThatAreNoListsWhereTheirNegationsAreNeeded) {
  const auto made = compile_grammar(
      {.kind = GrammarSpec::Kind::kJsonSchema,
       .source = R"({"oneOf":[{"enum":"integer"},{"minimum":1},{"uniqueItems":true}]})"},
      byte_trie());
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), StatusCode::kInvalidArgument) << made.error().to_string();
}

// A key twice counts once: where that is not what the state says, the end is refused, and there is
// a continuation as long as properties may be added.
TEST(SchemaFormula, RandomTextsAlwaysHaveAWayOn) {
  const auto trie = byte_trie();
  std::vector<uint32_t> words(static_cast<size_t>(trie->words_per_mask()));
  for (const char* schema : kSchemas) {
    SCOPED_TRACE(schema);
    const auto made =
        compile_grammar({.kind = GrammarSpec::Kind::kJsonSchema, .source = schema}, trie);
    ASSERT_TRUE(made) << made.error().to_string();
    for (uint64_t seed = 0; seed < 60; ++seed) {
      Rng rng(seed);
      Matcher matcher(*made);
      std::string text;
      for (int i = 0; i < 80; ++i) {
        const bool any = matcher.fill_mask(words);
        ASSERT_TRUE(any || matcher.can_end()) << text;
        std::vector<TokenId> allowed, marks;
        for (TokenId t = 0; t < trie->vocab_size(); ++t) {
          if (!(words[static_cast<size_t>(t) / 32] >> (t % 32) & 1)) continue;
          allowed.push_back(t);
          if (std::string_view("{}[],:\"x1").find(static_cast<char>(t)) != std::string_view::npos)
            marks.push_back(t);
        }
        if (allowed.empty()) break;
        const auto& from = rng.below(3) > 0 && !marks.empty() ? marks : allowed;
        const TokenId token = from[rng.below(from.size())];
        ASSERT_TRUE(matcher.accept_token(token));
        text += trie->bytes(token);
      }
    }
  }
}

}  // namespace
}  // namespace espalier::grammar
