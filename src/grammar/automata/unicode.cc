#include "grammar/automata/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

namespace espalier::grammar {
namespace {

// General categories in the order of utf8proc's constants, with their long names.
struct Category {
  std::string_view name, long_name;
  utf8proc_category_t value;
};
constexpr std::array<Category, 29> kCategories = {{
    {"Cc", "Control", UTF8PROC_CATEGORY_CC},
    {"Cf", "Format", UTF8PROC_CATEGORY_CF},
    {"Cn", "Unassigned", UTF8PROC_CATEGORY_CN},
    {"Co", "Private_Use", UTF8PROC_CATEGORY_CO},
    {"Ll", "Lowercase_Letter", UTF8PROC_CATEGORY_LL},
    {"Lm", "Modifier_Letter", UTF8PROC_CATEGORY_LM},
    {"Lo", "Other_Letter", UTF8PROC_CATEGORY_LO},
    {"Lt", "Titlecase_Letter", UTF8PROC_CATEGORY_LT},
    {"Lu", "Uppercase_Letter", UTF8PROC_CATEGORY_LU},
    {"Mc", "Spacing_Mark", UTF8PROC_CATEGORY_MC},
    {"Me", "Enclosing_Mark", UTF8PROC_CATEGORY_ME},
    {"Mn", "Nonspacing_Mark", UTF8PROC_CATEGORY_MN},
    {"Nd", "Decimal_Number", UTF8PROC_CATEGORY_ND},
    {"Nl", "Letter_Number", UTF8PROC_CATEGORY_NL},
    {"No", "Other_Number", UTF8PROC_CATEGORY_NO},
    {"Pc", "Connector_Punctuation", UTF8PROC_CATEGORY_PC},
    {"Pd", "Dash_Punctuation", UTF8PROC_CATEGORY_PD},
    {"Pe", "Close_Punctuation", UTF8PROC_CATEGORY_PE},
    {"Pf", "Final_Punctuation", UTF8PROC_CATEGORY_PF},
    {"Pi", "Initial_Punctuation", UTF8PROC_CATEGORY_PI},
    {"Po", "Other_Punctuation", UTF8PROC_CATEGORY_PO},
    {"Ps", "Open_Punctuation", UTF8PROC_CATEGORY_PS},
    {"Sc", "Currency_Symbol", UTF8PROC_CATEGORY_SC},
    {"Sk", "Modifier_Symbol", UTF8PROC_CATEGORY_SK},
    {"Sm", "Math_Symbol", UTF8PROC_CATEGORY_SM},
    {"So", "Other_Symbol", UTF8PROC_CATEGORY_SO},
    {"Zl", "Line_Separator", UTF8PROC_CATEGORY_ZL},
    {"Zp", "Paragraph_Separator", UTF8PROC_CATEGORY_ZP},
    {"Zs", "Space_Separator", UTF8PROC_CATEGORY_ZS},
}};
constexpr std::array<std::pair<std::string_view, char>, 7> kGroups = {{{"Letter", 'L'},
                                                                       {"Mark", 'M'},
                                                                       {"Number", 'N'},
                                                                       {"Punctuation", 'P'},
                                                                       {"Symbol", 'S'},
                                                                       {"Separator", 'Z'},
                                                                       {"Other", 'C'}}};

// Returns whether `name` denotes category `c`: by its short name, its long name, or its group.
bool names(std::string_view name, const Category& c) {
  if (name == c.name || name == c.long_name) return true;
  if (name.size() == 1) return c.name[0] == name[0];
  return std::ranges::any_of(
      kGroups, [&](const auto& g) { return g.first == name && g.second == c.name[0]; });
}

}  // namespace

std::optional<uint32_t> take_code_point(std::string_view& text) {
  if (text.empty()) return std::nullopt;
  utf8proc_int32_t code_point = -1;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()), &code_point);
  if (length <= 0 || code_point < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(length));
  return static_cast<uint32_t>(code_point);
}

void append_utf8(std::string& out, uint32_t code_point) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

bool valid_utf8(std::string_view text) {
  while (!text.empty()) {
    if (!take_code_point(text)) return false;
  }
  return true;
}

std::vector<CodeRange> digit_chars() { return {{'0', '9'}}; }
std::vector<CodeRange> word_chars() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
std::vector<CodeRange> space_chars() {
  return {{0x09, 0x0d},     {0x20, 0x20},     {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
          {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
}

std::optional<std::vector<CodeRange>> category_chars(std::string_view name) {
  if (name == "Any") return std::vector<CodeRange>{{0, kMaxCodePoint}};
  if (name == "ASCII") return std::vector<CodeRange>{{0, 0x7f}};
  // The ranges of each category, computed once: a scan of Unicode takes milliseconds, and a pattern
  // may name thousands.
  static const auto* const by_category = [] {
    auto* all = new std::array<std::vector<CodeRange>, 32>;
    for (uint32_t c = 0; c <= kMaxCodePoint; ++c) {
      auto& ranges =
          (*all)[static_cast<size_t>(utf8proc_category(static_cast<utf8proc_int32_t>(c)))];
      if (!ranges.empty() && ranges.back().high + 1 == c) {
        ranges.back().high = c;
      } else {
        ranges.push_back({c, c});
      }
    }
    return all;
  }();
  std::vector<CodeRange> ranges;
  bool known = false;
  for (const Category& c : kCategories) {
    if (!names(name, c)) continue;
    known = true;
    const auto& own = (*by_category)[static_cast<size_t>(c.value)];
    ranges.insert(ranges.end(), own.begin(), own.end());
  }
  if (!known) return std::nullopt;
  return normalized(std::move(ranges));
}

std::vector<CodeRange> with_other_cases(const std::vector<CodeRange>& ranges) {
  // Simple case mappings in both directions; none lie above plane 1.
  static const auto* const partners = [] {
    auto* map = new std::multimap<uint32_t, uint32_t>;
    for (utf8proc_int32_t c = 0; c < 0x20000; ++c) {
      for (const utf8proc_int32_t other :
           {utf8proc_toupper(c), utf8proc_tolower(c), utf8proc_totitle(c)}) {
        if (other == c) continue;
        map->emplace(static_cast<uint32_t>(c), static_cast<uint32_t>(other));
        map->emplace(static_cast<uint32_t>(other), static_cast<uint32_t>(c));
      }
    }
    return map;
  }();
  std::vector<CodeRange> out = ranges;
  for (const CodeRange& r : ranges) {
    const auto end = partners->upper_bound(r.high);
    for (auto it = partners->lower_bound(r.low); it != end; ++it) {
      out.push_back({it->second, it->second});
    }
  }
  return normalized(std::move(out));
}

}  // namespace espalier::grammar
