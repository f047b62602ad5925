#include "grammar/frontends/regex_tree.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "grammar/automata/unicode.h"

namespace espalier::grammar {
namespace {

using Tree = RegexTree;

constexpr int kNestedGroupsMax = 200;  // nested groups
constexpr int kRepeatMax = 1 << 20;    // the largest bound of {m,n}
constexpr int kAnchoredRepeatMax = 100;
constexpr uint32_t kCodePointMax = 0x10ffff;

// The pattern and how far it has been read. REQUIRES: the pattern is valid UTF-8.
class PatternText {
 public:
  explicit PatternText(std::string_view pattern) : pattern_(pattern), rest_(pattern) {}

  std::string_view rest() const { return rest_; }
  void set_rest(std::string_view rest) { rest_ = rest; }
  void skip(size_t bytes) { rest_.remove_prefix(bytes); }
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  uint32_t take_character() { return *take_code_point(rest_); }  // REQUIRES: rest() is not empty

  Status wrong(std::string_view what) const {
    return invalid_argument("regex, at byte {}: {} in '{}'", pattern_.size() - rest_.size(), what,
                            pattern_.substr(0, 200));
  }

 private:
  std::string_view pattern_, rest_;
};

// Parses what stands for one character: escapes and classes in brackets. Borrows the text.
class CharacterParser {
 public:
  explicit CharacterParser(PatternText& text) : text_(text) {}

  // What (?i) and (?s) switch on.
  struct Flags {
    bool ignore_case = false;
    bool dot_all = false;  // whether . is \n too
  };
  Flags& flags() { return flags_; }

  Tree any() const {
    return regex_chars(flags_.dot_all ? complement({}) : complement({{'\n', '\n'}}));
  }
  Tree literal(uint32_t code_point) const {
    return with_case(regex_chars({{code_point, code_point}}));
  }
  // Parses what follows a backslash.
  Result<Tree> escape() {
    if (text_.rest().empty()) return fail(text_.wrong("a backslash at the end"));
    if (text_.take("A")) return regex_tree(Tree::Kind::kTextStart);
    if (text_.take("Z") || text_.take("z")) return regex_tree(Tree::Kind::kTextEnd);
    if (text_.rest()[0] == 'b' || text_.rest()[0] == 'B') {
      return fail(text_.wrong("word boundaries are not supported"));
    }
    if ((text_.rest()[0] >= '1' && text_.rest()[0] <= '9') || text_.rest()[0] == 'k') {
      return fail(text_.wrong("back-references are not supported"));
    }
    ESP_ASSIGN_OR_RETURN(auto set, escaped_set());
    if (set) return with_case(regex_chars(std::move(*set)));
    ESP_ASSIGN_OR_RETURN(const uint32_t code_point, escaped_char());
    return literal(code_point);
  }

  // Parses what follows '['.
  Result<Tree> bracket() {
    const bool negated = text_.take("^");
    std::vector<CodeRange> set;
    while (!text_.take("]")) {
      if (text_.rest().empty()) return fail(text_.wrong("a character class does not end"));
      ESP_ASSIGN_OR_RETURN(auto low, bracket_item());
      const bool range =
          text_.rest().starts_with("-") && text_.rest().size() > 1 && text_.rest()[1] != ']';
      if (low.size() != 1 || low[0].low != low[0].high || !range) {
        set.insert(set.end(), low.begin(), low.end());
        continue;
      }
      text_.skip(1);
      ESP_ASSIGN_OR_RETURN(auto high, bracket_item());
      if (high.size() != 1 || high[0].low != high[0].high) {
        set.insert(set.end(), high.begin(), high.end());  // in [a-\d], '-' is a literal
        set.insert(set.end(), {low[0], {'-', '-'}});
        continue;
      }
      if (high[0].low < low[0].low) return fail(text_.wrong("a range in a class is reversed"));
      set.push_back({low[0].low, high[0].low});
    }
    set = normalized(std::move(set));
    if (flags_.ignore_case) set = with_other_cases(set);
    return regex_chars(negated ? complement(set) : std::move(set));
  }

 private:
  Tree with_case(Tree tree) const {
    if (flags_.ignore_case) tree.chars = with_other_cases(tree.chars);
    return tree;
  }

  // Parses \d and its kin, or \p{..}; returns nothing when the escape is one character.
  Result<std::optional<std::vector<CodeRange>>> escaped_set() {
    using Set = std::optional<std::vector<CodeRange>>;
    switch (text_.rest()[0]) {
      case 'd':
        text_.skip(1);
        return Set(digit_chars());
      case 'D':
        text_.skip(1);
        return Set(complement(digit_chars()));
      case 'w':
        text_.skip(1);
        return Set(word_chars());
      case 'W':
        text_.skip(1);
        return Set(complement(word_chars()));
      case 's':
        text_.skip(1);
        return Set(space_chars());
      case 'S':
        text_.skip(1);
        return Set(complement(space_chars()));
      case 'p':
      case 'P':
        break;
      default:
        return Set();
    }
    const bool negated = text_.rest()[0] == 'P';
    text_.skip(1);
    const size_t end = text_.rest().find('}');
    if (!text_.rest().starts_with("{") || end == std::string_view::npos) {
      return fail(text_.wrong("\\p needs a property in braces"));
    }
    std::string_view name = text_.rest().substr(1, end - 1);
    for (std::string_view prefix : {"gc=", "General_Category="}) {
      if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
    }
    auto set = category_chars(name);
    if (!set) {
      return fail(text_.wrong(fmt::format("the Unicode property '{}' is not supported", name)));
    }
    text_.skip(end + 1);
    return Set(negated ? complement(*set) : std::move(*set));
  }

  Result<uint32_t> hex(size_t digits) {
    if (text_.rest().size() < digits) return fail(text_.wrong("an escape ends too early"));
    uint32_t value = 0;
    for (char c : text_.rest().substr(0, digits)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return fail(text_.wrong("an escape needs hexadecimal digits"));
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    text_.skip(digits);
    return value;
  }

  Result<uint32_t> escaped_char() {
    const uint32_t c = text_.take_character();
    switch (c) {
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        return '\a';
      case 'e':
        return 0x1b;
      case '0':
        return 0;
      case 'c':
        if (text_.rest().empty()) return fail(text_.wrong("\\c needs a letter"));
        return text_.take_character() & 0x1f;
      case 'x':
        return hex(2);
      case 'U':
        return hex(8);
      case 'u':
        break;
      default:
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
          return fail(
              text_.wrong(fmt::format("the escape \\{} is not supported", static_cast<char>(c))));
        }
        return c;
    }
    if (text_.take("{")) {
      const size_t end = text_.rest().find('}');
      if (end == std::string_view::npos || end == 0 || end > 6) {
        return fail(text_.wrong("\\u{} needs one to six digits"));
      }
      ESP_ASSIGN_OR_RETURN(const uint32_t value, hex(end));
      text_.take("}");
      if (value > kCodePointMax) return fail(text_.wrong("there is no such code point"));
      return value;
    }
    ESP_ASSIGN_OR_RETURN(const uint32_t high, hex(4));
    const bool pair = high >= 0xd800 && high < 0xdc00 && text_.take("\\u");
    if (!pair) return high;
    ESP_ASSIGN_OR_RETURN(const uint32_t low, hex(4));
    if (low < 0xdc00 || low > 0xdfff) return fail(text_.wrong("a lone surrogate"));
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
  }

  Result<std::vector<CodeRange>> bracket_item() {
    if (!text_.take("\\")) {
      const uint32_t c = text_.take_character();
      return std::vector<CodeRange>{{c, c}};
    }
    if (text_.rest().empty()) return fail(text_.wrong("a character class does not end"));
    if (text_.take("b")) return std::vector<CodeRange>{{'\b', '\b'}};
    ESP_ASSIGN_OR_RETURN(auto set, escaped_set());
    if (set) return std::move(*set);
    ESP_ASSIGN_OR_RETURN(const uint32_t c, escaped_char());
    return std::vector<CodeRange>{{c, c}};
  }

  PatternText& text_;
  Flags flags_;
};

// Parses the structure of a pattern: choices, sequences, repetitions, groups.
class RegexParser {
 public:
  RegexParser(PatternText text, bool single_quantifiers)
      : text_(text), characters_(text_), single_quantifiers_(single_quantifiers) {}
  RegexParser(const RegexParser&) = delete;
  RegexParser& operator=(const RegexParser&) = delete;

  Result<Tree> parse() {
    while (true) {  // flags of the whole pattern
      if (text_.take("(?i)")) {
        characters_.flags().ignore_case = true;
      } else if (text_.take("(?s)")) {
        characters_.flags().dot_all = true;
      } else {
        break;
      }
    }
    ESP_ASSIGN_OR_RETURN(Tree tree, choice(0));
    if (!text_.rest().empty()) return fail(text_.wrong("unmatched ')'"));
    return tree;
  }

 private:
  Result<Tree> choice(int depth) {
    if (depth > kNestedGroupsMax) return fail(text_.wrong("groups nest too deeply"));
    std::vector<Tree> parts;
    do {
      ESP_ASSIGN_OR_RETURN(Tree part, sequence(depth));
      parts.push_back(std::move(part));
    } while (text_.take("|"));
    if (parts.size() == 1) return std::move(parts[0]);
    return regex_tree(Tree::Kind::kChoice, std::move(parts));
  }

  Result<Tree> sequence(int depth) {
    std::vector<Tree> parts;
    while (!text_.rest().empty() && text_.rest()[0] != '|' && text_.rest()[0] != ')') {
      ESP_ASSIGN_OR_RETURN(Tree part, atom(depth));
      ESP_ASSIGN_OR_RETURN(part, quantified(std::move(part)));
      parts.push_back(std::move(part));
    }
    if (parts.size() == 1) return std::move(parts[0]);
    if (parts.empty()) return regex_tree(Tree::Kind::kEmpty);
    return regex_tree(Tree::Kind::kSequence, std::move(parts));
  }

  Result<Tree> quantified(Tree part) {
    while (true) {
      int32_t min = 0, max = kUnbounded;
      if (text_.take("*")) {
      } else if (text_.take("+")) {
        min = 1;
      } else if (text_.take("?")) {
        max = 1;
      } else if (auto bounds = braces(); bounds) {
        min = bounds->first;
        max = bounds->second;
      } else {
        return part;
      }
      if (max != kUnbounded && max < min)
        return fail(text_.wrong("a repetition's bounds are reversed"));
      if (part.anchored && std::max(min, max) > kAnchoredRepeatMax) {
        return fail(text_.wrong("a repetition of more than 100 holds an anchor or a look-ahead"));
      }
      if (min > kRepeatMax || max > kRepeatMax) {
        return fail(text_.wrong("a repetition is bounded by more than 1048576"));
      }
      text_.take("?");  // lazy repetition has the same language
      if (text_.rest().starts_with("+") && single_quantifiers_)
        return fail(text_.wrong("nothing to repeat"));
      if (text_.rest().starts_with("+"))
        return fail(text_.wrong("possessive quantifiers are not supported"));
      Tree repeat = regex_tree(Tree::Kind::kRepeat);
      repeat.anchored = part.anchored;
      repeat.children.push_back(std::move(part));
      repeat.min = min;
      repeat.max = max;
      part = std::move(repeat);
      const bool another =
          text_.rest().starts_with("*") || text_.rest().starts_with("?") || has_braces();
      if (single_quantifiers_ && another) return fail(text_.wrong("nothing to repeat"));
    }
  }

  // Returns whether a repetition in braces is next.
  bool has_braces() {
    const auto saved = text_.rest();
    const bool found = braces().has_value();
    text_.set_rest(saved);
    return found;
  }

  Result<Tree> atom(int depth) {
    if (text_.take("(")) return group(depth);
    if (text_.take("[")) return characters_.bracket();
    if (text_.take(".")) return characters_.any();
    if (text_.take("^")) return regex_tree(Tree::Kind::kTextStart);
    if (text_.take("$")) return regex_tree(Tree::Kind::kTextEnd);
    if (text_.rest()[0] == '*' || text_.rest()[0] == '+' || text_.rest()[0] == '?') {
      return fail(text_.wrong("nothing to repeat"));
    }
    if (text_.take("\\")) return characters_.escape();
    return characters_.literal(text_.take_character());
  }

  Result<Tree> group(int depth) {
    if (text_.take("?")) {
      if (text_.take(":")) {
      } else if (text_.take("P<") ||
                 (text_.rest().starts_with("<") && !text_.rest().starts_with("<=") &&
                  !text_.rest().starts_with("<!") && text_.take("<"))) {
        const size_t end = text_.rest().find('>');
        if (end == std::string_view::npos) return fail(text_.wrong("a group's name does not end"));
        text_.skip(end + 1);
      } else if (text_.rest().starts_with("=") || text_.rest().starts_with("!")) {
        return lookahead(depth);
      } else if (text_.rest().starts_with("<")) {
        return fail(text_.wrong("look-behind is not supported"));
      } else {
        return flagged_group(depth);
      }
    }
    ESP_ASSIGN_OR_RETURN(Tree inner, choice(depth + 1));
    if (!text_.take(")")) return fail(text_.wrong("a group does not end"));
    return inner;
  }

  // (?i:...) and (?s:...), whose flags end with the group.
  Result<Tree> flagged_group(int depth) {
    const CharacterParser::Flags outer = characters_.flags();
    while (!text_.take(":")) {
      if (text_.take("s")) {
        characters_.flags().dot_all = true;
      } else if (text_.take("i")) {
        characters_.flags().ignore_case = true;
      } else {
        return fail(text_.wrong("this kind of group is not supported"));
      }
    }
    ESP_ASSIGN_OR_RETURN(Tree inner, choice(depth + 1));
    if (!text_.take(")")) return fail(text_.wrong("a group does not end"));
    characters_.flags() = outer;
    return inner;
  }

  Result<Tree> lookahead(int depth) {
    const bool wanted = text_.rest()[0] == '=';
    text_.skip(1);
    ESP_ASSIGN_OR_RETURN(Tree inner, choice(depth + 1));
    if (!text_.take(")")) return fail(text_.wrong("a group does not end"));
    Tree made = regex_tree(Tree::Kind::kLookahead);
    made.children.push_back(std::move(inner));
    made.wanted = wanted;
    return made;
  }

  // Parses {m}, {m,}, {m,n} or {,n} at the front; returns nothing for a literal brace.
  std::optional<std::pair<int32_t, int32_t>> braces() {
    if (!text_.rest().starts_with("{")) return std::nullopt;
    std::string_view text = text_.rest().substr(1);
    const auto number = [&]() -> std::optional<int32_t> {
      if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
      int64_t value = 0;
      while (!text.empty() && text[0] >= '0' && text[0] <= '9') {
        value = std::min<int64_t>(value * 10 + (text[0] - '0'), kRepeatMax + 1);
        text.remove_prefix(1);
      }
      return static_cast<int32_t>(value);
    };
    const auto low = number();
    auto high = low;
    if (text.starts_with(",")) {
      text.remove_prefix(1);
      high = number();
      if (!low && !high) return std::nullopt;
      if (!high) high = kUnbounded;
    } else if (!low) {
      return std::nullopt;
    }
    if (!text.starts_with("}")) return std::nullopt;
    text_.set_rest(text.substr(1));
    return std::pair(low.value_or(0), *high);
  }

  PatternText text_;
  CharacterParser characters_;
  const bool single_quantifiers_;
};

}  // namespace

RegexTree regex_tree(RegexTree::Kind kind, std::vector<RegexTree> children) {
  RegexTree tree;
  tree.kind = kind;
  tree.children = std::move(children);
  tree.anchored = kind == RegexTree::Kind::kTextStart || kind == RegexTree::Kind::kTextEnd ||
                  kind == RegexTree::Kind::kLookahead;
  for (const RegexTree& child : tree.children) tree.anchored |= child.anchored;
  return tree;
}

RegexTree regex_chars(std::vector<CodeRange> ranges) {
  RegexTree tree;
  tree.kind = RegexTree::Kind::kChars;
  tree.chars = normalized(std::move(ranges));
  return tree;
}

Result<RegexTree> parse_regex_tree(std::string_view pattern, bool single_quantifiers) {
  if (!valid_utf8(pattern)) return fail(invalid_argument("the regex is not valid UTF-8"));
  PatternText text(pattern);
  return RegexParser(text, single_quantifiers).parse();
}

}  // namespace espalier::grammar
