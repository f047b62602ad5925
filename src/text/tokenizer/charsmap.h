// SentencePiece's "precompiled charsmap": which strings a normaliser replaces by which, as a double
// array of Darts and the replacements after it.
// Source: sentencepiece/src/normalizer.cc (EncodePrecompiledCharsMap), darts-clone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier {

// Immutable; thread-safe.
class Charsmap {
 public:
  Charsmap() = default;  // replaces nothing
  // `blob`: four bytes N (little endian), N bytes of double array, the replacements, each ended by
  // a zero byte. kDataLoss where it is cut short or points outside.
  static Result<Charsmap> parse(std::string_view blob);

  struct Match {
    size_t size = 0;  // of what is replaced; 0: nothing is
    std::string_view replacement;
  };
  // What text[begin, end) begins with: the longest such string, or the shortest.
  Match longest(std::string_view text, size_t begin) const { return find(text, begin, false); }
  Match shortest(std::string_view text, size_t begin) const { return find(text, begin, true); }
  bool empty() const { return units_.empty(); }

 private:
  Match find(std::string_view text, size_t begin, bool stop_at_first) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

// The Precompiled normaliser of Hugging Face's tokenizers. It differs from SentencePiece's: it goes
// by grapheme clusters, and replaces a whole one of under six bytes by what stands for the shortest
// of its beginnings. Source: tokenizers/src/normalizers/precompiled.rs. `text` is valid UTF-8.
std::string apply_precompiled(const Charsmap& charsmap, std::string_view text);

}  // namespace espalier
