// Compares patterns with look-aheads with PCRE2 on every small text, and checks the bounds on them.
#include "grammar/frontends/lookahead.h"

#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "grammar/automata/earley.h"
#include "grammar/frontends/regex.h"
#include "grammar/grammar.h"
#include "grammar/masks/test_vocabulary.h"

namespace espalier::grammar {
namespace {

std::vector<std::string> every_text(std::string_view alphabet, size_t length_max) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].size() == length_max) continue;
    for (const char c : alphabet) texts.push_back(texts[i] + c);
  }
  return texts;
}

class Pcre {
 public:
  Pcre(const std::string& pattern, bool search) {
    const std::string whole = search ? pattern : "(?:" + pattern + ")\\z";
    int code = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                          PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | (search ? 0 : PCRE2_ANCHORED), &code,
                          &offset, nullptr);
    EXPECT_NE(code_, nullptr) << pattern;
    data_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~Pcre() {
    pcre2_match_data_free(data_);
    pcre2_code_free(code_);
  }
  Pcre(const Pcre&) = delete;
  Pcre& operator=(const Pcre&) = delete;
  bool matches(const std::string& text) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data_,
                       nullptr) >= 0;
  }

 private:
  pcre2_code* code_ = nullptr;
  pcre2_match_data* data_ = nullptr;
};

// Counts patterns whose automaton is too large in `refused`.
void expect_as_pcre(const std::string& pattern, bool search, const std::vector<std::string>& texts,
                    int& refused) {
  SCOPED_TRACE(pattern);
  Ir ir;
  const auto body = parse_regex(ir, pattern, {.search = search, .encode = {}});
  if (!body && body.error().code() == StatusCode::kResourceExhausted) {
    ++refused;
    return;
  }
  ASSERT_TRUE(body) << body.error().to_string();
  const RuleId root = ir.rules().add("root");
  ir.rules().set_body(root, *body);
  const auto network = build_network(ir, root, {});
  Pcre pcre(pattern, search);
  if (!network) {
    for (const std::string& text : texts) ASSERT_FALSE(pcre.matches(text)) << text;
    return;
  }
  EarleyRecogniser earley(*network, {});
  for (const std::string& text : texts) {
    SetId set = earley.start();
    for (const char c : text) set = earley.step(set, static_cast<uint8_t>(c));
    ASSERT_EQ(earley.accepting(set), pcre.matches(text)) << "'" << text << "'";
  }
}

TEST(Lookahead, AgreesWithPcreOnEverySmallText) {
  const auto texts = every_text("abc", 6);
  int refused = 0;
  for (const char* pattern :
       {"^((?!ab).)*$", "^(?!ab)(?!ba).*$", "^(?=.*a)(?=.*b).{2,4}$", "a(?=b)[a-c]*",
        "(?:a(?!b)|b(?=c).)*", "^(?=a.*c$).*$", "(?=^ab).*", "[ab]*(?!c).", "(?!$)a*",
        "(?:(?!aa|bb)[abc]){2,5}", "^(?=(?!ab)a).+$", "(?=a(?=b))ab.*", "(?:(?=a)ab)*",
        "^(?!.*(?:a{2}|c$)).*$", "a(?=b$)b", "(?!)", "(?=)a", "(?:b|(?!a).)*c"}) {
    for (const bool search : {false, true}) expect_as_pcre(pattern, search, texts, refused);
  }
  EXPECT_EQ(refused, 0);
}

// A random pattern of look-aheads, groups, repetitions and anchors.
std::string random_pattern(Rng& rng, int depth) {
  std::string out;
  const size_t parts = 1 + rng.below(3);
  for (size_t i = 0; i < parts; ++i) {
    const uint64_t kind = rng.below(depth > 0 ? 10 : 4);
    if (kind < 3) {
      out += "ab"[kind % 2];
    } else if (kind == 3) {
      out += ".";
    } else if (kind < 7) {
      out += (rng.below(2) == 0 ? "(?=" : "(?!") + random_pattern(rng, depth - 1) +
             (rng.below(4) == 0 ? "$)" : ")");
    } else {
      out += "(?:" + random_pattern(rng, depth - 1) + "|" + random_pattern(rng, depth - 1) + ")" +
             std::vector<std::string>{"", "*", "?", "{1,2}"}[rng.below(4)];
    }
  }
  return out;
}

TEST(Lookahead, AgreesWithPcreOnRandomPatterns) {
  constexpr uint64_t kSeed = 17;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  const auto texts = every_text("ab", 6);
  int refused = 0;
  for (int i = 0; i < 400 && !testing::Test::HasFailure(); ++i) {
    const std::string pattern = random_pattern(rng, 2);
    expect_as_pcre(pattern, rng.below(2) == 0, texts, refused);
  }
  EXPECT_LE(refused, 4);
}

TEST(Lookahead, ConstrainsStringsOfSchemas) {
  const auto trie = made_up_vocabulary(3);
  const auto grammar = compile_grammar(
      {.kind = GrammarSpec::Kind::kJsonSchema,
       .source = R"({"type":"string","pattern":"^((?!key|\\n).)+$","minLength":2,"maxLength":9})",
       .choices = {}},
      trie);
  ASSERT_TRUE(grammar) << grammar.error().to_string();
  for (const auto& [text, expected] :
       std::initializer_list<std::pair<const char*, bool>>{{"\"ke\"", true},
                                                           {"\"key\"", false},
                                                           {"\"akey\"", false},
                                                           {"\"kkeeyy\"", true},
                                                           {"\"k\"", false},
                                                           {"\"kkkkkkkkkk\"", false},
                                                           {"\"na\\n\"", false},
                                                           {"\"na\\\\\"", true}}) {
    Matcher matcher(*grammar);
    EXPECT_EQ(matcher.accept_bytes(text) && matcher.can_end(), expected) << text;
  }
}

TEST(Lookahead, IsBounded) {
  Ir ir;
  const auto made = parse_regex(ir, "^(?=.*a.{12}b)(?=.*b.{12}a)(?!.*c.{11}c).*$");
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(made.error().message().find("look-aheads need more than"), std::string::npos)
      << made.error().message();
}

}  // namespace
}  // namespace espalier::grammar
