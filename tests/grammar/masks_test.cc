// Masks over real vocabularies against the naive matcher, which is fed every token's bytes at
// random reachable states: no bit may differ, and no state may be without a way on. A normal run
// looks at some hundred states; ESPALIER_MASK_STATES=20000 (tools/long_tests) at so many for each
// vocabulary.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/rng.h"
#include "grammar/grammar.h"
#include "naive.h"
#include "real_data.h"

namespace espalier {
namespace {

using grammar::GrammarSpec;
using naive::Expr;
using naive::Naive;

struct Case {
  std::string name;
  GrammarSpec spec;
  std::unique_ptr<Naive> naive = std::make_unique<Naive>();
  Expr start = naive::kNever;
};

struct Counts {
  int64_t states = 0, bits = 0, grammars = 0, out_of_scope = 0, refused = 0;
};

constexpr const char* kRegexes[] = {
    "[a-z]+[0-9]*",
    "(yes|no|maybe)(, (certainly|perhaps))?[.!]",
    "[0-9]{1,3}(\\.[0-9]{1,3}){3}",
    "(?:[A-Z][a-z]+ ){2,5}[A-Z]\\.",
    "\\{\"a\": (true|false|null), \"b\": \\[([0-9]+(, [0-9]+)*)?\\]\\}",
    "[^\\n]*\\n",
    "(\\w+\\W)*end",
    "\xc3\xa9+[\xce\xb1-\xcf\x89]*|[\xe4\xb8\x80-\xe9\xbf\xbf]{2,4}",
    "-?[1-9][0-9]*(\\.[0-9]+)?([eE][+-]?[0-9]+)?",
    "(a|b)*abb",
    "x{40,90}y?",
    ".{0,200}"};

constexpr const char* kGrammars[] = {
    // SQL of one table
    "root ::= \"SELECT \" columns \" FROM \" name (\" WHERE \" condition)? \";\"\n"
    "columns ::= \"*\" | name (\", \" name)*\n"
    "condition ::= term ((\" AND \" | \" OR \") term)*\n"
    "term ::= name (\" = \" | \" < \" | \" > \") value | \"(\" condition \")\"\n"
    "value ::= [0-9]+ | \"'\" [^'\\n]* \"'\"\n"
    "name ::= [a-z_] [a-z0-9_]*\n",
    // a small programming language
    "root ::= statement+\n"
    "statement ::= \"let \" name \" = \" sum \";\\n\" | \"if (\" sum \") \" block (\" else \" "
    "block)? \"\\n\"\n"
    "  | \"while (\" sum \") \" block \"\\n\" | \"return \" sum \";\\n\"\n"
    "block ::= \"{\\n\" statement* \"}\"\n"
    "sum ::= product ((\" + \" | \" - \" | \" < \" | \" == \") product)*\n"
    "product ::= atom ((\" * \" | \" / \") atom)*\n"
    "atom ::= [0-9]+ | name (\"(\" (sum (\", \" sum)*)? \")\")? | \"(\" sum \")\"\n"
    "name ::= [a-z] [a-zA-Z0-9_]{0,15}\n",
    // brackets, ambiguous on purpose
    "root ::= pair | pair root\npair ::= \"(\" root? \")\" | \"[\" root? \"]\" | \"()\"\n",
    "root ::= line{1,20}\nline ::= \"- \" [^\\n]+ \"\\n\" | \"  \" line # nested\n"};

std::optional<Case> text_case(GrammarSpec::Kind kind, const char* source) {
  Case out;
  out.name = source;
  out.spec = {.kind = kind, .source = source};
  const auto start = kind == GrammarSpec::Kind::kRegex
                         ? naive::regex(*out.naive, source, naive::Writing::kPlain, false)
                         : naive::ebnf(*out.naive, source);
  if (!start) return std::nullopt;
  out.start = *start;
  return out;
}

std::optional<Case> schema_case(const std::string& line, Rng& rng) {
  boost::json::parse_options options;
  options.max_depth = 500;
  const boost::json::value entry = boost::json::parse(line, {}, options);
  constexpr std::pair<grammar::Whitespace, naive::Space> kSpaces[] = {
      {grammar::Whitespace::kBounded, naive::Space::kBounded},
      {grammar::Whitespace::kCompact, naive::Space::kCompact},
      {grammar::Whitespace::kAny, naive::Space::kAny}};
  const auto& [whitespace, space] = kSpaces[rng.below(3)];
  Case out;
  out.name = std::string(entry.at("name").as_string());
  out.spec = {.kind = GrammarSpec::Kind::kJsonSchema,
              .source = boost::json::serialize(entry.at("schema")),
              .whitespace = whitespace};
  const auto start = naive::json_schema(*out.naive, entry.at("schema"), space);
  if (!start) return std::nullopt;
  out.start = *start;
  return out;
}

class Walker {
 public:
  Walker(const grammar::TokenTrie& trie, uint64_t seed) : trie_(trie), rng_(seed) {
    words_.resize(static_cast<size_t>(trie.words_per_mask()));
  }

  // Random texts of the case's grammar; each state's mask is held to the naive matcher.
  void walk(const Case& one, const std::shared_ptr<grammar::CompiledGrammar>& compiled,
            int64_t states, Counts& counts) {
    grammar::Matcher matcher(compiled);
    Expr expr = one.start;
    std::string text;
    int steps = 0;
    for (int64_t i = 0; i < states; ++i, ++steps) {
      if (steps == 60) {
        matcher.rollback(matcher.steps());
        expr = one.start;
        text.clear();
        steps = 0;
      }
      compare(one, matcher, expr, text, counts);
      if (testing::Test::HasFailure()) return;
      const TokenId token = choose();
      ASSERT_TRUE(matcher.accept_token(token));
      if (trie_.is_eos(token)) {
        matcher.rollback(matcher.steps());
        expr = one.start;
        text.clear();
        steps = 0;
        continue;
      }
      text += trie_.bytes(token);
      expr = one.naive->after(expr, trie_.bytes(token));
    }
  }

 private:
  void compare(const Case& one, grammar::Matcher& matcher, Expr expr, const std::string& text,
               Counts& counts) {
    ASSERT_TRUE(matcher.fill_mask(words_)) << one.name << " is stuck after " << text;
    allowed_.clear();
    short_.clear();
    const bool may_end = one.naive->may_end(expr);
    for (TokenId t = 0; t < trie_.vocab_size(); ++t) {
      const bool bit = words_[static_cast<size_t>(t) / 32] >> (t % 32) & 1;
      const std::string_view bytes = trie_.bytes(t);
      const bool expected = trie_.is_eos(t)
                                ? may_end
                                : !bytes.empty() && one.naive->after(expr, bytes) != naive::kNever;
      ASSERT_EQ(bit, expected) << one.name << ": token " << t << " '" << bytes << "' after '"
                               << text << "'";
      if (!bit) continue;
      allowed_.push_back(t);
      if (bytes.size() <= 2) short_.push_back(t);
    }
    ++counts.states;
    counts.bits += trie_.vocab_size();
  }

  TokenId choose() {
    const auto& from = rng_.below(2) == 0 && !short_.empty() ? short_ : allowed_;
    return from[rng_.below(from.size())];
  }

  const grammar::TokenTrie& trie_;
  Rng rng_;
  std::vector<uint32_t> words_;
  std::vector<TokenId> allowed_, short_;
};

void run(const std::string& vocabulary_name, int64_t states_wanted, uint64_t seed) {
  const std::filesystem::path schemas = real_data::folder() / "maskbench_dev.jsonl.xz";
  ESPALIER_NEED(schemas);
  const real_data::Vocabulary vocabulary = real_data::load_vocabulary(vocabulary_name);
  ASSERT_NE(vocabulary.trie, nullptr);
  static const std::vector<std::string> lines = real_data::lines_of(real_data::read_xz(schemas));
  SCOPED_TRACE(testing::Message() << vocabulary_name << ", seed " << seed);
  Rng rng(seed);
  Walker walker(*vocabulary.trie, seed);
  Counts counts;
  const auto follow = [&](const Case& one, int64_t states) {
    const auto compiled = compile_grammar(one.spec, vocabulary.trie);
    if (!compiled) {
      // Nothing matches: then nothing may match here either.
      ++counts.refused;
      if (compiled.error().message().starts_with("the grammar matches nothing")) {
        EXPECT_EQ(one.naive->after(one.start, "{"), naive::kNever) << one.name;
      }
      return;
    }
    ++counts.grammars;
    walker.walk(one, *compiled, states, counts);
  };
  const int64_t per_text = std::max<int64_t>(states_wanted / 64, 2);
  for (const char* source : kRegexes) {
    const auto one = text_case(GrammarSpec::Kind::kRegex, source);
    ASSERT_TRUE(one) << source;
    follow(*one, per_text);
    if (testing::Test::HasFailure()) return;
  }
  for (const char* source : kGrammars) {
    const auto one = text_case(GrammarSpec::Kind::kEbnf, source);
    ASSERT_TRUE(one) << source;
    follow(*one, per_text);
    if (testing::Test::HasFailure()) return;
  }
  const int64_t per_schema = std::clamp<int64_t>(states_wanted / 1000, 4, 30);
  while (counts.states < states_wanted) {
    const auto one = schema_case(lines[rng.below(lines.size())], rng);
    if (!one) {
      ++counts.out_of_scope;
      continue;
    }
    follow(*one, per_schema);
    if (testing::Test::HasFailure()) return;
  }
  fmt::print(
      "{}: {} states of {} grammars, {} bits, 0 differ; {} schemas beyond the naive reading, {} "
      "refused\n",
      vocabulary_name, counts.states, counts.grammars, counts.bits, counts.out_of_scope,
      counts.refused);
}

TEST(Masks, EqualTheNaiveMatcher) {
  const int64_t states = real_data::count_from_environment("ESPALIER_MASK_STATES", 250);
  const auto seed = static_cast<uint64_t>(real_data::count_from_environment("ESPALIER_SEED", 1));
  const bool all = states > 1000;
  for (const std::string& name : real_data::vocabulary_names()) {
    if (!all && name != "llama3_128k.tiktoken.xz" && name != "tokenizer.model.v1") continue;
    run(name, states, seed);
    if (HasFatalFailure() || IsSkipped()) return;
  }
}

}  // namespace
}  // namespace espalier
