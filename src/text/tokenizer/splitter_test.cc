// The splitters written by hand against the expressions they stand for, run by PCRE2.
#include "text/tokenizer/splitter.h"

#include <gtest/gtest.h>

#include <map>

#include "text/regex/pcre.h"
#include "text/testing/random_text.h"
#include "text/unicode/char_class.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

constexpr std::string_view kPatterns[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

PcreRegex compile(std::string_view pattern) {
  return PcreRegex::compile(oniguruma_to_pcre2(pattern).value()).value();
}

// PCRE2's Unicode is older than ours: characters that it sees otherwise are taken out of the texts.
class SameClasses {
 public:
  SameClasses() {
    const std::pair<std::string_view, uint8_t> kinds[] = {{"[\\p{Lu}\\p{Lt}]", kUpper},
                                                          {"\\p{Ll}", kLower},
                                                          {"[\\p{Lm}\\p{Lo}]", kOtherLetter},
                                                          {"\\p{M}", kMark},
                                                          {"\\p{Nd}", kDecimal},
                                                          {"[\\p{Nl}\\p{No}]", kOtherNumber},
                                                          {"\\s", kSpace}};
    for (const auto& [pattern, bits] : kinds) regexes_.emplace_back(compile(pattern), bits);
  }
  bool agree(char32_t code) {
    if (const auto it = known_.find(code); it != known_.end()) return it->second;
    std::string text;
    append_utf8(code, text);
    uint8_t bits = kOther;
    for (const auto& [regex, bit] : regexes_) {
      if (PcreRegex::Search(regex, text).find(0)) bits |= bit;
    }
    const bool same = bits == (classes_.of(code) & ~kPunctuation);
    known_[code] = same;
    return same;
  }
  std::string keep_agreed(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size();) {
      const Utf8Char c = decode_utf8(text, i);
      if (agree(c.code)) out += text.substr(i, c.size);
      i += c.size;
    }
    return out;
  }

 private:
  CharClasses classes_;
  std::vector<std::pair<PcreRegex, uint8_t>> regexes_;
  std::map<char32_t, bool> known_;
};

TEST(Splitter, EqualsItsExpressionOnRandomText) {
  constexpr uint64_t kSeed = 20;
  Rng rng(kSeed);
  SameClasses same;
  std::vector<PcreRegex> regexes;
  for (const std::string_view pattern : kPatterns) regexes.push_back(compile(pattern));
  for (int round = 0; round < 3000; ++round) {
    const std::string text =
        same.keep_agreed(random_text(rng, static_cast<int>(rng.between(1, 24))));
    for (size_t p = 0; p < regexes.size(); ++p) {
      const SplitRules rules = known_split_rules(kPatterns[p]).value();
      PcreRegex::Search search(regexes[p], text);
      for (size_t begin = 0; begin < text.size();) {
        const std::optional<PcreRegex::Match> match = search.find(begin);
        ASSERT_TRUE(match) << "pattern " << p << " seed " << kSeed << " round " << round;
        ASSERT_EQ(match->begin, begin);
        ASSERT_EQ(next_word_end(rules, text, begin), match->end)
            << "pattern " << p << " seed " << kSeed << " round " << round << " at " << begin
            << " of '" << text << "'";
        begin = match->end;
      }
    }
  }
}

TEST(Splitter, InvalidUtf8IsSymbols) {
  const SplitRules rules = known_split_rules(kPatterns[1]).value();
  EXPECT_EQ(next_word_end(rules,
                          "\xFF\xFE"
                          "a",
                          0),
            2u);
  EXPECT_EQ(next_word_end(rules, "ab\xE4\xBD", 0), 2u);
}

TEST(Splitter, OtherExpressionsAreNotKnown) {
  EXPECT_FALSE(known_split_rules(R"(\p{L}+)").has_value());
}

std::string parts_text(SplitBehavior behavior, std::string_view text, char delimiter) {
  std::vector<SplitPart> parts;
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    if (text[i] != delimiter) end = std::min(text.find(delimiter, i), text.size());
    parts.push_back({i, end, text[i] == delimiter});
    i = end;
  }
  apply_split_behavior(behavior, parts);
  std::string out;
  for (const SplitPart& part : parts) {
    out.append("[").append(text.substr(part.begin, part.end - part.begin)).append("]");
  }
  return out;
}

TEST(Splitter, Behaviors) {
  const std::string_view text = "the-final--countdown";
  EXPECT_EQ(parts_text(SplitBehavior::kRemoved, text, '-'), "[the][final][countdown]");
  EXPECT_EQ(parts_text(SplitBehavior::kIsolated, text, '-'), "[the][-][final][-][-][countdown]");
  EXPECT_EQ(parts_text(SplitBehavior::kMergedWithPrevious, text, '-'),
            "[the-][final-][-][countdown]");
  EXPECT_EQ(parts_text(SplitBehavior::kMergedWithNext, text, '-'), "[the][-final][-][-countdown]");
  EXPECT_EQ(parts_text(SplitBehavior::kContiguous, text, '-'), "[the][-][final][--][countdown]");
}

TEST(Oniguruma, EscapesMeanUnicode) {
  const auto matches = [](std::string_view pattern, std::string_view text) {
    return PcreRegex::Search(compile(pattern), text).find(0).has_value();
  };
  EXPECT_TRUE(matches(R"(^\s$)", "\xC2\x85"));
  EXPECT_FALSE(matches(R"(^\s$)", "\xE1\xA0\x8E"));  // U+180E is no white space since Unicode 6.3
  EXPECT_TRUE(matches(R"(^[^\S\n]$)", " "));
  EXPECT_TRUE(matches(R"(^\w$)", "\xCC\x81"));
  EXPECT_TRUE(matches(R"(^\h+$)", "0aF"));
  EXPECT_FALSE(oniguruma_to_pcre2("[a[bc]]").has_value());
  EXPECT_FALSE(oniguruma_to_pcre2("[a-z&&[^b]]").has_value());
}

}  // namespace
}  // namespace espalier
