// Regular expressions and EBNF of the naive matcher: the parts that both dialects and all engines
// agree on.
#include <algorithm>
#include <map>

#include "naive.h"

namespace espalier::naive {
namespace {

constexpr uint32_t kLast = 0x10ffff;

std::vector<CodePoints> without(std::vector<CodePoints> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodePoints& a, const CodePoints& b) { return a.low < b.low; });
  std::vector<CodePoints> out;
  uint32_t from = 0;
  for (const CodePoints& r : ranges) {
    if (r.low > from) out.push_back({from, r.low - 1});
    from = std::max(from, r.high + 1);
  }
  if (from <= kLast) out.push_back({from, kLast});
  return out;
}

// The next character of UTF-8 text, taken off.
uint32_t take_character(std::string_view& text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  const size_t size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  uint32_t value = size == 1 ? lead : lead & (0xffu >> (size + 1));
  for (size_t i = 1; i < size && i < text.size(); ++i)
    value = value << 6 | (static_cast<uint8_t>(text[i]) & 0x3fu);
  text.remove_prefix(std::min(size, text.size()));
  return value;
}

struct UnknownText {};  // thrown where the text is not of the subset; caught in this file

// {m}, {m,} and {m,n}, at their brace.
std::pair<int32_t, int32_t> take_counts(std::string_view& rest) {
  rest.remove_prefix(1);
  const auto number = [&] {
    size_t digits = 0;
    while (digits < rest.size() && std::isdigit(static_cast<unsigned char>(rest[digits])) != 0)
      ++digits;
    if (digits == 0 || digits > 6) throw UnknownText();
    const int32_t value = std::stoi(std::string(rest.substr(0, digits)));
    rest.remove_prefix(digits);
    return value;
  };
  const int32_t min = number();
  int32_t max = min;
  if (rest.starts_with(',')) {
    rest.remove_prefix(1);
    max = rest.starts_with('}') ? kNoEnd : number();
  }
  if (!rest.starts_with('}')) throw UnknownText();
  rest.remove_prefix(1);
  return {min, max};
}

class Pattern {
 public:
  Pattern(Naive& naive, std::string_view text, Writing writing)
      : naive_(naive), rest_(text), writing_(writing) {}

  Expr whole(bool search) {
    // Anchors only at the ends of the whole: a top-level choice with anchors is not of the subset.
    const bool begins = search && rest_.starts_with('^');
    const bool ends = search && rest_.ends_with('$') && !rest_.ends_with("\\$");
    if ((begins || ends) && rest_.find('|') != std::string_view::npos) throw UnknownText();
    if (begins) rest_.remove_prefix(1);
    if (ends) rest_.remove_suffix(1);
    const Expr body = choice();
    if (!rest_.empty()) throw UnknownText();
    if (!search) return body;
    const Expr anything = naive_.repeat(naive_.one_of({{0, kLast}}, writing_), 0, kNoEnd);
    return naive_.sequence({begins ? kEmpty : anything, body, ends ? kEmpty : anything});
  }

 private:
  Expr choice() {
    std::vector<Expr> parts = {sequence()};
    while (rest_.starts_with('|')) {
      rest_.remove_prefix(1);
      parts.push_back(sequence());
    }
    return naive_.either(std::move(parts));
  }

  Expr sequence() {
    std::vector<Expr> parts;
    while (!rest_.empty() && rest_[0] != '|' && rest_[0] != ')') {
      Expr part = atom();
      while (!rest_.empty() && std::string_view("*+?{").find(rest_[0]) != std::string_view::npos) {
        std::pair<int32_t, int32_t> counts = {rest_[0] == '+' ? 1 : 0,
                                              rest_[0] == '?' ? 1 : kNoEnd};
        if (rest_[0] == '{') {
          counts = take_counts(rest_);
        } else {
          rest_.remove_prefix(1);
        }
        if (rest_.starts_with('?')) rest_.remove_prefix(1);  // lazy: the same texts
        if (rest_.starts_with('+')) throw UnknownText();     // possessive
        part = naive_.repeat(part, counts.first, counts.second);
      }
      parts.push_back(part);
    }
    return naive_.sequence(std::move(parts));
  }

  Expr atom() {
    if (rest_[0] == '(') {
      rest_.remove_prefix(1);
      if (rest_.starts_with("?:")) {
        rest_.remove_prefix(2);
      } else if (rest_.starts_with('?')) {
        throw UnknownText();
      }
      const Expr inner = choice();
      if (!rest_.starts_with(')')) throw UnknownText();
      rest_.remove_prefix(1);
      return inner;
    }
    return naive_.one_of(characters(), writing_);
  }

  std::vector<CodePoints> characters() {
    const char c = rest_[0];
    if (c == '[') return bracket();
    if (c == '\\') return escape();
    if (std::string_view("^$*+?{}]").find(c) != std::string_view::npos) throw UnknownText();
    if (c == '.') {
      rest_.remove_prefix(1);
      return without({{'\n', '\n'}});
    }
    const uint32_t one = take_character(rest_);
    return {{one, one}};
  }

  std::vector<CodePoints> escape() {
    rest_.remove_prefix(1);
    if (rest_.empty()) throw UnknownText();
    std::vector<CodePoints> digits = {{'0', '9'}};
    std::vector<CodePoints> word = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    const char c = rest_[0];
    rest_.remove_prefix(1);
    switch (c) {
      case 'd':
        return digits;
      case 'D':
        return without(digits);
      case 'w':
        return word;
      case 'W':
        return without(word);
      case 'n':
        return {{'\n', '\n'}};
      case 't':
        return {{'\t', '\t'}};
      case 'r':
        return {{'\r', '\r'}};
      default:
        break;
    }
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) throw UnknownText();
    return {{static_cast<uint8_t>(c), static_cast<uint8_t>(c)}};
  }

  std::vector<CodePoints> bracket() {
    rest_.remove_prefix(1);
    const bool inverted = rest_.starts_with('^');
    if (inverted) rest_.remove_prefix(1);
    std::vector<CodePoints> out;
    const auto one = [&]() -> std::vector<CodePoints> {
      if (rest_[0] == '\\') return escape();
      if (rest_[0] == '[') throw UnknownText();
      const uint32_t c = take_character(rest_);
      return {{c, c}};
    };
    while (!rest_.starts_with(']')) {
      if (rest_.empty()) throw UnknownText();
      std::vector<CodePoints> low = one();
      if (rest_.size() > 1 && rest_[0] == '-' && rest_[1] != ']') {
        rest_.remove_prefix(1);
        const std::vector<CodePoints> high = one();
        if (low.size() != 1 || high.size() != 1 || low[0].low != low[0].high ||
            high[0].low != high[0].high || high[0].low < low[0].low)
          throw UnknownText();
        low = {{low[0].low, high[0].low}};
      }
      out.insert(out.end(), low.begin(), low.end());
    }
    rest_.remove_prefix(1);
    if (out.empty()) throw UnknownText();
    return inverted ? without(std::move(out)) : out;
  }

  Naive& naive_;
  std::string_view rest_;
  const Writing writing_;
};

// Rules one a line: name ::= alternatives of "text", [class], names, groups, with * + ? {m,n}.
class Rules {
 public:
  Rules(Naive& naive, std::string_view text) : naive_(naive), rest_(text) {}

  Expr whole() {
    skip();
    while (!rest_.empty()) {
      const std::string name = take_name();
      skip();
      if (name.empty() || !rest_.starts_with("::=")) throw UnknownText();
      rest_.remove_prefix(3);
      naive_.set_rule(rule(name), choice());
      defined_[name] = true;
      skip();
    }
    for (const auto& [name, expr] : rules_)
      if (!defined_[name]) throw UnknownText();
    if (!defined_["root"]) throw UnknownText();
    return rules_["root"];
  }

 private:
  void skip() {
    while (!rest_.empty() &&
           (std::isspace(static_cast<unsigned char>(rest_[0])) != 0 || rest_[0] == '#')) {
      if (rest_[0] == '#') {
        rest_.remove_prefix(std::min(rest_.find('\n'), rest_.size()));
      } else {
        rest_.remove_prefix(1);
      }
    }
  }
  std::string take_name() {
    size_t size = 0;
    while (size < rest_.size() && (std::isalnum(static_cast<unsigned char>(rest_[size])) != 0 ||
                                   rest_[size] == '-' || rest_[size] == '_'))
      ++size;
    const std::string out(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return out;
  }
  Expr rule(const std::string& name) {
    const auto it = rules_.find(name);
    return it != rules_.end() ? it->second : rules_[name] = naive_.new_rule();
  }
  bool next_rule() {
    const std::string_view saved = rest_;
    const bool named = !take_name().empty();
    skip();
    const bool found = named && rest_.starts_with("::=");
    rest_ = saved;
    return found;
  }

  Expr choice() {
    std::vector<Expr> parts = {sequence()};
    while (rest_.starts_with('|')) {
      rest_.remove_prefix(1);
      parts.push_back(sequence());
    }
    return naive_.either(std::move(parts));
  }

  Expr sequence() {
    std::vector<Expr> parts;
    for (skip(); !rest_.empty() && rest_[0] != '|' && rest_[0] != ')' && !next_rule(); skip()) {
      Expr part = atom();
      while (!rest_.empty() && std::string_view("*+?{").find(rest_[0]) != std::string_view::npos) {
        std::pair<int32_t, int32_t> counts = {rest_[0] == '+' ? 1 : 0,
                                              rest_[0] == '?' ? 1 : kNoEnd};
        if (rest_[0] == '{') {
          counts = take_counts(rest_);
        } else {
          rest_.remove_prefix(1);
        }
        part = naive_.repeat(part, counts.first, counts.second);
      }
      parts.push_back(part);
    }
    return naive_.sequence(std::move(parts));
  }

  Expr atom() {
    if (rest_[0] == '(') {
      rest_.remove_prefix(1);
      const Expr inner = choice();
      if (!rest_.starts_with(')')) throw UnknownText();
      rest_.remove_prefix(1);
      return inner;
    }
    if (rest_[0] == '"') {
      rest_.remove_prefix(1);
      std::string text;
      while (!rest_.starts_with('"')) {
        if (rest_.empty()) throw UnknownText();
        if (rest_[0] == '\\') {
          rest_.remove_prefix(1);
          const char c = rest_.empty() ? '?' : rest_[0];
          if (std::string_view("nt\"\\").find(c) == std::string_view::npos) throw UnknownText();
          text += c == 'n' ? '\n' : c == 't' ? '\t' : c;
        } else {
          text += rest_[0];
        }
        rest_.remove_prefix(1);
      }
      rest_.remove_prefix(1);
      return naive_.text(text);
    }
    if (rest_[0] == '[') {
      const size_t end = rest_.find(']', 2);
      if (end == std::string_view::npos) throw UnknownText();
      const auto made = regex(naive_, rest_.substr(0, end + 1), Writing::kPlain, false);
      if (!made) throw UnknownText();
      rest_.remove_prefix(end + 1);
      return *made;
    }
    const std::string name = take_name();
    if (name.empty()) throw UnknownText();
    return rule(name);
  }

  Naive& naive_;
  std::string_view rest_;
  std::map<std::string, Expr> rules_;
  std::map<std::string, bool> defined_;
};

}  // namespace

std::optional<Expr> regex(Naive& naive, std::string_view pattern, Writing writing, bool search) {
  try {
    return Pattern(naive, pattern, writing).whole(search);
  } catch (const UnknownText&) {
    return std::nullopt;
  }
}

std::optional<Expr> ebnf(Naive& naive, std::string_view text) {
  try {
    const Expr root = Rules(naive, text).whole();
    naive.settle();
    return root;
  } catch (const UnknownText&) {
    return std::nullopt;
  }
}

}  // namespace espalier::naive
