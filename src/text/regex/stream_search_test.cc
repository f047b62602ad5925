// StreamSearch against RE2, which searches the whole text after each push.
#include "text/regex/stream_search.h"

#include <gtest/gtest.h>
#include <re2/re2.h>

#include "base/rng.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

constexpr int64_t kMuchWork = int64_t{1} << 40;

std::optional<StreamSearch::Match> naive(const RE2& regex, const std::string& text) {
  for (size_t begin = 0; begin < text.size(); begin += decode_utf8(text, begin).size) {
    re2::StringPiece found;
    if (regex.Match(text, begin, text.size(), RE2::ANCHOR_START, &found, 1) && !found.empty())
      return StreamSearch::Match{begin, begin + found.size(), 0};
  }
  return std::nullopt;
}

RE2::Options longest() {
  RE2::Options options;
  options.set_longest_match(true);
  options.set_log_errors(false);
  return options;
}

// RE2 before 2022-12 forgets the case folding of a literal beside the same letter without it, as in
// a|(?i:A); so the letter of (?i:z) stands nowhere else.
std::string random_pattern(Rng& rng, int depth) {
  constexpr const char* kAtoms[] = {"a",       "b",        "\\n",    "é",    ".",
                                    "[ab]",    "[^a]",     "\\w",    "\\W",  "\\b",
                                    "\\B",     "^",        "$",      "\\pL", "(?i:z)",
                                    "(?m:^)",  "(?m:$)",   "(?s:.)", "\\z",  "[[:alpha:]é]",
                                    "\\x{e9}", "\\Qa.\\E", " "};
  if (depth == 0 || rng.below(3) == 0) return kAtoms[rng.below(std::size(kAtoms))];
  switch (rng.below(4)) {
    case 0:
      return random_pattern(rng, depth - 1) + random_pattern(rng, depth - 1);
    case 1:
      return "(" + random_pattern(rng, depth - 1) + "|" + random_pattern(rng, depth - 1) + ")";
    case 2: {
      constexpr const char* kRepeats[] = {"*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"};
      return "(?:" + random_pattern(rng, depth - 1) + ")" +
             kRepeats[rng.below(std::size(kRepeats))];
    }
    default:
      return random_pattern(rng, depth - 1) + random_pattern(rng, depth - 1) +
             random_pattern(rng, depth - 1);
  }
}

std::string random_text(Rng& rng) {
  constexpr const char* kChars[] = {"a", "a", "b", "b", "Z", "\n", "é", ".", " "};
  std::string text;
  for (uint64_t n = rng.below(6); n > 0; --n) text += kChars[rng.below(std::size(kChars))];
  return text;
}

TEST(StreamSearch, EqualsRe2AfterEachPush) {
  constexpr uint64_t kSeed = 41;
  Rng rng(kSeed);
  int num_matched = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::vector<std::string> patterns = {random_pattern(rng, 3)};
    const RE2 reference(patterns[0], longest());
    const auto regex = StreamRegex::compile(patterns);
    ASSERT_EQ(regex.has_value(), reference.ok()) << patterns[0];
    if (!regex) continue;
    StreamSearch search(*regex);
    std::string all;
    for (int i = 0; i < 4; ++i) {
      const std::string text = random_text(rng);
      all += text;
      int64_t work = kMuchWork;
      ASSERT_EQ(search.read(text, work), text.size());
      const auto expected = naive(reference, all);
      const auto found = search.match(work);
      ASSERT_EQ(found.has_value(), expected.has_value())
          << "seed " << kSeed << " '" << patterns[0] << "' in '" << all << "'";
      if (!found) continue;
      ASSERT_EQ(found->begin, expected->begin) << "'" << patterns[0] << "' in '" << all << "'";
      ASSERT_EQ(found->end, expected->end) << "'" << patterns[0] << "' in '" << all << "'";
      ++num_matched;
      break;
    }
  }
  EXPECT_GT(num_matched, 5000);
}

// What is pending contains every match that a longer text has.
TEST(StreamSearch, WhatIsPendingBeginsBeforeEachMatchToCome) {
  constexpr uint64_t kSeed = 42;
  Rng rng(kSeed);
  int num_matched = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::vector<std::string> patterns = {random_pattern(rng, 3), random_pattern(rng, 2)};
    const auto regex = StreamRegex::compile(patterns);
    if (!regex) continue;
    StreamSearch search(*regex);
    int64_t work = kMuchWork;
    search.read(random_text(rng), work);
    if (search.match(work)) continue;
    const size_t pending = search.pending_begin().value_or(search.num_read());
    search.read(random_text(rng), work);
    const auto found = search.match(work);
    if (!found) continue;
    EXPECT_GE(found->begin, pending) << patterns[0] << " or " << patterns[1];
    ++num_matched;
  }
  EXPECT_GT(num_matched, 500);
}

TEST(StreamSearch, RefusesWhatIsNotLinearAndSaysWhy) {
  const auto why = [](const std::string& pattern) {
    const auto regex = StreamRegex::compile(std::vector<std::string>{"fine", pattern});
    return regex ? std::string() : regex.error().message();
  };
  for (const char* pattern : {"a(?=b)", "(?<!a)b", "(?!a)", "(?<=x)"})
    EXPECT_NE(why(pattern).find("look-around"), std::string::npos) << why(pattern);
  EXPECT_NE(why("(a)\\1").find("back-references"), std::string::npos) << why("(a)\\1");
  for (const char* pattern : {"(", ")", "a**", "[a", "[b-a]", "a{2,1}", "a{1001}", "\\", "\\xg",
                              "*", "(?P<>a)", "\\p{Nope}", "[[:nope:]]", "(?>a)", "a\\", "\xFF"}) {
    EXPECT_FALSE(RE2(pattern, longest()).ok()) << pattern;
    EXPECT_NE(why(pattern).find(pattern), std::string::npos) << pattern;
  }
  EXPECT_NE(why("((a{1000}){1000}){1000}").find("too large"), std::string::npos);
}

// States that a hostile expression multiplies are dropped, not kept; the answers stay exact.
TEST(StreamSearch, ManyStatesAreBoundedAndExact) {
  const std::vector<std::string> patterns = {"(a|b)*a(a|b){12}c"};
  const auto regex = StreamRegex::compile(patterns).value();
  Rng rng(43);
  StreamSearch search(regex), other(regex);
  std::string text;
  for (int i = 0; i < 60000; ++i) text += "ab"[rng.below(2)];
  text += "aaaaaaaaaaaaaac";
  int64_t work = kMuchWork;
  search.read(text, work);
  other.read("ab", work);
  ASSERT_TRUE(search.match(work).has_value());
  EXPECT_EQ(search.match(work)->end, text.size());
  EXPECT_FALSE(other.match(work).has_value());
  EXPECT_LT((kMuchWork - work) / static_cast<int64_t>(text.size()), 400) << "units a character";
}

TEST(StreamSearch, StopsReadingWhenItsWorkIsDone) {
  const auto regex = StreamRegex::compile(std::vector<std::string>{"x+y"}).value();
  StreamSearch search(regex);
  int64_t work = 40;
  const std::string text(1000, 'x');
  const size_t read = search.read(text, work);
  EXPECT_LT(read, text.size());
  EXPECT_LE(work, 0);
  work = kMuchWork;
  EXPECT_EQ(search.read(std::string_view(text).substr(read), work), text.size() - read);
  search.read("y", work);
  EXPECT_EQ(search.match(work)->end - search.match(work)->begin, 1001u);
}

}  // namespace
}  // namespace espalier
