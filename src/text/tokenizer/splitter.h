// Cuts text into words before byte pairs are merged: by hand, in linear time, for the expressions
// that popular models use; by PCRE2 for any other. Pure; thread-safe. Words are stated as byte
// ranges of the text, which stays the caller's.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier {

// A part of a text; the parts cover it, in order.
struct SplitPart {
  size_t begin = 0, end = 0;  // bytes
  bool is_match = false;
};

// The families of expressions with a hand-written splitter, named by the models that introduced
// them.
//   gpt2:   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//   cl100k: (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
//             | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+      (Qwen 2: \p{N})
//   o200k:  words by case, contractions at their end                   (Tekken: none, \p{N})
struct SplitRules {
  enum class Family { kGpt2, kCl100k, kO200k };
  Family family = Family::kGpt2;
  int digits_max = 0;               // of one number; 0: no limit
  bool contractions = true;         // 's and the like
  bool marks_are_letters = false;   // cl100k with [\p{L}\p{M}] for \p{L} (Qwen 3.5)
  bool slash_ends_symbols = false;  // o200k: [\r\n/]* after symbols
  bool whole_end_spaces = false;    // \s++$ comes first: white space that ends the text is one word
};

// The rules of an expression that has a hand-written splitter; nothing for any other.
std::optional<SplitRules> known_split_rules(std::string_view pattern);

// The end of the word that begins at `begin` (a character's start, before the end of the text).
// Invalid UTF-8 counts as symbols.
size_t next_word_end(const SplitRules& rules, std::string_view text, size_t begin);

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Merges or drops parts as Hugging Face's Split does with its delimiters (the matches). The parts
// that are left are in order; those removed are missing.
void apply_split_behavior(SplitBehavior behavior, std::vector<SplitPart>& parts);

}  // namespace espalier
