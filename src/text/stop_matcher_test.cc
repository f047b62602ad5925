// StopMatcher against a search of the whole text after each push.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <re2/re2.h>

#include <chrono>
#include <ctime>

#include "base/rng.h"
#include "text/detokenizer.h"

namespace espalier {
namespace {

struct Outcome {
  std::string text;
  std::optional<std::string> matched;
  std::string matched_text;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome run(const std::vector<std::string>& stops, const std::vector<std::string>& regexes,
            const std::vector<std::string>& pushes) {
  auto matcher = StopMatcher::create(stops, regexes);
  EXPECT_TRUE(matcher.has_value());
  Outcome outcome;
  for (const std::string& push : pushes) {
    StopMatcher fork = matcher->fork();
    const StopMatcher::Output output = matcher->push(push);
    EXPECT_EQ(fork.push(push).text, output.text);
    *matcher = std::move(fork);
    outcome.text += output.text;
    if (!output.matched) continue;
    outcome.matched = output.matched;
    outcome.matched_text = output.matched_text;
    EXPECT_EQ(matcher->flush(), "");
    return outcome;
  }
  outcome.text += matcher->flush();
  return outcome;
}

// The same by looking at everything again after each push.
Outcome naive(const std::vector<std::string>& stops, const std::vector<std::string>& regexes,
              const std::vector<std::string>& pushes) {
  std::string all;
  for (const std::string& push : pushes) {
    all += push;
    size_t begin = std::string::npos, size = 0;
    const std::string* what = nullptr;
    for (const std::string& stop : stops) {
      const size_t at = all.find(stop);
      if (at < begin || (at == begin && at != std::string::npos && stop.size() > size)) {
        begin = at;
        size = stop.size();
        what = &stop;
      }
    }
    const size_t stop_begin = begin;
    for (const std::string& pattern : regexes) {
      RE2::Options longest;
      longest.set_longest_match(true);
      const RE2 regex(pattern, longest);
      re2::StringPiece match;
      if (!regex.Match(all, 0, all.size(), RE2::UNANCHORED, &match, 1)) continue;
      const auto at = static_cast<size_t>(match.data() - all.data());
      const size_t length = match.size();
      if (at < begin || (at == begin && stop_begin != begin && length > size)) {
        begin = at;
        size = length;
        what = &pattern;
      }
    }
    if (what != nullptr) return {all.substr(0, begin), *what, all.substr(begin, size)};
  }
  return {all, std::nullopt, ""};
}

std::string random_word(Rng& rng, size_t size_max, std::string word = "") {
  for (uint64_t n = rng.below(size_max + 1); n > 0; --n) word += "aab\n"[rng.below(4)];
  return word;
}

std::vector<std::string> random_pushes(Rng& rng) {
  std::vector<std::string> pushes;
  for (uint64_t n = rng.below(14); n > 0; --n) pushes.push_back(random_word(rng, 4));
  return pushes;
}

TEST(StopMatcher, StringsEqualASearchOfTheWholeText) {
  constexpr uint64_t kSeed = 31;
  Rng rng(kSeed);
  int num_matched = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (uint64_t n = rng.below(4); n > 0; --n) stops.push_back(random_word(rng, 5, "a"));
    const std::vector<std::string> pushes = random_pushes(rng);
    const Outcome expected = naive(stops, {}, pushes);
    ASSERT_EQ(run(stops, {}, pushes), expected) << "seed " << kSeed << " round " << round;
    num_matched += expected.matched.has_value();
  }
  EXPECT_GT(num_matched, 5000);
}

TEST(StopMatcher, RegexesEqualASearchOfTheWholeText) {
  constexpr uint64_t kSeed = 32;
  Rng rng(kSeed);
  const std::vector<std::string> patterns = {"a+b",    "b\\na",  "(ab){2}", "aba*b",   "b{3,}",
                                             "\\n\\n", "a[^b]b", "bb|aab",  "\\bab$"};
  int num_matched = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> regexes, stops;
    for (uint64_t n = rng.between(1, 2); n > 0; --n) {
      regexes.push_back(patterns[rng.below(patterns.size())]);
    }
    if (rng.below(2) == 0) stops.push_back(random_word(rng, 5, "a"));
    const std::vector<std::string> pushes = random_pushes(rng);
    const Outcome expected = naive(stops, regexes, pushes);
    ASSERT_EQ(run(stops, regexes, pushes), expected)
        << "seed " << kSeed << " round " << round << " " << regexes[0];
    num_matched += expected.matched.has_value();
  }
  EXPECT_GT(num_matched, 1000);
}

TEST(StopMatcher, HoldsBackOnlyWhatCouldBeginAStop) {
  auto matcher = StopMatcher::create({"\n\nUser:"}, {}).value();
  EXPECT_EQ(matcher.push("Hello\n").text, "Hello");
  EXPECT_EQ(matcher.push("there\n\nUs").text, "\nthere");
  EXPECT_EQ(matcher.push("ual").text, "\n\nUsual");
  EXPECT_EQ(matcher.push("\n\nUser").text, "");
  EXPECT_EQ(matcher.flush(), "\n\nUser");
}

TEST(StopMatcher, ARegexHoldsBackAtMostItsWindow) {
  auto matcher = StopMatcher::create({}, {"a[^z]*z"}).value();
  size_t num_shown = 0;
  for (size_t i = 0; i < StopMatcher::kRegexWindow; ++i) {
    num_shown += matcher.push(i == 0 ? "a" : "b").text.size();
  }
  EXPECT_EQ(num_shown, 0u);
  num_shown += matcher.push("bb").text.size() + matcher.push("b").text.size();
  EXPECT_EQ(num_shown, 3u);
  const StopMatcher::Output end = matcher.push("z");
  EXPECT_EQ(end.matched, "a[^z]*z");
  EXPECT_EQ(end.text, "") << "what is pending belongs to the match";
  EXPECT_EQ(end.matched_text.size(), StopMatcher::kRegexWindow + 1);
}

TEST(StopMatcher, CatastrophicPatternsEnd) {
  const auto start = std::chrono::steady_clock::now();
  auto matcher = StopMatcher::create({}, {"(a+)+$x", "(a|aa)+y", "(.*)*z"}).value();
  size_t num_shown = 0;
  for (int i = 0; i < 300; ++i) num_shown += matcher.push("aaaa").text.size();
  EXPECT_EQ(num_shown + matcher.flush().size(), 1200u);
  // Without limits this does not end in a lifetime.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// As many as there may be cost the scheduler's thread little: they share their steps, and what
// fails again and again is given up, while the others go on.
TEST(StopMatcher, ManyCatastrophicPatternsCostLittle) {
  std::vector<std::string> patterns;
  for (size_t i = 1; i < StopMatcher::kStopsMax; ++i)
    patterns.push_back(fmt::format("(\\w+\\s?)*z{}", i));
  patterns.push_back("end[0-9]");
  auto matcher = StopMatcher::create({}, patterns).value();
  const std::clock_t start = std::clock();
  for (int i = 0; i < 300; ++i) matcher.push("more ");
  EXPECT_EQ(matcher.push("end").matched, std::nullopt);
  EXPECT_EQ(matcher.push("7").matched, "end[0-9]");
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 5);  // 19 without
}

TEST(StopMatcher, LongStopsOnLongRunsAreLinear) {
  std::string stop(StopMatcher::kStopBytesMax - 1, 'a');
  stop += 'b';
  auto matcher = StopMatcher::create({stop}, {}).value();
  size_t num_shown = 0;
  for (int i = 0; i < 100000; ++i) num_shown += matcher.push("aa").text.size();
  EXPECT_EQ(num_shown, 200000 - (StopMatcher::kStopBytesMax - 1));
  EXPECT_EQ(matcher.push("b").matched, stop);
}

TEST(StopMatcher, RefusesWhatItCannotDo) {
  EXPECT_EQ(StopMatcher::create({std::string(5000, 'a')}, {}).error().code(),
            StatusCode::kInvalidArgument);
  const auto unclosed = StopMatcher::create({}, {"fine", "(unclosed"});
  ASSERT_FALSE(unclosed.has_value());
  EXPECT_NE(unclosed.error().message().find("(unclosed"), std::string::npos);
  EXPECT_FALSE(StopMatcher::create({"\xFF"}, {}).has_value());
  EXPECT_FALSE(StopMatcher::create(std::vector<std::string>(300, "x"), {}).has_value());
  EXPECT_TRUE(StopMatcher::create({""}, {""}).value().push("text").text == "text");
}

}  // namespace
}  // namespace espalier
