#include "text/tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/base64.h"
#include "text/json_fields.h"
#include "text/regex/pcre.h"
#include "text/tokenizer/charsmap.h"
#include "text/unicode/char_class.h"
#include "text/unicode/old_classes.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

namespace json = boost::json;

// Calls fn(code) for each character.
template <typename Fn>
void for_each_character(std::string_view text, Fn&& fn) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    fn(c.code);
    i += c.size;
  }
}

std::string lowercase(std::string text) {
  std::string out;
  out.reserve(text.size());
  for_each_character(text, [&](char32_t code) {
    if (code == 0x130) {  // the one letter whose lower case is two: i and a dot above
      out += "i\xCC\x87";
    } else {
      append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))),
                  out);
    }
  });
  return out;
}

std::string strip_accents(std::string text) {
  std::string out;
  for_each_character(text, [&](char32_t code) {
    if (code < 0x300 || !is_old_mark(code)) append_utf8(code, out);
  });
  return out;
}

bool is_ideograph(char32_t code) {  // as BERT counts them
  static constexpr std::pair<char32_t, char32_t> kBlocks[] = {
      {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
      {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  return std::any_of(std::begin(kBlocks), std::end(kBlocks), [&](const auto& block) {
    return code >= block.first && code <= block.second;
  });
}

// Controls are dropped, white space becomes spaces.
std::string clean_text(std::string text) {
  const CharClasses classes;
  std::string out;
  out.reserve(text.size());
  for_each_character(text, [&](char32_t code) {
    if (is_old_other(code)) return;
    if (classes.is(code, kSpace)) {
      out += ' ';
    } else {
      append_utf8(code, out);
    }
  });
  return out;
}

std::string isolate_ideographs(std::string text) {
  std::string out;
  out.reserve(text.size());
  for_each_character(text, [&](char32_t code) {
    const bool isolated = is_ideograph(code);
    if (isolated) out += ' ';
    append_utf8(code, out);
    if (isolated) out += ' ';
  });
  return out;
}

std::string strip_nonspacing(std::string text) {
  std::string out;
  for_each_character(normalize_unicode(std::move(text), UnicodeForm::kNfd), [&](char32_t code) {
    if (code < 0x300 || !is_old_nonspacing(code)) append_utf8(code, out);
  });
  return out;
}

// Control characters and odd spaces, as the NMT normaliser of SentencePiece has them.
std::string normalize_nmt(std::string text) {
  std::string out;
  for_each_character(text, [&](char32_t code) {
    const bool dropped = (code >= 0x1 && code <= 0x8) || code == 0xB ||
                         (code >= 0xE && code <= 0x1F) || code == 0x7F || code == 0x8F ||
                         code == 0x9F;
    const bool space = code == 0x9 || code == 0xA || code == 0xC || code == 0xD || code == 0x1680 ||
                       (code >= 0x200B && code <= 0x200F) || code == 0x2028 || code == 0x2029 ||
                       code == 0x2581 || code == 0xFEFF || code == 0xFFFD;
    if (dropped) return;
    append_utf8(space ? U' ' : code, out);
  });
  return out;
}

std::string strip_spaces(std::string text, bool left, bool right) {
  const CharClasses classes;
  size_t begin = text.size(), end = 0, position = 0;
  for_each_character(text, [&](char32_t code) {
    const size_t next = position + utf8_length(code);
    if (!classes.is(code, kSpace)) {
      begin = std::min(begin, position);
      end = next;
    }
    position = next;
  });
  if (end == 0) return {};  // white space alone
  if (!left) begin = 0;
  if (!right) end = text.size();
  return text.substr(begin, end - begin);
}

std::string replace_all(const std::string& text, const std::string& from, const std::string& to) {
  std::string out;
  size_t begin = 0;
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, begin)) {
    out.append(text, begin, at - begin);
    out += to;
    begin = at + from.size();
  }
  out.append(text, begin);
  return out;
}

std::string replace_regex(const std::string& text, const PcreRegex& regex, const std::string& to) {
  std::string out;
  size_t begin = 0, position = 0;
  PcreRegex::Search search(regex, text);
  while (position <= text.size()) {
    const std::optional<PcreRegex::Match> match = search.find(position);
    if (!match) break;
    if (match->begin == match->end) {  // an empty match replaces nothing and moves on
      if (match->end == text.size()) break;
      position = match->end + decode_utf8(text, match->end).size;
      out.append(text, begin, match->begin - begin);
      out += to;
      begin = match->begin;
      continue;
    }
    out.append(text, begin, match->begin - begin);
    out += to;
    begin = position = match->end;
  }
  out.append(text, begin);
  return out;
}

// Characters in canonical order: each run of combining marks by class, stably.
void order_marks(std::vector<utf8proc_int32_t>& codes) {
  const auto combining_class = [](utf8proc_int32_t code) {
    return utf8proc_get_property(code)->combining_class;
  };
  for (size_t begin = 0; begin < codes.size();) {
    size_t end = begin;
    while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
    if (end - begin > 1) {
      std::stable_sort(codes.begin() + static_cast<ptrdiff_t>(begin),
                       codes.begin() + static_cast<ptrdiff_t>(end),
                       [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    }
    begin = end + 1;
  }
}

}  // namespace

namespace {

std::vector<utf8proc_int32_t> decompose(char32_t code, int options) {
  utf8proc_int32_t expanded[32];  // the longest expansion is 18 (U+FDFA)
  int boundclass = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), expanded, 32,
                              static_cast<utf8proc_option_t>(options), &boundclass);
  if (count < 0 || count > 32) return {static_cast<utf8proc_int32_t>(code)};
  return {expanded, expanded + count};
}

size_t compose(std::vector<utf8proc_int32_t>& codes, int options) {
  const utf8proc_ssize_t size =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                               static_cast<utf8proc_option_t>(options));
  return size < 0 ? codes.size() : static_cast<size_t>(size);
}

constexpr int kNfcOptions = UTF8PROC_STABLE | UTF8PROC_COMPOSE;

// Characters that NFC leaves as they are whatever comes before them: not marks, not the second
// part of any composition, and their own composed form. Text of these alone is in NFC, and between
// them it can be normalised piece by piece.
class NfcStable {
 public:
  NfcStable() : stable_(kEnd, true) {
    // Beyond these blocks there are only Hangul syllables, ideographs and the unassigned, all of
    // which are stable.
    static constexpr std::pair<char32_t, char32_t> kBlocks[] = {
        {0x300, 0x33FF},  {0xA000, 0xABFF},   {0xD7B0, 0xD7FF},
        {0xF900, 0xFFFF}, {0x10000, 0x1FFFF}, {0x2F800, 0x2FA1F}};
    for (const auto& [first, last] : kBlocks) {
      for (char32_t code = first; code <= last; ++code) examine(code);
    }
    for (char32_t code = 0x1160; code <= 0x11FF; ++code) stable_[code] = false;  // Hangul's parts
  }
  bool of(char32_t code) const { return code >= kEnd || stable_[code]; }

 private:
  static constexpr char32_t kEnd = 0x30000;

  void examine(char32_t code) {
    const utf8proc_property_t* property =
        utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
    if (property->combining_class != 0) stable_[code] = false;
    std::vector<utf8proc_int32_t> codes = decompose(code, kNfcOptions);
    if (codes.size() == 1 && codes[0] == static_cast<utf8proc_int32_t>(code)) return;
    for (size_t i = 1; i < codes.size(); ++i) stable_[static_cast<size_t>(codes[i])] = false;
    const size_t size = compose(codes, kNfcOptions);
    if (size != 1 || codes[0] != static_cast<utf8proc_int32_t>(code)) stable_[code] = false;
  }

  std::vector<bool> stable_;
};

// A character that the reference's tables do not know yet: to it, one that stands alone.
bool is_late(char32_t code) {
  if (code < 0x300) return false;
  const bool combines =
      utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->combining_class != 0;
  return (combines && !is_old_combining(code)) || is_late_decomposing(code);
}

// Of text without late characters.
void normalize_known(std::string_view text, UnicodeForm form, std::string& out) {
  const bool composes = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  const bool compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  int options = UTF8PROC_STABLE;
  options |= composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (compatible) options |= UTF8PROC_COMPAT;
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size());
  for_each_character(text, [&](char32_t code) {
    if (code < 0x80) {
      codes.push_back(static_cast<utf8proc_int32_t>(code));
      return;
    }
    const std::vector<utf8proc_int32_t> expanded = decompose(code, options);
    codes.insert(codes.end(), expanded.begin(), expanded.end());
  });
  order_marks(codes);
  const size_t size = composes ? compose(codes, options) : codes.size();
  for (size_t i = 0; i < size; ++i) append_utf8(static_cast<char32_t>(codes[i]), out);
}

std::string normalize_all(std::string_view text, UnicodeForm form) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    if (is_late(c.code)) {
      normalize_known(text.substr(done, i - done), form, out);
      out += text.substr(i, c.size);
      done = i + c.size;
    }
    i += c.size;
  }
  normalize_known(text.substr(done), form, out);
  return out;
}

// Only what is not stable goes through the tables, with the character before it, which it may
// compose with.
std::string normalize_nfc(const std::string& text) {
  static const NfcStable kStable;
  std::string out;
  size_t copied = 0, previous = 0;
  for (size_t i = 0; i < text.size();) {
    if (const size_t end = skip_ascii(text, i); end > i) {
      previous = end - 1;
      i = end;
      continue;
    }
    const Utf8Char c = decode_utf8(text, i);
    if (c.code < 0x300 || kStable.of(c.code)) {
      previous = i;
      i += c.size;
      continue;
    }
    size_t end = i;
    for (; end < text.size();) {
      const Utf8Char next = decode_utf8(text, end);
      if (next.code < 0x300 || kStable.of(next.code)) break;
      end += next.size;
    }
    const size_t begin = std::max(previous, copied);
    out.append(text, copied, begin - copied);
    out += normalize_all(std::string_view(text).substr(begin, end - begin), UnicodeForm::kNfc);
    copied = previous = i = end;
  }
  if (copied == 0) return text;
  return out.append(text, copied);
}

}  // namespace

std::string normalize_unicode(std::string text, UnicodeForm form) {
  // Below U+0300 (0xCC 0x80) NFC changes nothing, below U+0080 no form does.
  const uint8_t quick_below = form == UnicodeForm::kNfc ? 0xCC : 0x80;
  if (std::all_of(text.begin(), text.end(),
                  [&](char c) { return static_cast<uint8_t>(c) < quick_below; })) {
    return text;
  }
  return form == UnicodeForm::kNfc ? normalize_nfc(text) : normalize_all(text, form);
}

Result<std::function<std::string(std::string)>> parse_replace(const json::value& value,
                                                              const std::string& path) {
  ESP_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of(value, path));
  ESP_ASSIGN_OR_RETURN(const std::string content, fields.string("content"));
  const json::value* pattern_value = fields.find("pattern");
  if (pattern_value == nullptr) {
    return fail(error(StatusCode::kDataLoss, "'{}.pattern' is missing", path));
  }
  ESP_ASSIGN_OR_RETURN(const JsonFields pattern,
                       JsonFields::of(*pattern_value, fields.path_to("pattern")));
  if (pattern.find("String") != nullptr) {
    ESP_ASSIGN_OR_RETURN(const std::string from, pattern.string("String"));
    if (from.empty()) {
      return fail(error(StatusCode::kUnimplemented, "'{}' replaces an empty string", path));
    }
    return [from, content](std::string text) { return replace_all(text, from, content); };
  }
  ESP_ASSIGN_OR_RETURN(const std::string source, pattern.string("Regex"));
  ESP_ASSIGN_OR_RETURN(const std::string translated, oniguruma_to_pcre2(source));
  ESP_ASSIGN_OR_RETURN(PcreRegex compiled, PcreRegex::compile(translated));
  // Shared because std::function copies its target.
  const auto regex = std::make_shared<const PcreRegex>(std::move(compiled));
  return [regex, content](std::string text) { return replace_regex(text, *regex, content); };
}

namespace {

std::optional<UnicodeForm> parse_form(std::string_view name) {
  static constexpr std::pair<std::string_view, UnicodeForm> kForms[] = {
      {"NFC", UnicodeForm::kNfc},
      {"NFD", UnicodeForm::kNfd},
      {"NFKC", UnicodeForm::kNfkc},
      {"NFKD", UnicodeForm::kNfkd}};
  for (const auto& [known, form] : kForms) {
    if (known == name) return form;
  }
  return std::nullopt;
}

}  // namespace

Result<Normalizer> Normalizer::parse(const json::value& value, const std::string& path) {
  Normalizer normalizer;
  if (value.is_null()) return normalizer;
  ESP_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of(value, path));
  ESP_ASSIGN_OR_RETURN(const std::string type, fields.string("type"));
  normalizer.unicode_form_only_ = parse_form(type).has_value();
  std::vector<Step>& steps = normalizer.steps_;
  if (type == "Sequence") {
    ESP_ASSIGN_OR_RETURN(const json::array* parts, fields.array("normalizers"));
    for (size_t i = 0; i < parts->size(); ++i) {
      const std::string part_path = fmt::format("{}.normalizers[{}]", path, i);
      ESP_ASSIGN_OR_RETURN(Normalizer part, parse((*parts)[i], part_path));
      normalizer.unicode_form_only_ |= i == 0;
      normalizer.unicode_form_only_ &= part.unicode_form_only_;
      for (Step& step : part.steps_) steps.push_back(std::move(step));
    }
  } else if (const std::optional<UnicodeForm> form = parse_form(type)) {
    steps.push_back(
        [form = *form](std::string text) { return normalize_unicode(std::move(text), form); });
  } else if (type == "Lowercase") {
    steps.push_back(lowercase);
  } else if (type == "StripAccents") {
    steps.push_back(strip_accents);
  } else if (type == "Replace") {
    ESP_ASSIGN_OR_RETURN(Step step, parse_replace(value, path));
    steps.push_back(std::move(step));
  } else if (type == "Prepend") {
    ESP_ASSIGN_OR_RETURN(const std::string prefix, fields.string("prepend"));
    steps.push_back([prefix](std::string text) { return text.empty() ? text : prefix + text; });
  } else if (type == "Precompiled") {
    if (fields.find("precompiled_charsmap") == nullptr) return normalizer;
    ESP_ASSIGN_OR_RETURN(const std::string encoded, fields.string("precompiled_charsmap"));
    const std::string where = fields.path_to("precompiled_charsmap");
    std::string blob;
    if (!decode_base64(encoded, blob)) {
      return fail(error(StatusCode::kDataLoss, "'{}' is no base64", where));
    }
    Result<Charsmap> charsmap = Charsmap::parse(blob);
    if (!charsmap) return fail(charsmap.error().with_context(where));
    if (charsmap->empty()) return normalizer;
    // Shared because std::function copies its target.
    const auto shared = std::make_shared<const Charsmap>(std::move(*charsmap));
    steps.push_back([shared](std::string text) { return apply_precompiled(*shared, text); });
  } else if (type == "BertNormalizer") {
    ESP_ASSIGN_OR_RETURN(const bool cleans, fields.boolean_or("clean_text", true));
    ESP_ASSIGN_OR_RETURN(const bool isolates, fields.boolean_or("handle_chinese_chars", true));
    ESP_ASSIGN_OR_RETURN(const bool lowers, fields.boolean_or("lowercase", true));
    ESP_ASSIGN_OR_RETURN(const bool strips, fields.boolean_or("strip_accents", lowers));
    if (cleans) steps.push_back(clean_text);
    if (isolates) steps.push_back(isolate_ideographs);
    if (strips) steps.push_back(strip_nonspacing);
    if (lowers) steps.push_back(lowercase);
  } else if (type == "Nmt") {
    steps.push_back(normalize_nmt);
  } else if (type == "Strip") {
    ESP_ASSIGN_OR_RETURN(const bool left, fields.boolean_or("strip_left", true));
    ESP_ASSIGN_OR_RETURN(const bool right, fields.boolean_or("strip_right", true));
    steps.push_back(
        [left, right](std::string text) { return strip_spaces(std::move(text), left, right); });
  } else {
    return fail(error(StatusCode::kUnimplemented,
                      "'{}' is of type '{}', which is not supported (supported: Sequence, NFC, "
                      "NFD, NFKC, NFKD, Nmt, Lowercase, StripAccents, Replace, Prepend, Strip, "
                      "Precompiled, BertNormalizer)",
                      path, type));
  }
  return normalizer;
}

std::string Normalizer::apply(std::string_view text) const {
  std::string result(text);
  for (const Step& step : steps_) result = step(std::move(result));
  return result;
}

}  // namespace espalier
