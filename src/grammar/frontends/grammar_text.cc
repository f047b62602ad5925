#include "grammar/frontends/grammar_text.h"

#include <algorithm>

#include "grammar/automata/unicode.h"

namespace espalier::grammar {

bool GrammarText::take(std::string_view text) {
  if (!rest_.starts_with(text)) return false;
  rest_.remove_prefix(text.size());
  return true;
}

std::string_view GrammarText::take_while(bool (*wanted)(char)) {
  size_t length = 0;
  while (length < rest_.size() && wanted(rest_[length])) ++length;
  const auto found = rest_.substr(0, length);
  rest_.remove_prefix(length);
  return found;
}

void GrammarText::skip_line() { rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size())); }

// Counts lines from the previous call on, since every rule name asks for its line.
int GrammarText::line() const {
  const size_t read = text_.size() - rest_.size();
  if (read < lines_read_) lines_read_ = lines_ = 0;
  const auto more = text_.substr(lines_read_, read - lines_read_);
  lines_ += static_cast<size_t>(std::count(more.begin(), more.end(), '\n'));
  lines_read_ = read;
  return 1 + static_cast<int>(lines_);
}

Status GrammarText::wrong(std::string_view what) const {
  return invalid_argument("grammar, line {}: {}", line(), what);
}

std::optional<int32_t> GrammarText::number() {
  if (next() < '0' || next() > '9') return std::nullopt;
  int64_t value = 0;
  for (; next() >= '0' && next() <= '9'; skip(1))
    value = std::min<int64_t>(value * 10 + (next() - '0'), kRepeatMax + 1);
  return static_cast<int32_t>(value);
}

Status GrammarText::check_bounds(int32_t min, int32_t max) const {
  if (min > kRepeatMax || max > kRepeatMax)
    return wrong("a repetition is bounded by more than 1048576");
  if (max != kUnbounded && max < min) return wrong("a repetition's bounds are reversed");
  return {};
}

Result<std::string> GrammarText::quoted() {
  std::string bytes;
  while (!take("\"")) {
    if (done() || next() == '\n') return fail(wrong("a literal does not end"));
    ESP_ASSIGN_OR_RETURN(const uint32_t c, character());
    append_utf8(bytes, c);
  }
  return bytes;
}

Result<uint32_t> GrammarText::character() {
  if (!take("\\")) return *take_code_point(rest_);
  if (rest_.empty()) return fail(wrong("a backslash at the end"));
  const char c = rest_[0];
  rest_.remove_prefix(1);
  switch (c) {
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'r':
      return '\r';
    case 'b':
      return '\b';
    case 'f':
      return '\f';
    case 'x':
      return hex(2);
    case 'u':
      return utf16();
    case 'U':
      return code_point(8);
    case '\\':
    case '"':
    case '\'':
    case '[':
    case ']':
    case '-':
    case '^':
    case '/':
      return static_cast<uint8_t>(c);
    default:
      return fail(wrong(fmt::format("the escape \\{} is not known", c)));
  }
}

// Four digits, or two escapes of four that JSON has for a character above U+FFFF.
Result<uint32_t> GrammarText::utf16() {
  constexpr uint32_t kHigh = 0xd800, kLow = 0xdc00;
  const std::string_view first = rest_;
  ESP_ASSIGN_OR_RETURN(const uint32_t high, hex(4));
  if (high >= kHigh && high < kLow && take("\\u")) {
    ESP_ASSIGN_OR_RETURN(const uint32_t low, hex(4));
    if (low >= kLow && low < kLow + 0x400) return 0x10000 + ((high - kHigh) << 10) + (low - kLow);
  }
  rest_ = first;
  return code_point(4);
}

Result<uint32_t> GrammarText::code_point(size_t digits) {
  ESP_ASSIGN_OR_RETURN(const uint32_t value, hex(digits));
  if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) {
    return fail(wrong("there is no such character"));
  }
  return value;
}

Result<uint32_t> GrammarText::hex(size_t digits) {
  uint32_t value = 0;
  for (size_t i = 0; i < digits; ++i) {
    const char c = rest_.empty() ? '\0' : rest_[0];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return fail(wrong("an escape needs hexadecimal digits"));
    value = value * 16 + static_cast<uint32_t>(digit);
    rest_.remove_prefix(1);
  }
  return value;
}

NamedRules::Entry& NamedRules::entry(std::string_view name, const GrammarText& text) {
  const auto [it, added] = rules_.try_emplace(std::string(name));
  if (added) it->second = {ir_.rules().add(std::string(name)), false, text.line()};
  return it->second;
}

RuleId NamedRules::use(std::string_view name, const GrammarText& text) {
  return entry(name, text).id;
}

Result<RuleId> NamedRules::define(std::string_view name, const GrammarText& text) {
  Entry& made = entry(name, text);
  if (made.defined) return fail(text.wrong(fmt::format("rule '{}' is defined twice", name)));
  made.defined = true;
  return made.id;
}

Result<RuleId> NamedRules::root(std::string_view name) const {
  for (const auto& [used, entry] : rules_) {
    if (!entry.defined) {
      return fail(invalid_argument("grammar, line {}: rule '{}' is used and not defined",
                                   entry.line, used));
    }
  }
  const auto it = rules_.find(name);
  if (it == rules_.end())
    return fail(invalid_argument("the grammar has no rule '{}' to begin with", name));
  return it->second.id;
}

}  // namespace espalier::grammar
