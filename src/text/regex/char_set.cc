#include "text/regex/char_set.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace espalier {

namespace {

// (a letter, the letter of the other case), both ways.
const std::vector<std::pair<uint32_t, uint32_t>>& case_pairs() {
  static const std::vector<std::pair<uint32_t, uint32_t>> pairs = [] {
    std::vector<std::pair<uint32_t, uint32_t>> all;
    constexpr uint32_t kLettersEnd = 0x1F000;  // no letter with case lies beyond
    for (uint32_t code = 0; code < kLettersEnd; ++code)
      for (const utf8proc_int32_t other :
           {utf8proc_tolower(static_cast<utf8proc_int32_t>(code)),
            utf8proc_toupper(static_cast<utf8proc_int32_t>(code))})
        if (static_cast<uint32_t>(other) != code) {
          all.emplace_back(code, static_cast<uint32_t>(other));
          all.emplace_back(static_cast<uint32_t>(other), code);
        }
    std::ranges::sort(all);
    return all;
  }();
  return pairs;
}

constexpr size_t kNumCategories = 30;  // utf8proc's constants

const std::array<CharSet, kNumCategories>& categories() {
  static const std::array<CharSet, kNumCategories> sets = [] {
    std::array<CharSet, kNumCategories> all;
    uint32_t first = 0;
    auto category = utf8proc_category(0);
    for (uint32_t code = 1; code <= kMaxCodePoint + 1; ++code) {
      const bool past = code > kMaxCodePoint;
      const auto next = past ? category : utf8proc_category(static_cast<utf8proc_int32_t>(code));
      if (!past && next == category) continue;
      all[static_cast<size_t>(category)].add({first, code - 1});
      first = code;
      category = next;
    }
    return all;
  }();
  return sets;
}

}  // namespace

void CharSet::normalise() {
  std::ranges::sort(ranges_, {}, &CodePointRange::first);
  size_t count = 0;
  for (const CodePointRange& range : ranges_) {
    if (count > 0 && range.first <= ranges_[count - 1].last + 1)
      ranges_[count - 1].last = std::max(ranges_[count - 1].last, range.last);
    else
      ranges_[count++] = range;
  }
  ranges_.resize(count);
}

void CharSet::add(CodePointRange range) {
  const bool in_order = ranges_.empty() || range.first > ranges_.back().last + 1;
  ranges_.push_back(range);
  if (!in_order) normalise();
}

void CharSet::add(const CharSet& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalise();
}

CharSet CharSet::negated() const {
  CharSet out;
  uint32_t next = 0;
  for (const CodePointRange& range : ranges_) {
    if (range.first > next) out.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kMaxCodePoint) out.ranges_.push_back({next, kMaxCodePoint});
  return out;
}

CharSet CharSet::folded() const {
  CharSet out = *this;
  const auto& pairs = case_pairs();
  for (const CodePointRange& range : ranges_)
    for (auto pair = std::ranges::lower_bound(pairs, std::pair{range.first, uint32_t{0}});
         pair != pairs.end() && pair->first <= range.last; ++pair)
      out.ranges_.push_back({pair->second, pair->second});
  out.normalise();
  return out;
}

bool CharSet::contains(uint32_t code) const {
  const auto after = std::ranges::upper_bound(ranges_, code, {}, &CodePointRange::first);
  return after != ranges_.begin() && code <= std::prev(after)->last;
}

std::optional<CharSet> perl_class(char letter) {
  switch (letter) {
    case 'd':
      return CharSet{{'0', '9'}};
    case 's':
      return CharSet{{'\t', '\n'}, {'\f', '\r'}, {' ', ' '}};
    case 'w':
      return CharSet{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    default:
      return std::nullopt;
  }
}

std::optional<CharSet> posix_class(std::string_view name) {
  static const std::pair<std::string_view, CharSet> kClasses[] = {
      {"alnum", {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}},
      {"alpha", {{'A', 'Z'}, {'a', 'z'}}},
      {"ascii", {{0, 0x7F}}},
      {"blank", {{'\t', '\t'}, {' ', ' '}}},
      {"cntrl", {{0, 0x1F}, {0x7F, 0x7F}}},
      {"digit", {{'0', '9'}}},
      {"graph", {{'!', '~'}}},
      {"lower", {{'a', 'z'}}},
      {"print", {{' ', '~'}}},
      {"punct", {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}},
      {"space", {{'\t', '\r'}, {' ', ' '}}},
      {"upper", {{'A', 'Z'}}},
      {"word", {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}},
      {"xdigit", {{'0', '9'}, {'A', 'F'}, {'a', 'f'}}},
  };
  for (const auto& [known, set] : kClasses)
    if (known == name) return set;
  return std::nullopt;
}

std::optional<CharSet> category_class(std::string_view name) {
  static const std::map<std::string, CharSet, std::less<>> named = [] {
    std::map<std::string, CharSet, std::less<>> all = {{"Any", {{0, kMaxCodePoint}}}};
    for (const CharSet& category : categories()) {
      if (category.ranges().empty()) continue;
      const std::string full = utf8proc_category_string(
          static_cast<utf8proc_int32_t>(category.ranges().front().first));
      all[full].add(category);
      all[full.substr(0, 1)].add(category);
    }
    return all;
  }();
  const auto found = named.find(name);
  return found == named.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace espalier
