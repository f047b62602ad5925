#include "text/tokenizer/normalizer.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <boost/json.hpp>
#include <cstdlib>

#include "base/rng.h"
#include "text/testing/random_text.h"
#include "text/unicode/old_classes.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

// utf8proc's own normalisation of the whole text, which is slow for runs of marks.
std::string by_utf8proc(const std::string& text, UnicodeForm form) {
  int options = UTF8PROC_STABLE | UTF8PROC_NULLTERM;
  const bool composes = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  options |= composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) options |= UTF8PROC_COMPAT;
  utf8proc_uint8_t* result = nullptr;
  utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()), 0, &result,
               static_cast<utf8proc_option_t>(options));
  std::string out(reinterpret_cast<const char*>(result));
  std::free(result);
  return out;
}

// What the reference's tables do not know, and ours so leave alone.
std::string without_late_characters(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    const auto code = static_cast<utf8proc_int32_t>(c.code);
    const bool late =
        is_late_decomposing(c.code) ||
        (utf8proc_get_property(code)->combining_class != 0 && !is_old_combining(c.code));
    if (!late) out += text.substr(i, c.size);
    i += c.size;
  }
  return out;
}

TEST(Normalizer, CharactersAfterUnicode9StandAlone) {
  // U+1DF6 (2017) has a combining class; to the reference it is like a letter.
  const std::string text = "a\xE1\xB7\xB6\xCC\xA3";
  EXPECT_EQ(normalize_unicode(text, UnicodeForm::kNfc), text);
  EXPECT_EQ(normalize_unicode("\xE3\x8B\xBF", UnicodeForm::kNfkc), "\xE3\x8B\xBF");  // 2019
}

TEST(Normalizer, UnicodeFormsEqualTheLibrarysOnRandomText) {
  constexpr uint64_t kSeed = 40;
  Rng rng(kSeed);
  for (int round = 0; round < 4000; ++round) {
    std::string text = random_text(rng, 12);
    for (uint64_t n = rng.below(6); n > 0; --n) {  // what composes
      append_utf8("aeouAO\x01"[rng.below(6)], text);
      append_utf8(static_cast<char32_t>(0x300 + rng.below(0x30)), text);
      append_utf8(static_cast<char32_t>((rng.below(2) != 0 ? 0x1100 : 0x1160) + rng.below(0x20)),
                  text);
      append_utf8(static_cast<char32_t>(0x900 + rng.below(0x480)), text);
    }
    std::erase(text, '\0');
    text = without_late_characters(text);
    for (const UnicodeForm form :
         {UnicodeForm::kNfc, UnicodeForm::kNfd, UnicodeForm::kNfkc, UnicodeForm::kNfkd}) {
      ASSERT_EQ(normalize_unicode(text, form), by_utf8proc(text, form))
          << "seed " << kSeed << " round " << round;
    }
  }
}

// The library's own ordering is quadratic here.
TEST(Normalizer, RunsOfMarksAreQuick) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";
  const std::string composed = normalize_unicode(text, UnicodeForm::kNfc);
  EXPECT_EQ(composed.size(), text.size());  // a and the dot below it make three bytes, as before
  EXPECT_TRUE(composed.starts_with("\xE1\xBA\xA1\xCC\xA3"));
}

TEST(Normalizer, StepsInOrder) {
  const auto parsed = Normalizer::parse(boost::json::parse(R"({"type": "Sequence", "normalizers": [
          {"type": "Strip"}, {"type": "Lowercase"}, {"type": "StripAccents"},
          {"type": "Replace", "pattern": {"Regex": "[0-9]+"}, "content": "#"},
          {"type": "Replace", "pattern": {"String": " "}, "content": "_"},
          {"type": "Prepend", "prepend": ">"}]})"),
                                        "normalizer");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message();
  EXPECT_EQ(parsed->apply(" \xE3\x80\x80"
                          "A e\xCC\x81 12 3 \xC4\xB0 "),
            ">a_e_#_#_i");
  EXPECT_EQ(parsed->apply(""), "");
}

}  // namespace
}  // namespace espalier
