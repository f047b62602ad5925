#include "text/tokenizer/pre_tokenizer.h"

#include "text/json_fields.h"
#include "text/regex/pcre.h"
#include "text/unicode/char_class.h"
#include "text/unicode/old_classes.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

namespace json = boost::json;

constexpr SplitRules kGpt2Rules{SplitRules::Family::kGpt2};

Result<SplitBehavior> parse_behavior(const JsonFields& fields, std::string_view otherwise) {
  ESP_ASSIGN_OR_RETURN(const std::string name, fields.string_or("behavior", otherwise));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return fail(error(StatusCode::kUnimplemented, "'{}' is '{}', which is no behaviour of a split",
                    fields.path_to("behavior"), name));
}

// Adds a match and the text before it since the last part's end.
void add_match(size_t begin, size_t end, std::vector<SplitPart>& parts) {
  const size_t covered = parts.empty() ? 0 : parts.back().end;
  if (covered < begin) parts.push_back({covered, begin, false});
  parts.push_back({begin, end, true});
}

void add_rest(size_t text_size, std::vector<SplitPart>& parts) {
  const size_t covered = parts.empty() ? 0 : parts.back().end;
  if (covered < text_size) parts.push_back({covered, text_size, false});
}

// A match that a limit of PCRE2 cuts short leaves the rest of the text as one part: encoding never
// fails, and costs at most the limit.
void find_regex_parts(const PcreRegex& regex, std::string_view text,
                      std::vector<SplitPart>& parts) {
  PcreRegex::Search search(regex, text);
  std::optional<size_t> last_end;
  for (size_t position = 0; position <= text.size();) {
    const std::optional<PcreRegex::Match> match = search.find(position);
    if (!match) break;
    position = match->end;
    if (match->begin == match->end) {  // cuts without taking anything, but not twice at one place
      if (match->end == text.size()) break;
      position += decode_utf8(text, match->end).size;
      if (last_end == match->end) continue;
    }
    add_match(match->begin, match->end, parts);
    last_end = match->end;
  }
  add_rest(text.size(), parts);
}

// \w+|[^\w\s]+ as Rust's regular expressions have it.
void find_words_and_symbols(std::string_view text, std::vector<SplitPart>& parts) {
  const CharClasses classes;
  const auto kind_at = [&](size_t at) {
    const char32_t code = decode_utf8(text, at).code;
    return is_word_character(code) ? 2 : classes.is(code, kSpace) ? 0 : 1;
  };
  for (size_t begin = 0; begin < text.size();) {
    const int kind = kind_at(begin);
    size_t end = begin;
    do {
      end += decode_utf8(text, end).size;
    } while (end < text.size() && kind_at(end) == kind);
    if (kind > 0) add_match(begin, end, parts);
    begin = end;
  }
  add_rest(text.size(), parts);
}

}  // namespace

Result<PreTokenizer> PreTokenizer::parse(const json::value& value, const std::string& path) {
  PreTokenizer result;
  if (!value.is_null()) ESP_RETURN_IF_ERROR(result.add(value, path));
  return result;
}

Status PreTokenizer::add(const json::value& value, const std::string& path) {
  ESP_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of(value, path));
  ESP_ASSIGN_OR_RETURN(const std::string type, fields.string("type"));
  if (byte_level_) {
    return error(StatusCode::kUnimplemented, "'{}' ({}) follows ByteLevel, which must be the last",
                 path, type);
  }
  if (type == "Sequence") {
    ESP_ASSIGN_OR_RETURN(const json::array* parts, fields.array("pretokenizers"));
    for (size_t i = 0; i < parts->size(); ++i) {
      ESP_RETURN_IF_ERROR(add((*parts)[i], fmt::format("{}.pretokenizers[{}]", path, i)));
    }
    return {};
  }
  if (type == "Split") return add_split(value, path);
  if (type == "ByteLevel") return add_byte_level(value, path);
  if (type == "Metaspace") return add_metaspace(value, path);
  const CharClasses classes;
  if (type == "Digits") {
    ESP_ASSIGN_OR_RETURN(const bool individual, fields.boolean_or("individual_digits", false));
    add_predicate([classes](char32_t code) { return classes.is(code, kNumber); },
                  individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
    return {};
  }
  if (type == "Punctuation") {
    ESP_ASSIGN_OR_RETURN(const SplitBehavior behavior, parse_behavior(fields, "Isolated"));
    add_predicate(is_old_punctuation, behavior);
    return {};
  }
  if (type == "BertPreTokenizer") {
    add_predicate([classes](char32_t code) { return classes.is(code, kSpace); },
                  SplitBehavior::kRemoved);
    add_predicate(is_old_punctuation, SplitBehavior::kIsolated);
    return {};
  }
  if (type == "CharDelimiterSplit") {
    ESP_ASSIGN_OR_RETURN(const std::string delimiter, fields.string("delimiter"));
    return add_regex(escape_regex(delimiter), SplitBehavior::kRemoved, false);
  }
  if (type == "WhitespaceSplit") {
    add_predicate([classes](char32_t code) { return classes.is(code, kSpace); },
                  SplitBehavior::kRemoved);
    return {};
  }
  if (type == "Whitespace") {
    Step step;
    step.find_parts = find_words_and_symbols;
    step.behavior = SplitBehavior::kRemoved;
    step.invert = true;
    steps_.push_back(std::move(step));
    return {};
  }
  return error(StatusCode::kUnimplemented,
               "'{}' is of type '{}', which is not supported (supported: Sequence, Split, "
               "ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit, "
               "BertPreTokenizer, CharDelimiterSplit)",
               path, type);
}

Status PreTokenizer::add_split(const json::value& value, const std::string& path) {
  ESP_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of(value, path));
  ESP_ASSIGN_OR_RETURN(const SplitBehavior behavior, parse_behavior(fields, ""));
  ESP_ASSIGN_OR_RETURN(const bool invert, fields.boolean_or("invert", false));
  const json::value* pattern_value = fields.find("pattern");
  if (pattern_value == nullptr) {
    return error(StatusCode::kDataLoss, "'{}.pattern' is missing", path);
  }
  ESP_ASSIGN_OR_RETURN(const JsonFields pattern,
                       JsonFields::of(*pattern_value, fields.path_to("pattern")));
  if (pattern.find("String") != nullptr) {
    ESP_ASSIGN_OR_RETURN(const std::string text, pattern.string("String"));
    return add_regex(escape_regex(text), behavior, invert);
  }
  ESP_ASSIGN_OR_RETURN(const std::string regex, pattern.string("Regex"));
  if (const std::optional<SplitRules> rules = known_split_rules(regex)) {
    add_known(*rules, behavior, invert);
    return {};
  }
  ESP_ASSIGN_OR_RETURN(const std::string translated, oniguruma_to_pcre2(regex));
  return add_regex(translated, behavior, invert).with_context(path);
}

Status PreTokenizer::add_byte_level(const json::value& value, const std::string& path) {
  ESP_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of(value, path));
  ESP_ASSIGN_OR_RETURN(const bool add_prefix_space, fields.boolean_or("add_prefix_space", true));
  ESP_ASSIGN_OR_RETURN(const bool use_regex, fields.boolean_or("use_regex", true));
  if (add_prefix_space) {
    Step step;
    step.transform = [](std::string_view text, bool) -> std::optional<std::string> {
      if (text.starts_with(' ')) return std::nullopt;
      return std::string(1, ' ').append(text);
    };
    steps_.push_back(std::move(step));
  }
  if (use_regex) add_known(kGpt2Rules, SplitBehavior::kIsolated, false);
  byte_level_ = true;
  return {};
}

Status PreTokenizer::add_metaspace(const json::value& value, const std::string& path) {
  ESP_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of(value, path));
  ESP_ASSIGN_OR_RETURN(const std::string replacement, fields.string_or("replacement", "\u2581"));
  ESP_ASSIGN_OR_RETURN(const bool add_prefix_space, fields.boolean_or("add_prefix_space", true));
  ESP_ASSIGN_OR_RETURN(const std::string scheme,
                       fields.string_or("prepend_scheme", add_prefix_space ? "always" : "never"));
  ESP_ASSIGN_OR_RETURN(const bool split, fields.boolean_or("split", true));
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return error(StatusCode::kUnimplemented, "'{}.prepend_scheme' is '{}'", path, scheme);
  }
  if (replacement.empty() || decode_utf8(replacement, 0).size != replacement.size()) {
    return error(StatusCode::kDataLoss, "'{}.replacement' should be one character", path);
  }
  Step step;
  step.transform = [replacement, scheme](std::string_view text,
                                         bool at_start) -> std::optional<std::string> {
    std::string out;
    const bool has_mark = text.starts_with(' ') || text.starts_with(replacement);
    if (!has_mark && (scheme == "always" || (scheme == "first" && at_start))) out = replacement;
    for (const char c : text) {
      if (c == ' ') {
        out += replacement;
      } else {
        out += c;
      }
    }
    return out;
  };
  steps_.push_back(std::move(step));
  if (!split) return {};
  return add_regex(escape_regex(replacement), SplitBehavior::kMergedWithNext, false);
}

void PreTokenizer::add_known(const SplitRules& rules, SplitBehavior behavior, bool invert) {
  Step step;
  step.rules = rules;
  step.behavior = behavior;
  step.invert = invert;
  // All text is matched, so what happens to the text between matches does not matter.
  step.covers_all =
      behavior == SplitBehavior::kIsolated || (behavior == SplitBehavior::kRemoved && invert);
  steps_.push_back(std::move(step));
}

void PreTokenizer::add_predicate(std::function<bool(char32_t)> is_delimiter,
                                 SplitBehavior behavior) {
  Step step;
  step.find_parts = [is_delimiter](std::string_view text, std::vector<SplitPart>& parts) {
    for (size_t i = 0; i < text.size();) {
      const Utf8Char c = decode_utf8(text, i);
      if (is_delimiter(c.code)) add_match(i, i + c.size, parts);
      i += c.size;
    }
    add_rest(text.size(), parts);
  };
  step.behavior = behavior;
  steps_.push_back(std::move(step));
}

Status PreTokenizer::add_regex(std::string_view pcre_pattern, SplitBehavior behavior, bool invert) {
  ESP_ASSIGN_OR_RETURN(PcreRegex compiled, PcreRegex::compile(pcre_pattern));
  // Shared because std::function copies its target.
  const auto regex = std::make_shared<const PcreRegex>(std::move(compiled));
  Step step;
  step.find_parts = [regex](std::string_view text, std::vector<SplitPart>& parts) {
    find_regex_parts(*regex, text, parts);
  };
  step.behavior = behavior;
  step.invert = invert;
  steps_.push_back(std::move(step));
  return {};
}

bool PreTokenizer::keeps_invalid_utf8() const {
  for (const Step& step : steps_) {
    if (step.find_parts != nullptr) return false;
  }
  return byte_level_;
}

bool PreTokenizer::cuts_at_lines() const {
  return steps_.size() == 1 && steps_[0].rules && steps_[0].covers_all;
}

void PreTokenizer::run(size_t index, std::string_view text, bool at_start,
                       const std::function<void(std::string_view)>& fn) const {
  if (text.empty()) return;
  if (index == steps_.size()) return fn(text);
  const Step& step = steps_[index];
  if (step.transform != nullptr) {
    const std::optional<std::string> changed = step.transform(text, at_start);
    return run(index + 1, changed ? std::string_view(*changed) : text, at_start, fn);
  }
  std::vector<SplitPart> parts;
  if (step.rules) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = next_word_end(*step.rules, text, begin);
      parts.push_back({begin, end, true});
      begin = end;
    }
  } else {
    step.find_parts(text, parts);
  }
  if (step.invert) {
    for (SplitPart& part : parts) part.is_match = !part.is_match;
  }
  apply_split_behavior(step.behavior, parts);
  for (const SplitPart& part : parts) {
    run(index + 1, text.substr(part.begin, part.end - part.begin), at_start && part.begin == 0, fn);
  }
}

}  // namespace espalier
