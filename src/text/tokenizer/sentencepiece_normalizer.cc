#include "text/tokenizer/sentencepiece_normalizer.h"

#include "text/unicode/utf8.h"

namespace espalier {
namespace {

struct Prefix {
  std::string_view text;  // what stands for it
  size_t size = 0;        // bytes of the input
};

class PrefixNormalizer {
 public:
  PrefixNormalizer(const Charsmap& charsmap, const PieceTrie& user_defined)
      : charsmap_(charsmap), user_defined_(user_defined) {}

  // Of the text at `begin`: a user-defined symbol, the longest string that is replaced, or one
  // character.
  Prefix at(std::string_view text, size_t begin) const {
    if (!user_defined_.empty()) {
      const PieceTrie::Match match = user_defined_.longest(PieceTrie::kRoot, text, begin);
      if (match.size > 0) return {text.substr(begin, match.size), match.size};
    }
    if (!charsmap_.empty()) {
      const Charsmap::Match match = charsmap_.longest(text, begin);
      if (match.size > 0) return {match.replacement, match.size};
    }
    const Utf8Char c = decode_utf8(text, begin);
    if (!c.valid) return {kReplacementUtf8, 1};
    return {text.substr(begin, c.size), c.size};
  }

 private:
  const Charsmap& charsmap_;
  const PieceTrie& user_defined_;
};

}  // namespace

std::string normalize_sentencepiece(const SentencePieceModel& model, const PieceTrie& user_defined,
                                    std::string_view text) {
  const PrefixNormalizer normalizer(model.charsmap, user_defined);
  const std::string_view space =
      model.escape_whitespaces ? kSentencePieceSpace : std::string_view(" ");
  std::string out;
  size_t begin = 0;
  while (model.remove_extra_whitespaces && begin < text.size()) {
    const Prefix prefix = normalizer.at(text, begin);
    if (prefix.text != " ") break;
    begin += prefix.size;
  }
  if (begin == text.size()) return out;
  out.reserve(text.size() + text.size() / 2);
  if (model.add_dummy_prefix && !model.whitespace_is_suffix) out += space;
  bool after_space = model.remove_extra_whitespaces;
  while (begin < text.size()) {
    const Prefix prefix = normalizer.at(text, begin);
    begin += prefix.size;
    std::string_view piece = prefix.text;
    while (after_space && piece.starts_with(' ')) piece.remove_prefix(1);
    if (piece.empty()) continue;
    for (const char c : piece) {
      if (c == ' ') {
        out += space;
      } else {
        out += c;
      }
    }
    after_space = model.remove_extra_whitespaces && piece.ends_with(' ');
  }
  while (model.remove_extra_whitespaces && out.ends_with(space))
    out.resize(out.size() - space.size());
  if (model.add_dummy_prefix && model.whitespace_is_suffix) out += space;
  return out;
}

std::string replace_by(const Charsmap& charsmap, std::string_view text) {
  const PieceTrie none;
  const PrefixNormalizer normalizer(charsmap, none);
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const Prefix prefix = normalizer.at(text, begin);
    out += prefix.text;
    begin += prefix.size;
  }
  return out;
}

}  // namespace espalier
