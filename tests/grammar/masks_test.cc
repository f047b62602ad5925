// Masks over real vocabularies against the naive matcher, which is fed every token's bytes at
// random reachable states: no bit may differ, and no state may be without a way on. A normal run
// looks at some hundred states; ESPALIER_MASK_STATES=20000 (tools/long_tests) at so many for each
// vocabulary, on ESPALIER_TEST_THREADS threads (all cores). ESPALIER_VOCABULARIES=a,b takes those
// of them whose names begin so; ESPALIER_CASE_SECONDS ends a grammar that the naive matcher is slow
// at. Each text is walked by a seed of its own, so what is looked at does not hang on threads.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <mutex>

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
  int64_t states = 0, bits = 0, grammars = 0, out_of_scope = 0, refused = 0, cut = 0;
  void operator+=(const Counts& b) {
    states += b.states, bits += b.bits, grammars += b.grammars;
    out_of_scope += b.out_of_scope, refused += b.refused, cut += b.cut;
  }
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
  Walker(const grammar::TokenTrie& trie, uint64_t seed, double seconds_max)
      : trie_(trie), rng_(seed), seconds_max_(seconds_max) {
    words_.resize(static_cast<size_t>(trie.words_per_mask()));
  }

  // Random texts of the case's grammar; each state's mask is held to the naive matcher.
  void walk(const Case& one, const std::shared_ptr<grammar::CompiledGrammar>& compiled,
            int64_t states, Counts& counts) {
    grammar::Matcher matcher(compiled);
    Expr expr = one.start;
    std::string text;
    int steps = 0;
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < states; ++i, ++steps) {
      if (std::chrono::steady_clock::now() - start > std::chrono::duration<double>(seconds_max_)) {
        ++counts.cut;
        return;
      }
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
  const double seconds_max_;
  std::vector<uint32_t> words_;
  std::vector<TokenId> allowed_, short_;
};

// Text or schema number `index` of the run: its states, compared.
Counts look_at(int64_t index, int64_t states_wanted, uint64_t seed,
               const std::vector<std::string>& lines,
               const std::shared_ptr<const grammar::TokenTrie>& trie) {
  Counts counts;
  Rng rng(seed * 1'000'003 + static_cast<uint64_t>(index));
  constexpr auto kTexts = static_cast<int64_t>(std::size(kRegexes) + std::size(kGrammars));
  std::optional<Case> one;
  if (index < static_cast<int64_t>(std::size(kRegexes))) {
    one = text_case(GrammarSpec::Kind::kRegex, kRegexes[index]);
  } else if (index < kTexts) {
    one = text_case(GrammarSpec::Kind::kEbnf, kGrammars[index - std::ssize(kRegexes)]);
  } else {
    one = schema_case(lines[rng.below(lines.size())], rng);
  }
  if (!one) {
    EXPECT_GE(index, kTexts) << "the naive matcher must read all texts here";
    ++counts.out_of_scope;
    return counts;
  }
  const auto compiled = compile_grammar(one->spec, trie);
  if (!compiled) {
    // Nothing matches: then nothing may match here either.
    ++counts.refused;
    if (compiled.error().message().starts_with("the grammar matches nothing")) {
      EXPECT_EQ(one->naive->after(one->start, "{"), naive::kNever) << one->name;
    }
    return counts;
  }
  ++counts.grammars;
  if (index % 2 == 1) {  // half of the grammars, as behind the engine's compiler
    (*compiled)->build_ahead([] { return false; });
    (*compiled)->make_masks_ahead([] { return false; });
  }
  const int64_t states = index < kTexts ? std::max<int64_t>(states_wanted / 64, 2)
                                        : std::clamp<int64_t>(states_wanted / 1000, 4, 30);
  const auto seconds = real_data::count_from_environment("ESPALIER_CASE_SECONDS", 20);
  Walker(*trie, rng(), static_cast<double>(seconds)).walk(*one, *compiled, states, counts);
  return counts;
}

void run(const std::string& vocabulary_name, int64_t states_wanted, uint64_t seed) {
  const std::filesystem::path schemas = real_data::folder() / "maskbench_dev.jsonl.xz";
  ESPALIER_NEED(schemas);
  const real_data::Vocabulary vocabulary = real_data::load_vocabulary(vocabulary_name);
  ASSERT_NE(vocabulary.trie, nullptr);
  static const std::vector<std::string> lines = real_data::lines_of(real_data::read_xz(schemas));
  Counts counts;
  std::mutex counts_mutex;
  real_data::Progress progress(vocabulary_name, states_wanted);
  real_data::in_parallel([&](int64_t index) {
    SCOPED_TRACE(testing::Message() << vocabulary_name << ", seed " << seed << ", text " << index);
    const Counts more = look_at(index, states_wanted, seed, lines, vocabulary.trie);
    const std::lock_guard lock(counts_mutex);
    counts += more;
    progress.at(counts.states);
    return counts.states < states_wanted && !testing::Test::HasFailure();
  });
  fmt::print(
      "{}: {} states of {} grammars, {} bits, {} differ; {} schemas beyond the naive reading, {} "
      "refused, {} ended by their time; {:.0f} s\n",
      vocabulary_name, counts.states, counts.grammars, counts.bits,
      testing::Test::HasFailure() ? "some" : "0", counts.out_of_scope, counts.refused, counts.cut,
      progress.seconds());
  std::fflush(stdout);
}

bool asked_for(const std::string& name, bool all) {
  const char* const named = std::getenv("ESPALIER_VOCABULARIES");
  if (named == nullptr)
    return all || name == "llama3_128k.tiktoken.xz" || name == "tokenizer.model.v1";
  std::stringstream list(named);
  for (std::string one; std::getline(list, one, ',');)
    if (name.starts_with(one)) return true;
  return false;
}

TEST(Masks, EqualTheNaiveMatcher) {
  const int64_t states = real_data::count_from_environment("ESPALIER_MASK_STATES", 250);
  const auto seed = static_cast<uint64_t>(real_data::count_from_environment("ESPALIER_SEED", 1));
  for (const std::string& name : real_data::vocabulary_names()) {
    if (!asked_for(name, states > 1000)) continue;
    run(name, states, seed);
    if (HasFailure() || IsSkipped()) return;
  }
}

}  // namespace
}  // namespace espalier
