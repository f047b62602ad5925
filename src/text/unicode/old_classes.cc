#include "text/unicode/old_classes.h"

#include <algorithm>
#include <iterator>
#include <span>

namespace espalier {
namespace {

struct CodeRange {
  char32_t first, last;
};

#include "text/unicode/old_classes.inc"

bool in(std::span<const CodeRange> ranges, char32_t code) {
  const auto after = std::upper_bound(
      ranges.begin(), ranges.end(), code,
      [](char32_t wanted, const CodeRange& range) { return wanted < range.first; });
  return after != ranges.begin() && code <= std::prev(after)->last;
}

}  // namespace

bool is_old_other(char32_t code) { return in(kOldOtherRanges, code); }
bool is_old_nonspacing(char32_t code) { return in(kOldNonspacingRanges, code); }
bool is_old_mark(char32_t code) { return in(kOldMarksRanges, code); }
bool is_old_combining(char32_t code) { return in(kOldCombiningRanges, code); }
bool is_late_decomposing(char32_t code) { return in(kLateDecomposingRanges, code); }

bool is_old_punctuation(char32_t code) {
  if (code >= 0x80) return in(kOldPunctuationRanges, code);
  return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') ||
         (code >= '[' && code <= '`') || (code >= '{' && code <= '~');
}

}  // namespace espalier
