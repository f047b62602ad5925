// The grammar against naive recognisers: every small text, random grammars, real patterns, and
// masks bit by bit.
#include "grammar/grammar.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <functional>
#include <set>

#include "base/rng.h"
#include "grammar/automata/earley.h"
#include "grammar/automata/regular_algebra.h"
#include "grammar/frontends/ebnf.h"
#include "grammar/frontends/regex.h"

namespace espalier::grammar {
namespace {

// --- A recogniser that is plainly right: for each expression and start, the set of ends, by
// fixpoint.
class Naive {
 public:
  Naive(const Ir& ir, std::string text)
      : ir_(ir), text_(std::move(text)), ends_(ir.size(), Table(text_.size() + 1)) {
    for (changed_ = true; changed_;) {
      changed_ = false;
      for (ExprId id = 0; id < ir_.size(); ++id) {
        for (size_t from = 0; from <= text_.size(); ++from) update(id, from);
      }
    }
  }
  bool matches(ExprId expr) const { return ends_[expr][0].contains(text_.size()); }

 private:
  using Table = std::vector<std::set<size_t>>;

  std::set<size_t> after(const std::set<size_t>& from, ExprId expr) const {
    std::set<size_t> out;
    for (size_t f : from) out.insert(ends_[expr][f].begin(), ends_[expr][f].end());
    return out;
  }
  std::set<size_t> graph_ends(const Ir::Graph& graph, size_t from) const {
    std::vector<std::set<size_t>> at(graph.num_states);
    at[0] = {from};
    for (size_t round = 0; round <= graph.num_states * (text_.size() + 1); ++round) {
      for (const Ir::GraphEdge& e : graph.edges) at[e.to].merge(after(at[e.from], e.expr));
      for (const Ir::Arc& arc : graph.arcs) {
        for (size_t i : at[arc.from]) {
          if (arc.symbol != Ir::Arc::Symbol::kBytes) {
            at[arc.to].insert(i);
          } else if (i < text_.size() && arc.low <= static_cast<uint8_t>(text_[i]) &&
                     static_cast<uint8_t>(text_[i]) <= arc.high) {
            at[arc.to].insert(i + 1);
          }
        }
      }
    }
    std::set<size_t> ends;
    for (uint32_t final : graph.finals) ends.insert(at[final].begin(), at[final].end());
    return ends;
  }
  void update(ExprId id, size_t from) {
    const Ir::Node& node = ir_.node(id);
    std::set<size_t> ends;
    switch (node.op) {
      case Ir::Op::kNever:
        break;
      case Ir::Op::kEmpty:
      case Ir::Op::kTick:
      case Ir::Op::kEnough:
        ends = {from};
        break;
      case Ir::Op::kBytes:
        if (from < text_.size() && ir_.byte_set(id)[static_cast<uint8_t>(text_[from])]) {
          ends = {from + 1};
        }
        break;
      case Ir::Op::kSequence:
        ends = {from};
        for (ExprId child : ir_.children(id)) ends = after(ends, child);
        break;
      case Ir::Op::kChoice:
        for (ExprId child : ir_.children(id)) ends.merge(after({from}, child));
        break;
      case Ir::Op::kRepeat: {
        std::set<size_t> now = {from};
        const int32_t last =
            node.max == kUnbounded ? node.min + static_cast<int32_t>(text_.size()) + 1 : node.max;
        for (int32_t i = 0; i <= last; ++i) {
          if (i >= node.min) ends.insert(now.begin(), now.end());
          now = after(now, ir_.children(id)[0]);
        }
        break;
      }
      case Ir::Op::kRule:
        ends = after({from}, ir_.rules()[node.first].body);
        break;
      case Ir::Op::kGraph:
        ends = graph_ends(ir_.graph_of(id), from);
        break;
    }
    if (ends != ends_[id][from]) {
      ends_[id][from] = std::move(ends);
      changed_ = true;
    }
  }

  const Ir& ir_;
  const std::string text_;
  std::vector<Table> ends_;
  bool changed_ = false;
};

void for_every_text(std::string_view alphabet, size_t length_max,
                    const std::function<void(const std::string&)>& visit) {
  std::vector<std::string> texts = {""};
  while (!texts.empty()) {
    std::vector<std::string> longer;
    for (const std::string& text : texts) {
      visit(text);
      if (text.size() == length_max) continue;
      for (char c : alphabet) longer.push_back(text + c);
    }
    texts = std::move(longer);
  }
}

SetId run(EarleyRecogniser& earley, std::string_view text) {
  SetId set = earley.start();
  for (char c : text) set = earley.step(set, static_cast<uint8_t>(c));
  return set;
}

// Whether some text within `steps` bytes leads from `set` to an end: every live state must.
bool can_finish(EarleyRecogniser& earley, SetId set, std::string_view alphabet, int steps) {
  std::set<SetId> now = {set};
  for (int i = 0; i <= steps; ++i) {
    std::set<SetId> next;
    for (SetId s : now) {
      if (earley.accepting(s)) return true;
      for (char c : alphabet) {
        const SetId to = earley.step(s, static_cast<uint8_t>(c));
        if (to != EarleyRecogniser::kDead && next.size() < 2000) next.insert(to);
      }
    }
    now = std::move(next);
  }
  return false;
}

// Every text over `alphabet` up to `length_max`: accepted exactly when the naive recogniser says
// so, alive whenever it is a prefix of an accepted one, and dead when nothing can follow.
void expect_exact(const Ir& ir, RuleId root, std::string_view alphabet, size_t length_max) {
  const auto network = build_network(ir, root, {});
  bool any = false;
  std::set<std::string> prefixes;
  const ExprId body = ir.rules()[root].body;
  if (!network) {
    for_every_text(alphabet, length_max,
                   [&](const std::string& t) { any |= Naive(ir, t).matches(body); });
    EXPECT_FALSE(any) << network.error().to_string();
    return;
  }
  EarleyRecogniser earley(*network, {});
  for_every_text(alphabet, length_max, [&](const std::string& text) {
    const bool expected = Naive(ir, text).matches(body);
    const SetId set = run(earley, text);
    EXPECT_EQ(earley.accepting(set), expected) << "'" << text << "'";
    if (expected) {
      for (size_t n = 0; n <= text.size(); ++n) prefixes.insert(text.substr(0, n));
    }
  });
  for (const std::string& p : prefixes) EXPECT_NE(run(earley, p), EarleyRecogniser::kDead) << p;
  for_every_text(alphabet, length_max - 2, [&](const std::string& text) {
    const SetId set = run(earley, text);
    if (set != EarleyRecogniser::kDead) {
      EXPECT_TRUE(can_finish(earley, set, alphabet, 40)) << "dead end after '" << text << "'";
    }
  });
}

void expect_exact_ebnf(std::string_view text, std::string_view alphabet, size_t length_max) {
  SCOPED_TRACE(text);
  Ir ir;
  const auto root = parse_ebnf(ir, text);
  ASSERT_TRUE(root) << root.error().to_string();
  expect_exact(ir, *root, alphabet, length_max);
}

TEST(EarleyRecogniser, FollowsGrammarsOfEveryShape) {
  expect_exact_ebnf("root ::= \"a\"* \"b\"", "ab", 6);
  // llama.cpp allows white space before a repetition.
  expect_exact_ebnf("root ::= \"a\" + \"b\" ?", "ab", 5);
  expect_exact_ebnf("root ::= x {2, 3} (\"b\") *\nx ::= \"a\"", "ab", 6);
  expect_exact_ebnf("root ::= \"a\" root \"b\" | \"\"", "ab", 8);             // nested
  expect_exact_ebnf("root ::= root \"+\" \"a\" | \"a\"", "a+", 8);            // left recursion
  expect_exact_ebnf("root ::= \"a\" | \"a\" \",\" root", "a,", 8);            // right recursion
  expect_exact_ebnf("root ::= root root | \"a\"", "ab", 6);                   // ambiguous
  expect_exact_ebnf("root ::= x root | \"b\"\nx ::= \"a\" | \"\"", "ab", 6);  // hidden left
  expect_exact_ebnf("root ::= x\nx ::= y x | \"\"\ny ::= \"a\"? \"b\"", "ab", 7);
  expect_exact_ebnf("root ::= e\ne ::= t (\"+\" t)*\nt ::= \"a\" | \"(\" e \")\"", "a+()", 6);
  expect_exact_ebnf("root ::= s\ns ::= \"a\" s \"a\" | \"b\" s \"b\" | \"\"", "ab", 8);
  expect_exact_ebnf("root ::= a\na ::= b \"a\" | \"\"\nb ::= a \"b\" | \"a\"", "ab", 7);  // mutual
  expect_exact_ebnf("root ::= x{2,3}\nx ::= \"a\" x? ", "ab", 7);
  expect_exact_ebnf("root ::= dead | \"ab\"\ndead ::= \"a\" dead", "ab", 5);  // pruned
}

TEST(EarleyRecogniser, FollowsRandomGrammars) {
  const uint64_t seed = 20261121;
  for (uint64_t round = 0; round < 150; ++round) {
    Rng rng(seed + round);
    SCOPED_TRACE("seed " + std::to_string(seed + round));
    Ir ir;
    const int num_rules = static_cast<int>(rng.between(1, 4));
    for (int r = 0; r < num_rules; ++r) ir.rules().add("r" + std::to_string(r));
    std::function<ExprId(int)> any = [&](int depth) -> ExprId {
      switch (rng.below(depth > 3 ? 3 : 8)) {
        case 0:
          return ir.byte('a');
        case 1:
          return ir.byte('b');
        case 2:
          return rng.below(4) == 0 ? ir.empty()
                                   : ir.rule(static_cast<RuleId>(rng.below(num_rules)));
        case 3:
        case 4:
          return ir.sequence({any(depth + 1), any(depth + 1)});
        case 5:
          return ir.choice({any(depth + 1), any(depth + 1)});
        case 6: {
          Ir::Graph graph{.num_states = 3, .edges = {}, .finals = {1}};
          for (int64_t e = rng.between(1, 5); e > 0; --e) {
            const auto u = static_cast<uint32_t>(rng.below(3)),
                       v = static_cast<uint32_t>(rng.below(3));
            graph.edges.push_back({u, any(depth + 1), v});
          }
          if (rng.below(2)) graph.finals.push_back(2);
          return ir.graph(graph);
        }
        default: {
          const auto min = static_cast<int32_t>(rng.below(3));
          const int32_t max = rng.below(2) ? kUnbounded : min + static_cast<int32_t>(rng.below(3));
          return ir.repeat(any(depth + 1), min, max);
        }
      }
    };
    for (int r = 0; r < num_rules; ++r) ir.rules().set_body(static_cast<RuleId>(r), any(0));
    expect_exact(ir, 0, "ab", 6);
    if (HasFailure()) return;
  }
}

TEST(EarleyRecogniser, RightRecursionAndNestingTakeNoStatesOfTheirOwn) {
  Ir ir;
  const auto root = parse_ebnf(ir, "root ::= [a-z] root | \".\"");
  const auto network = build_network(ir, *root, {});
  EarleyRecogniser earley(*network, {});
  run(earley, std::string(1000, 'x'));
  EXPECT_LT(earley.num_sets(), 10u);

  Ir json_ir;
  const RuleId json = json_ir.rules().add("root");
  json_ir.rules().set_body(json, JsonSyntax(json_ir, Whitespace::kCompact).value());
  const auto json_network = build_network(json_ir, json, {});
  EarleyRecogniser json_earley(*json_network, {});
  std::string list = "[";
  for (int i = 0; i < 1000; ++i) list += "{\"a\":[1,true]},";
  EXPECT_NE(run(json_earley, list), EarleyRecogniser::kDead);
  EXPECT_LT(json_earley.num_sets(), 120u);
}

// --- Regular expressions against PCRE2.

bool pcre_matches(const std::string& pattern, const std::string& text, bool search) {
  const std::string whole = search ? pattern : "(?:" + pattern + ")\\z";
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* re = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                                 PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | (search ? 0 : PCRE2_ANCHORED),
                                 &code, &offset, nullptr);
  EXPECT_NE(re, nullptr) << pattern;
  pcre2_match_data* data = pcre2_match_data_create_from_pattern(re, nullptr);
  const int found =
      pcre2_match(re, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data, nullptr);
  pcre2_match_data_free(data);
  pcre2_code_free(re);
  return found >= 0;
}

bool ours_matches(const std::string& pattern, const std::string& text, bool search) {
  Ir ir;
  const auto body = parse_regex(ir, pattern, {.search = search, .encode = {}});
  EXPECT_TRUE(body) << (body ? "" : body.error().to_string());
  if (!body) return false;
  const RuleId root = ir.rules().add("root");
  ir.rules().set_body(root, *body);
  const auto network = build_network(ir, root, {});
  if (!network) return false;
  EarleyRecogniser earley(*network, {});
  return earley.accepting(run(earley, text));
}

TEST(Regex, AgreesWithPcreOnEverySmallText) {
  for (const char* pattern :
       {"a*b",          "(ab|a)(b|ba)*", "a{2,3}b?",  "[^a]b",    ".a.",
        "(a|b)*?b{2,}", "(?:a(?<n>b))+", "a|",        "(a*)*",    "((a|b){2})*",
        "^ab$",         "^a|b$",         "a^b|ab",    "(^a)?b",   "(a$|b)*",
        "^$",           "b?$",           "\\Aab?\\Z", "[a-b]{3}", "(^|b)a(b|$)"}) {
    for (bool search : {false, true}) {
      for_every_text("abc", 5, [&](const std::string& text) {
        EXPECT_EQ(ours_matches(pattern, text, search), pcre_matches(pattern, text, search))
            << pattern << " on '" << text << "'" << (search ? " (search)" : "");
      });
    }
  }
}

TEST(Regex, KnowsCharactersEscapesAndClasses) {
  struct Case {
    const char* pattern;
    const char* text;
    bool expected;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"\\d{3}-\\d{4}", "555-1234", true},
           {"\\d{3}-\\d{4}", "55-1234", false},
           {"[\\w.]+@\\w+\\.com", "a.b@c.com", true},
           {"\\p{Lu}\\p{Ll}+", "\xC3\x89t\xC3\xA9", true},  // Été
           {"\\p{Lu}\\p{Ll}+", "\xC3\xA9t", false},
           {"[^\\d\\s]+", "ab\xF0\x9F\x98\x80", true},
           {".", "\xF0\x9F\x98\x80", true},
           {".", "\n", false},
           {"[\\u00e0-\\u00ff]", "\xC3\xA9", true},
           {"\\u{1F600}", "\xF0\x9F\x98\x80", true},
           {"\\ud83d\\ude00", "\xF0\x9F\x98\x80", true},
           {"\\x41\\t\\.", "A\t.", true},
           {"(?i)stra\xC3\x9F"
            "e|K",
            "STRA\xE1\xBA\x9E"
            "E",
            true},
           {"(?i)k", "\xE2\x84\xAA", true},  // the Kelvin sign
           {"a{,2}", "aa", true},            // as Python reads it
           {"a{,2}", "aaa", false},
           {"a{,}", "a{,}", true},  // no bounds: literal text
           {"[]", "", false},
           {"[a\\-z]", "-", true},
           {"[a-]", "-", true},
           {"\\/", "/", true},
       }) {
    EXPECT_EQ(ours_matches(c.pattern, c.text, false), c.expected) << c.pattern << " on " << c.text;
  }
}

TEST(Regex, RefusesByNameAndPlace) {
  for (const auto& [pattern, message] :
       std::initializer_list<std::pair<const char*, const char*>>{{"(?<=a)b", "look-behind"},
                                                                  {"(?<!a)b", "look-behind"},
                                                                  {"(a)\\1", "back-references"},
                                                                  {"a\\b", "word boundaries"},
                                                                  {"a++", "possessive"},
                                                                  {"(a", "does not end"},
                                                                  {"a)", "unmatched"},
                                                                  {"[z-a]", "reversed"},
                                                                  {"a{3,2}", "reversed"},
                                                                  {"*a", "nothing to repeat"},
                                                                  {"\\p{Klingon}", "Klingon"},
                                                                  {"a{9999999}", "bounded"},
                                                                  {"\xff", "UTF-8"},
                                                                  {"\\", "backslash"}}) {
    Ir ir;
    const auto result = parse_regex(ir, pattern);
    ASSERT_FALSE(result) << pattern;
    EXPECT_EQ(result.error().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(result.error().message().find(message), std::string::npos)
        << pattern << ": " << result.error().message();
  }
}

TEST(Ebnf, RefusesByLine) {
  for (const auto& [text, message] : std::initializer_list<std::pair<const char*, const char*>>{
           {"root ::= a", "line 1: rule 'a' is used and not defined"},
           {"x ::= \"a\"", "no rule 'root'"},
           {"root ::= \"a", "line 1: a literal does not end"},
           {"root ::= \"a\"\nroot ::= \"b\"", "line 2: rule 'root' is defined twice"},
           {"root ::= (\"a\"", "a group does not end"},
           {"root = \"a\"", "'::=' is expected"},
           {"root ::= [a", "a character class does not end"},
           {"root ::= \"\\q\"", "\\q is not known"}}) {
    Ir ir;
    const auto result = parse_ebnf(ir, text);
    ASSERT_FALSE(result) << text;
    EXPECT_NE(result.error().message().find(message), std::string::npos)
        << result.error().message();
  }
}

TEST(Ir, EncodesEveryCodePointOnce) {
  Rng rng(5);
  for (int round = 0; round < 30; ++round) {
    const auto low = static_cast<uint32_t>(rng.below(0x110000));
    const auto high = static_cast<uint32_t>(low + rng.below(0x110000 - low));
    Ir ir;
    const RuleId root = ir.rules().add("root");
    ir.rules().set_body(root, ir.chars({{low, high}}));
    const auto network = build_network(ir, root, {});
    if (!network) continue;  // surrogates only
    EarleyRecogniser earley(*network, {});
    const auto accepts = [&](uint32_t c) {
      char bytes[4];
      const size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
      const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
      for (size_t i = n; i-- > 1; c >>= 6) bytes[i] = static_cast<char>(0x80 | (c & 0x3f));
      bytes[0] = static_cast<char>(n == 1 ? c : lead[n] | c);
      return earley.accepting(run(earley, std::string_view(bytes, n)));
    };
    for (int i = 0; i < 300; ++i) {
      const auto c = static_cast<uint32_t>(rng.below(0x110000));
      const bool surrogate = c >= 0xd800 && c <= 0xdfff;
      EXPECT_EQ(accepts(c), !surrogate && low <= c && c <= high) << low << " " << high << " " << c;
    }
    if (low < 0xd800 || low > 0xdfff) {
      EXPECT_TRUE(accepts(low));
    }
    if (high < 0xd800 || high > 0xdfff) {
      EXPECT_TRUE(accepts(high));
    }
  }
}

TEST(Regular, IntersectionAndDifferenceAgreeWithBothSides) {
  const std::vector<const char*> patterns = {"a*b", "(ab|a)*", "[ab]{2,3}", "a?b?c?", "[^b]*", ""};
  for (const char* p : patterns) {
    for (const char* q : patterns) {
      Ir ir;
      const ExprId a = parse_regex(ir, p).value(), b = parse_regex(ir, q).value();
      const ExprId both = intersection(ir, a, b, {}).value();
      const ExprId only = difference(ir, a, b, {}).value();
      const ExprId same = canonical(ir, a, {}).value();
      for_every_text("abc", 4, [&](const std::string& text) {
        const Naive naive(ir, text);
        EXPECT_EQ(naive.matches(both), naive.matches(a) && naive.matches(b)) << p << q << text;
        EXPECT_EQ(naive.matches(only), naive.matches(a) && !naive.matches(b)) << p << q << text;
        EXPECT_EQ(naive.matches(same), naive.matches(a)) << p << text;
      });
    }
  }
}

// --- Masks.

// A vocabulary of all bytes, common pieces and random ones; eos is the last.
struct TestVocab {
  std::vector<std::string> tokens;
  std::vector<std::string_view> views;
  VocabView view;

  explicit TestVocab(uint64_t seed) {
    for (int b = 0; b < 256; ++b) tokens.push_back(std::string(1, static_cast<char>(b)));
    for (const char* t : {"true", "false", "null", "\":",      "\",",          "{\"",      "\"}",
                          "}]",   "],",    ", \"", "abc",      "ab",           "12",       "0.",
                          "e+",   "\\\"",  "\\u",  "\xC3\xA9", "\xF0\x9F\x98", "\x98\x80", "name",
                          "\n  ", "[[",    "]]",   "\"a\":1",  "hello world"}) {
      tokens.push_back(t);
    }
    Rng rng(seed);
    const std::string_view alphabet = "ab\"{}[],: 1e.\\u\xC3\xA9";
    for (int i = 0; i < 300; ++i) {
      std::string token;
      for (auto n = rng.between(1, 5); n > 0; --n) token += alphabet[rng.below(alphabet.size())];
      tokens.push_back(token);
    }
    tokens.push_back("<eos>");
    views.assign(tokens.begin(), tokens.end());
    view.token_bytes = views;
    view.eos_ids = view.special_ids = {static_cast<TokenId>(tokens.size() - 1)};
  }
  TokenId eos() const { return view.eos_ids[0]; }
};

// Walks at random through what the mask allows; at each step every bit is compared with trying the
// token on a copy. Returns the text.
std::string expect_exact_masks(const std::shared_ptr<CompiledGrammar>& grammar,
                               const TestVocab& vocab, uint64_t seed) {
  Rng rng(seed);
  Matcher matcher(grammar);
  std::vector<uint32_t> words(static_cast<size_t>(matcher.words_per_mask()));
  std::string text;
  for (int step = 0; step < 60; ++step) {
    EXPECT_TRUE(matcher.fill_mask(words)) << "no token after " << text;
    std::vector<TokenId> allowed;
    for (TokenId t = 0; t < vocab.view.vocab_size(); ++t) {
      const bool bit = words[static_cast<size_t>(t) / 32] >> (t % 32) & 1;
      Matcher trial = matcher;
      EXPECT_EQ(trial.accept_token(t), bit) << "token " << t << " after " << text;
      if (bit) allowed.push_back(t);
    }
    const std::string forced = matcher.forced_bytes(50);
    for (TokenId t : allowed) {
      if (t == vocab.eos()) {
        EXPECT_TRUE(forced.empty());
        continue;
      }
      const std::string& bytes = vocab.tokens[static_cast<size_t>(t)];
      const size_t n = std::min(bytes.size(), forced.size());
      EXPECT_EQ(bytes.substr(0, n), forced.substr(0, n));
    }
    if (allowed.empty() || ::testing::Test::HasFailure()) return text;
    const TokenId chosen = allowed[rng.below(allowed.size())];
    if (rng.below(4) == 0) {  // there and back again
      const size_t steps = matcher.steps();
      matcher.accept_token(chosen);
      matcher.rollback(1);
      EXPECT_EQ(matcher.steps(), steps);
    }
    EXPECT_TRUE(matcher.accept_token(chosen));
    if (chosen == vocab.eos()) {
      EXPECT_FALSE(matcher.fill_mask(words));
      return text;
    }
    text += vocab.tokens[static_cast<size_t>(chosen)];
  }
  return text;
}

TEST(Matcher, MasksAreExactBitByBit) {
  const TestVocab vocab(3);
  const auto trie = std::make_shared<const TokenTrie>(vocab.view);
  const std::vector<GrammarSpec> specs = {
      {.source = "(ab|abc)*\\d{2,3}"},
      {.source = "\"[^\"\\\\\\x00-\\x1f]*\""},
      {.source = "[^a]*"},
      {.kind = GrammarSpec::Kind::kEbnf,
       .source = "root ::= \"[\" (root (\",\" root)*)? \"]\" | [0-9]+"},
      {.kind = GrammarSpec::Kind::kAnyJson},
      {.kind = GrammarSpec::Kind::kAnyJson, .whitespace = Whitespace::kCompact},
      {.kind = GrammarSpec::Kind::kAnyJson, .whitespace = Whitespace::kAny},
      {.kind = GrammarSpec::Kind::kChoices, .choices = {"true", "truth", "null", "n"}},
  };
  for (const GrammarSpec& spec : specs) {
    SCOPED_TRACE(spec.source);
    const auto grammar = compile_grammar(spec, trie);
    ASSERT_TRUE(grammar) << grammar.error().to_string();
    for (uint64_t seed = 0; seed < 6; ++seed) expect_exact_masks(*grammar, vocab, seed);
    if (HasFailure()) return;
  }
}

TEST(Matcher, TheFastPathForStringsChangesNothing) {
  // The same language with and without a state that keeps string insides: [^"]* inside quotes and a
  // form whose states alternate, so that no state leads back to itself.
  const TestVocab vocab(4);
  const auto trie = std::make_shared<const TokenTrie>(vocab.view);
  const auto fast = compile_grammar({.source = "[^\"\\\\\\x00-\\x1f]*\""}, trie).value();
  Matcher matcher(fast);
  std::vector<uint32_t> words(static_cast<size_t>(matcher.words_per_mask()));
  ASSERT_TRUE(matcher.fill_mask(words));
  size_t inside = 0;
  for (TokenId t = 0; t < vocab.view.vocab_size(); ++t) {
    const bool bit = words[static_cast<size_t>(t) / 32] >> (t % 32) & 1;
    const bool slice = trie->string_inside_mask()[static_cast<size_t>(t) / 32] >> (t % 32) & 1;
    if (slice) {
      EXPECT_TRUE(bit) << t;
    }
    inside += slice;
  }
  EXPECT_GT(inside, 100u);
}

TEST(Matcher, AcceptsRealJsonAndRefusesWhatIsNot) {
  const TestVocab vocab(1);
  const auto trie = std::make_shared<const TokenTrie>(vocab.view);
  const auto grammar =
      compile_grammar({.kind = GrammarSpec::Kind::kAnyJson, .whitespace = Whitespace::kAny}, trie)
          .value();
  const auto accepts = [&](std::string_view text) {
    Matcher matcher(grammar);
    return matcher.accept_bytes(text) && matcher.can_end();
  };
  for (const char* good :
       {"0", "-1.5e+10", "\"\\ud83d\\ude00 \xF0\x9F\x98\x80\"", "[]", "{}", "[1, 2 , [ ] ]",
        "{\"a\" : {\"b\":null}, \"c\":[true]}", "\"\\u00e9\\n\""}) {
    EXPECT_TRUE(accepts(good)) << good;
  }
  for (const char* bad : {"", "01", "1.", "+1", "\"\n\"", "\"\\x\"", "[1,]", "{\"a\"}", "{a:1}",
                          "nul", "\"\\ud83d\"", "\"\\udc00\"", "[1]]", "\"\xff\""}) {
    EXPECT_FALSE(accepts(bad)) << bad;
  }
}

TEST(Matcher, NestingOfAnyDepthIsFollowed) {
  const TestVocab vocab(1);
  const auto grammar = compile_grammar({.kind = GrammarSpec::Kind::kAnyJson},
                                       std::make_shared<const TokenTrie>(vocab.view))
                           .value();
  Matcher matcher(grammar);
  const std::string open(5000, '['), close(5000, ']');
  EXPECT_TRUE(matcher.accept_bytes(open));
  EXPECT_TRUE(matcher.accept_bytes(close));
  EXPECT_TRUE(matcher.can_end());
  EXPECT_FALSE(matcher.accept_bytes("]"));
}

TEST(Matcher, LimitsAreErrorsAndNotStalls) {
  const TestVocab vocab(1);
  const auto trie = std::make_shared<const TokenTrie>(vocab.view);
  const auto huge = compile_grammar({.source = "((a{1000}){1000}){1000}"}, trie);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code(), StatusCode::kResourceExhausted);
  for (const char* source : {"(a?){10000}", "(a*){10000}", "((a?){100}b?){50}"}) {
    SCOPED_TRACE(source);
    const auto made = compile_grammar({.source = source}, trie);
    ASSERT_TRUE(made) << made.error().to_string();
    EXPECT_LT((*made)->whole_network().byte_edges.size(), 300'000u);
    Matcher matcher(*made);
    EXPECT_TRUE(matcher.accept_bytes("aaa") && matcher.can_end());
  }
  const auto nothing = compile_grammar({.source = "a[]"}, trie);
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code(), StatusCode::kInvalidArgument);

  GrammarLimits hasty;
  hasty.compile_seconds_max = 0;
  const auto late = compile_grammar({.kind = GrammarSpec::Kind::kAnyJson}, trie, hasty);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), StatusCode::kResourceExhausted);

  GrammarLimits tight;
  tight.earley_sets_max = 50;
  const auto grammar = compile_grammar({.kind = GrammarSpec::Kind::kAnyJson}, trie, tight).value();
  Matcher matcher(grammar);
  EXPECT_FALSE(matcher.accept_bytes(std::string(1000, '[')));
  EXPECT_TRUE(matcher.exhausted());
}

// A text at thousands of positions at once: neither a token nor a mask may take longer than its
// turn.
TEST(Matcher, AMaskAndATokenEndWithTheirWork) {
  const TestVocab vocab(1);
  const auto trie = std::make_shared<const TokenTrie>(vocab.view);
  const GrammarSpec spec{.source = "([a-z]?[0-9]?){1000}!"};
  const auto filled = [&](size_t turn_max) {
    Matcher matcher(compile_grammar(spec, trie, {.earley_items_per_call_max = turn_max}).value());
    EXPECT_TRUE(matcher.accept_bytes("a1"));
    std::vector<uint32_t> words(static_cast<size_t>(matcher.words_per_mask()));
    matcher.fill_mask(words);
    return std::pair(matcher.exhausted(), words);
  };
  const auto [ended, nothing] = filled(20'000);
  EXPECT_TRUE(ended);
  EXPECT_TRUE(std::ranges::all_of(nothing, [](uint32_t word) { return word == 0; }));
  const auto [none_ended, all] = filled(2'000'000);
  EXPECT_FALSE(none_ended);
  EXPECT_FALSE(std::ranges::all_of(all, [](uint32_t word) { return word == 0; }));
  // Turn by turn a text may take any amount.
  Matcher matcher(compile_grammar(spec, trie, {.earley_items_per_call_max = 20'000}).value());
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(matcher.accept_bytes(i % 2 == 0 ? "a" : "1")) << i;
  EXPECT_FALSE(matcher.exhausted());
  matcher.accept_bytes(std::string(690, '1'));
  EXPECT_TRUE(matcher.exhausted());
}

TEST(Fuzz, NoSourceCrashesTheParsers) {
  const std::string alphabet = "ab|()[]{}*+?^$\\.-,0123dwspx\"::= \nroot#u{\xC3\xA9";
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed);
    std::string text;
    for (auto n = rng.between(0, 24); n > 0; --n) text += alphabet[rng.below(alphabet.size())];
    GrammarLimits limits;
    limits.nodes_max = 20000;
    for (const std::string& source : {text, "root ::= " + text}) {
      Ir ir;
      const RuleId root = ir.rules().add("regex root");
      if (const auto body = parse_regex(ir, source)) {
        ir.rules().set_body(root, *body);
        (void)build_network(ir, root, limits);
      }
      if (const auto rule = parse_ebnf(ir, source)) (void)build_network(ir, *rule, limits);
    }
  }
}

}  // namespace
}  // namespace espalier::grammar
