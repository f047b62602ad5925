#include "text/tokenizer/splitter.h"

#include <algorithm>

#include "text/unicode/char_class.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

constexpr char32_t kLongS = 0x17F;  // folds to s

// What is at a position of the text; `size` 0 at its end.
struct Here {
  char32_t code = 0;
  uint32_t size = 0;
  uint8_t classes = 0;
  bool is(uint8_t wanted) const { return (classes & wanted) != 0; }
  bool at_end() const { return size == 0; }
  bool newline() const { return size == 1 && (code == '\n' || code == '\r'); }
};

class Scanner {
 public:
  Scanner(const SplitRules& rules, std::string_view text) : rules_(rules), text_(text) {}

  size_t word_end(size_t begin) const {
    switch (rules_.family) {
      case SplitRules::Family::kGpt2:
        return gpt2_end(begin);
      case SplitRules::Family::kCl100k:
        return cl100k_end(begin);
      case SplitRules::Family::kO200k:
        return o200k_end(begin);
    }
    return text_.size();
  }

 private:
  Here at(size_t position) const {
    if (position >= text_.size()) return {};
    const auto byte = static_cast<uint8_t>(text_[position]);
    if (byte < 0x80) return {byte, 1, classes_.of(byte)};
    const Utf8Char c = decode_utf8(text_, position);
    return {c.code, c.size, c.valid ? classes_.of(c.code) : static_cast<uint8_t>(kOther)};
  }

  size_t run_of(uint8_t classes, size_t position) const {
    for (Here c = at(position); c.is(classes); c = at(position)) position += c.size;
    return position;
  }
  // [^\s\p{L}\p{N}]+, without the marks where they are letters.
  uint8_t not_symbol() const {
    return kSpace | kLetter | kNumber | (rules_.marks_are_letters ? kMark : 0);
  }
  bool is_symbol(const Here& c) const { return !c.at_end() && !c.is(not_symbol()); }
  size_t run_of_symbols(size_t position) const {
    for (Here c = at(position); is_symbol(c); c = at(position)) position += c.size;
    return position;
  }

  // At most digits_max numbers.
  size_t number_end(size_t position) const {
    if (rules_.digits_max == 0) return run_of(kNumber, position);
    for (int i = 0; i < rules_.digits_max; ++i) {
      const Here c = at(position);
      if (!c.is(kNumber)) break;
      position += c.size;
    }
    return position;
  }

  // 's|'t|'re|'ve|'m|'ll|'d at `position`, in any case when `fold`; else `position`.
  size_t contraction_end(size_t position, bool fold) const {
    if (at(position).code != '\'') return position;
    const auto lower = [&](const Here& c) -> char32_t {
      if (!fold) return c.code;
      if (c.code == kLongS) return 's';
      return c.code >= 'A' && c.code <= 'Z' ? c.code + 32 : c.code;
    };
    const Here first = at(position + 1);
    const char32_t a = lower(first);
    const size_t after_first = position + 1 + first.size;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return after_first;
    const char32_t b = lower(at(after_first));
    const bool two = (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l');
    return two ? after_first + 1 : position;
  }

  // \s*[\r\n]+ (where `newlines`), \s+(?!\S), \s+ at a space.
  size_t space_end(size_t begin, bool newlines) const {
    size_t position = begin, last_begin = begin, after_newline = begin;
    for (Here c = at(position); c.is(kSpace); c = at(position)) {
      last_begin = position;
      position += c.size;
      if (c.newline()) after_newline = position;
    }
    if (rules_.whole_end_spaces && position == text_.size()) return position;
    if (newlines && after_newline > begin) return after_newline;
    // Before a word the last space is left to it, unless it is the only one.
    return position < text_.size() && last_begin > begin ? last_begin : position;
  }

  size_t gpt2_end(size_t begin) const {
    if (const size_t end = contraction_end(begin, /*fold=*/false); end > begin) return end;
    const Here first = at(begin);
    const size_t word = first.code == ' ' ? begin + 1 : begin;
    const Here c = at(word);
    if (c.is(kLetter)) return run_of(kLetter, word);
    if (c.is(kNumber)) return run_of(kNumber, word);
    if (is_symbol(c)) return run_of_symbols(word);
    return space_end(begin, /*newlines=*/false);
  }

  size_t cl100k_end(size_t begin) const {
    if (rules_.contractions) {
      if (const size_t end = contraction_end(begin, /*fold=*/true); end > begin) return end;
    }
    const uint8_t letters = kLetter | (rules_.marks_are_letters ? kMark : 0);
    const Here first = at(begin);
    // The optional character before a word may be a mark itself; it is then tried as such first,
    // with the same end.
    if (first.is(letters)) return run_of(letters, begin + first.size);
    if (!first.newline() && !first.is(kNumber) && at(begin + first.size).is(letters)) {
      return run_of(letters, begin + first.size);
    }
    return after_words(begin, first);
  }

  size_t o200k_end(size_t begin) const {
    const Here first = at(begin);
    const bool prefix = !first.newline() && !first.is(kLetter | kNumber);
    const size_t after_prefix = begin + first.size;
    size_t end = begin;
    if (prefix) end = lower_word_end(after_prefix);
    if (end <= after_prefix) end = lower_word_end(begin);
    if (end <= begin && prefix) {
      end = run_of(kUpperSet, after_prefix);
      if (end == after_prefix) end = begin;
    }
    if (end <= begin) end = run_of(kUpperSet, begin);
    if (end <= begin) return after_words(begin, first);
    return rules_.contractions ? std::max(end, contraction_end(end, /*fold=*/true)) : end;
  }

  static constexpr uint8_t kUpperSet = kUpper | kOtherLetter | kMark;
  static constexpr uint8_t kLowerSet = kLower | kOtherLetter | kMark;

  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at `begin`; `begin` when there is
  // none. The first part gives back as little as the second needs: one character that both take.
  size_t lower_word_end(size_t begin) const {
    size_t position = begin, after_both = begin;
    for (Here c = at(position); c.is(kUpperSet); c = at(position)) {
      position += c.size;
      if (c.is(kLowerSet)) after_both = position;
    }
    if (at(position).is(kLowerSet)) return run_of(kLowerSet, position);
    return after_both;
  }

  // What follows the alternatives for words in cl100k and o200k.
  size_t after_words(size_t begin, const Here& first) const {
    if (first.is(kNumber)) return number_end(begin);
    const size_t symbols = first.code == ' ' ? begin + 1 : begin;
    if (is_symbol(at(symbols))) {
      size_t end = run_of_symbols(symbols);
      while (end < text_.size() && (text_[end] == '\r' || text_[end] == '\n' ||
                                    (rules_.slash_ends_symbols && text_[end] == '/'))) {
        ++end;
      }
      return end;
    }
    return space_end(begin, /*newlines=*/true);
  }

  const SplitRules& rules_;
  std::string_view text_;
  CharClasses classes_;
};

}  // namespace

std::optional<SplitRules> known_split_rules(std::string_view pattern) {
  using Family = SplitRules::Family;
  struct Known {
    std::string_view pattern;
    SplitRules rules;
  };
  static constexpr Known kKnown[] = {
      {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
       {Family::kGpt2}},
      {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
       {Family::kGpt2}},
      // tiktoken's own GPT-2 and cl100k.
      {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)",
       {.family = Family::kGpt2, .whole_end_spaces = true}},
      {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
       {.family = Family::kCl100k, .digits_max = 3, .whole_end_spaces = true}},
      // Llama 3; cl100k in tokenizer.json files.
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       {Family::kCl100k, 3}},
      // Qwen 2, 2.5, 3.
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       {Family::kCl100k, 1}},
      // Qwen 3.5.
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       {Family::kCl100k, 1, true, true}},
      // o200k; gpt-oss.
      {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       {Family::kO200k, 3, true, false, true}},
      // Tekken: Mistral Nemo and later.
      {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       {Family::kO200k, 1, false, false, true}},
  };
  for (const Known& known : kKnown) {
    if (known.pattern == pattern) return known.rules;
  }
  return std::nullopt;
}

size_t next_word_end(const SplitRules& rules, std::string_view text, size_t begin) {
  return Scanner(rules, text).word_end(begin);
}

void apply_split_behavior(SplitBehavior behavior, std::vector<SplitPart>& parts) {
  if (behavior == SplitBehavior::kIsolated) return;
  if (behavior == SplitBehavior::kRemoved) {
    std::erase_if(parts, [](const SplitPart& part) { return part.is_match; });
    return;
  }
  // Each part joins the one before it in reading order (backwards for MergedWithNext) or not.
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) std::reverse(parts.begin(), parts.end());
  std::vector<SplitPart> merged;
  bool previous_match = false;
  for (const SplitPart& part : parts) {
    const bool joins = behavior == SplitBehavior::kContiguous ? part.is_match == previous_match
                                                              : part.is_match && !previous_match;
    if (joins && !merged.empty()) {
      merged.back().begin = std::min(merged.back().begin, part.begin);
      merged.back().end = std::max(merged.back().end, part.end);
    } else {
      merged.push_back(part);
    }
    previous_match = part.is_match;
  }
  if (backwards) std::reverse(merged.begin(), merged.end());
  parts = std::move(merged);
}

}  // namespace espalier
