// Sets of Unicode characters, as regular expressions name them. Values; pure functions.
#pragma once

#include <compare>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

namespace espalier {

inline constexpr uint32_t kMaxCodePoint = 0x10FFFF;

struct CodePointRange {
  uint32_t first = 0, last = 0;  // inclusive
  friend auto operator<=>(const CodePointRange&, const CodePointRange&) = default;
};

class CharSet {
 public:
  CharSet() = default;
  CharSet(std::initializer_list<CodePointRange> ranges) : ranges_(ranges) { normalise(); }

  void add(CodePointRange range);
  void add(const CharSet& other);
  CharSet negated() const;
  // With the other case of each letter, by Unicode's simple case mappings.
  CharSet folded() const;
  bool contains(uint32_t code) const;

  // Ascending, disjoint, and not adjacent.
  const std::vector<CodePointRange>& ranges() const { return ranges_; }
  friend auto operator<=>(const CharSet&, const CharSet&) = default;

 private:
  void normalise();
  std::vector<CodePointRange> ranges_;
};

// \d, \s and \w of ASCII, as RE2 has them; `letter` is lower case. Nothing for another letter.
std::optional<CharSet> perl_class(char letter);
// "alpha" of [[:alpha:]]; nothing for an unknown name.
std::optional<CharSet> posix_class(std::string_view name);
// "L", "Lu" ... of \p{L}: general categories, and "Any". Nothing for another name.
std::optional<CharSet> category_class(std::string_view name);

}  // namespace espalier
