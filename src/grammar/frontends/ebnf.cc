#include "grammar/frontends/ebnf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "grammar/automata/unicode.h"

namespace espalier::grammar {
namespace {

constexpr int kGroupDepthMax = 200;
constexpr int kEbnfRepeatMax = 1 << 20;

bool name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

class EbnfParser {
 public:
  EbnfParser(Ir& ir, std::string_view text) : ir_(ir), text_(text), rest_(text) {}

  Result<RuleId> parse(std::string_view root) {
    if (!valid_utf8(text_)) return fail(invalid_argument("the grammar is not valid UTF-8"));
    skip_space(true);
    while (!rest_.empty()) {
      ESP_RETURN_IF_ERROR(rule());
      skip_space(true);
    }
    for (const auto& [name, entry] : rules_) {
      if (!entry.defined) {
        return fail(invalid_argument("grammar, line {}: rule '{}' is used and not defined",
                                     entry.line, name));
      }
    }
    const auto it = rules_.find(root);
    if (it == rules_.end()) {
      return fail(invalid_argument("the grammar has no rule '{}' to begin with", root));
    }
    return it->second.id;
  }

 private:
  struct Entry {
    RuleId id = 0;
    bool defined = false;
    int line = 0;  // where the rule was first named
  };

  // Counts lines from the previous call on, since every rule name asks for its line.
  int line() const {
    const size_t read = text_.size() - rest_.size();
    if (read < lines_read_) lines_read_ = lines_ = 0;
    const auto more = text_.substr(lines_read_, read - lines_read_);
    lines_ += static_cast<size_t>(std::count(more.begin(), more.end(), '\n'));
    lines_read_ = read;
    return 1 + static_cast<int>(lines_);
  }
  Status wrong(std::string_view what) const {
    return invalid_argument("grammar, line {}: {}", line(), what);
  }
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  void skip_space(bool newlines) {
    while (!rest_.empty()) {
      if (rest_[0] == '#') {
        rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
      } else if (rest_[0] == ' ' || rest_[0] == '\t' ||
                 (newlines && (rest_[0] == '\n' || rest_[0] == '\r'))) {
        rest_.remove_prefix(1);
      } else {
        return;
      }
    }
  }
  std::string_view name() {
    size_t length = 0;
    while (length < rest_.size() && name_char(rest_[length])) ++length;
    const auto found = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return found;
  }
  Entry& entry(std::string_view rule_name) {
    const auto [it, added] = rules_.try_emplace(std::string(rule_name));
    if (added) it->second = {ir_.rules().add(std::string(rule_name)), false, line()};
    return it->second;
  }

  // Returns whether the next rule begins here, after white space: NAME ::=
  bool at_rule_start() {
    const auto saved = rest_;
    skip_space(true);
    const bool named = !name().empty();
    skip_space(false);
    const bool found = named && rest_.starts_with("::=");
    rest_ = saved;
    return found;
  }

  Status rule() {
    const auto rule_name = name();
    if (rule_name.empty()) return wrong("a rule's name is expected");
    skip_space(false);
    if (!take("::=")) return wrong(fmt::format("'::=' is expected after '{}'", rule_name));
    Entry& made = entry(rule_name);
    if (made.defined) return wrong(fmt::format("rule '{}' is defined twice", rule_name));
    made.defined = true;
    const RuleId id = made.id;
    ESP_ASSIGN_OR_RETURN(const ExprId body, choice(0));
    if (rest_.starts_with(")")) return wrong("unmatched ')'");
    ir_.rules().set_body(id, body);
    return {};
  }

  Result<ExprId> choice(int depth) {
    if (depth > kGroupDepthMax) return fail(wrong("groups nest too deeply"));
    std::vector<ExprId> parts;
    do {
      ESP_ASSIGN_OR_RETURN(const ExprId part, sequence(depth));
      parts.push_back(part);
      if (!at_rule_start()) skip_space(true);
    } while (take("|"));
    return ir_.choice(parts);
  }

  Result<ExprId> sequence(int depth) {
    std::vector<ExprId> parts;
    while (true) {
      if (at_rule_start()) break;
      skip_space(true);
      if (rest_.empty() || rest_[0] == '|' || rest_[0] == ')') break;
      ESP_ASSIGN_OR_RETURN(ExprId part, atom(depth));
      ESP_ASSIGN_OR_RETURN(part, quantified(part));
      parts.push_back(part);
    }
    return ir_.sequence(parts);
  }

  // llama.cpp allows white space between an element and its repetition.
  void skip_space_before_repetition() {
    const auto saved = rest_;
    skip_space(true);
    if (rest_.empty() || std::string_view("*+?{").find(rest_[0]) == std::string_view::npos)
      rest_ = saved;
  }

  // Parses {m}, {m,}, {,n} or {m,n} after the opening brace.
  Result<std::pair<int32_t, int32_t>> bounds() {
    skip_space(true);
    const auto low = number();
    skip_space(true);
    auto high = low;
    if (take(",")) {
      skip_space(true);
      high = number();
      skip_space(true);
      if (!high) high = kUnbounded;
    } else if (!low) {
      return fail(wrong("a repetition needs a number"));
    }
    if (!take("}")) return fail(wrong("a repetition does not end: '}' is expected"));
    const int32_t min = low.value_or(0);
    if (min > kEbnfRepeatMax || *high > kEbnfRepeatMax)
      return fail(wrong("a repetition is bounded by more than 1048576"));
    if (*high != kUnbounded && *high < min)
      return fail(wrong("a repetition's bounds are reversed"));
    return std::pair(min, *high);
  }

  Result<ExprId> quantified(ExprId part) {
    while (true) {
      skip_space_before_repetition();
      if (take("*")) {
        part = ir_.star(part);
      } else if (take("+")) {
        part = ir_.repeat(part, 1, kUnbounded);
      } else if (take("?")) {
        part = ir_.optional(part);
      } else if (take("{")) {
        ESP_ASSIGN_OR_RETURN(const auto times, bounds());
        part = ir_.repeat(part, times.first, times.second);
      } else {
        return part;
      }
    }
  }

  std::optional<int32_t> number() {
    if (rest_.empty() || rest_[0] < '0' || rest_[0] > '9') return std::nullopt;
    int64_t value = 0;
    while (!rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9') {
      value = std::min<int64_t>(value * 10 + (rest_[0] - '0'), kEbnfRepeatMax + 1);
      rest_.remove_prefix(1);
    }
    return static_cast<int32_t>(value);
  }

  Result<ExprId> atom(int depth) {
    if (take("(")) {
      ESP_ASSIGN_OR_RETURN(const ExprId inner, choice(depth + 1));
      skip_space(true);
      if (!take(")")) return fail(wrong("a group does not end: ')' is expected"));
      return inner;
    }
    if (take("\"")) return literal();
    if (take("[")) return bracket();
    if (rest_.starts_with(".") && (rest_.size() == 1 || !name_char(rest_[1]))) {
      rest_.remove_prefix(1);
      return ir_.chars({{0, 0x10ffff}});
    }
    const auto rule_name = name();
    if (rule_name.empty()) {
      return fail(wrong(fmt::format("'{}' is not understood here", rest_.substr(0, 1))));
    }
    return ir_.rule(entry(rule_name).id);
  }

  Result<ExprId> literal() {
    std::string bytes;
    while (!take("\"")) {
      if (rest_.empty() || rest_[0] == '\n') return fail(wrong("a literal does not end"));
      ESP_ASSIGN_OR_RETURN(const uint32_t c, character());
      append_utf8(bytes, c);
    }
    return ir_.literal(bytes);
  }

  Result<ExprId> bracket() {
    const bool negated = take("^");
    std::vector<CodeRange> set;
    while (!take("]")) {
      if (rest_.empty() || rest_[0] == '\n') return fail(wrong("a character class does not end"));
      ESP_ASSIGN_OR_RETURN(const uint32_t low, character());
      uint32_t high = low;
      if (rest_.starts_with("-") && rest_.size() > 1 && rest_[1] != ']') {
        rest_.remove_prefix(1);
        ESP_ASSIGN_OR_RETURN(high, character());
        if (high < low) return fail(wrong("a range in a class is reversed"));
      }
      set.push_back({low, high});
    }
    set = normalized(std::move(set));
    return ir_.chars(negated ? complement(set) : set);
  }

  Result<uint32_t> character() {
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
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
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

  Result<uint32_t> hex(size_t digits) {
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
    if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) {
      return fail(wrong("there is no such character"));
    }
    return value;
  }

  Ir& ir_;
  const std::string_view text_;
  std::string_view rest_;
  std::map<std::string, Entry, std::less<>> rules_;
  mutable size_t lines_read_ = 0, lines_ = 0;  // bytes counted so far, and their lines
};

}  // namespace

Result<RuleId> parse_ebnf(Ir& ir, std::string_view text, std::string_view root) {
  return EbnfParser(ir, text).parse(root);
}

}  // namespace espalier::grammar
