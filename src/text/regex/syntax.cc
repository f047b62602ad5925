#include "text/regex/syntax.h"

#include <optional>
#include <string>
#include <utility>

#include "text/unicode/utf8.h"

namespace espalier {

namespace {

// RE2's syntax and limits: what is accepted here matches in linear time. The depth bounds the
// parser's own stack and that of functions that walk the tree; the size bounds the tree.
constexpr int32_t kRepeatMax = 1000;  // RE2's
constexpr int kDepthMax = 200;
constexpr size_t kPatternBytesMax = 16 << 10;

struct Flags {
  bool ignore_case = false, multi_line = false, dot_all = false;
};

class SyntaxParser {
 public:
  explicit SyntaxParser(std::string_view pattern) : pattern_(pattern) {}

  Result<RegexTree> parse() {
    if (pattern_.size() > kPatternBytesMax) return refuse("it has more than 16384 bytes");
    if (!is_valid_utf8(pattern_)) return refuse("it is not valid UTF-8");
    ESP_ASSIGN_OR_RETURN([[maybe_unused]] const int32_t root, alternatives());
    if (!at_end()) return refuse("a ')' has no '('");
    return std::move(tree_);
  }

 private:
  using Node = RegexTree::Node;
  using Kind = RegexTree::Kind;
  using Parsed = Result<int32_t>;  // the index of a node

  bool at_end() const { return at_ == pattern_.size(); }
  std::string_view rest() const { return pattern_.substr(at_); }
  bool take(std::string_view text) {
    if (!rest().starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  uint32_t take_char() {
    const Utf8Char c = decode_utf8(pattern_, at_);
    at_ += c.size;
    return c.code;
  }
  Status refused(std::string_view why) const {
    return invalid_argument("the regular expression '{}' is refused at byte {}: {}", pattern_, at_,
                            why);
  }
  tl::unexpected<Status> refuse(std::string_view why) const { return fail(refused(why)); }

  int32_t add(Node node) {
    tree_.nodes.push_back(std::move(node));
    return static_cast<int32_t>(tree_.nodes.size()) - 1;
  }
  int32_t add_set(CharSet set) {
    if (flags_.ignore_case) set = set.folded();
    return add({.kind = Kind::kChar, .set = std::move(set)});
  }
  int32_t add_assertion(RegexAssertion assertion) {
    return add({.kind = Kind::kAssertion, .assertion = assertion});
  }

  Parsed alternatives();
  Parsed sequence();
  Parsed repeated();
  Parsed atom();
  Parsed group();
  Parsed escape();
  Parsed bracket();
  Status repeat_bounds(int32_t& min, int32_t& max, bool& found);
  Status group_flags();
  Status group_name(char end);
  Status bracket_item(CharSet& set);
  Result<std::optional<CharSet>> class_escape();
  Result<uint32_t> char_escape();
  Result<uint32_t> hexadecimal();

  const std::string_view pattern_;
  size_t at_ = 0;
  int depth_ = 0;
  bool quoted_ = false;  // between \Q and \E
  Flags flags_;
  RegexTree tree_;
};

// Flags that are set within a group, as in (?i), hold until the group ends and for its later
// alternatives too. The root of the tree is the node that is added last.
SyntaxParser::Parsed SyntaxParser::alternatives() {
  if (++depth_ > kDepthMax) return refuse("it is nested more than 200 deep");
  const Flags outside = flags_;
  Node node{.kind = Kind::kAlternatives};
  do {
    ESP_ASSIGN_OR_RETURN(const int32_t child, sequence());
    node.children.push_back(child);
  } while (take("|"));
  flags_ = outside;
  --depth_;
  return add(std::move(node));
}

SyntaxParser::Parsed SyntaxParser::sequence() {
  Node node{.kind = Kind::kSequence};
  while (!at_end()) {
    if (quoted_ ? take("\\E") : take("\\Q")) {
      quoted_ = !quoted_;
      continue;
    }
    if (!quoted_ && (rest()[0] == '|' || rest()[0] == ')')) break;
    ESP_ASSIGN_OR_RETURN(const int32_t child, repeated());
    node.children.push_back(child);
  }
  return add(std::move(node));
}

// One repetition at most for an atom: RE2 refuses a** and a{2}{3}, whose automata would multiply.
SyntaxParser::Parsed SyntaxParser::repeated() {
  if (quoted_) {
    const uint32_t code = take_char();
    return add_set({{code, code}});
  }
  ESP_ASSIGN_OR_RETURN(int32_t child, atom());
  bool repeats = false;
  while (true) {
    int32_t min = 0, max = 0;
    bool found = false;
    ESP_RETURN_IF_ERROR(repeat_bounds(min, max, found));
    if (!found) return child;
    if (std::exchange(repeats, true)) return refuse("a repetition follows a repetition");
    take("?");  // lazy: the same texts match
    Node node{.kind = Kind::kRepeat, .repeat_min = min, .repeat_max = max};
    node.children = {child};
    child = add(std::move(node));
  }
}

// "{" that begins no repetition is a literal, as in RE2.
Status SyntaxParser::repeat_bounds(int32_t& min, int32_t& max, bool& found) {
  found = true;
  max = RegexTree::kUnbounded;
  if (take("*")) return {};
  if (take("+")) return min = 1, Status();
  if (take("?")) return max = 1, Status();
  found = false;
  const size_t begin = at_;
  if (!take("{")) return {};
  const auto number = [&](int32_t& out) {
    const size_t first = at_;
    for (out = 0; !at_end() && rest()[0] >= '0' && rest()[0] <= '9'; ++at_)
      out = std::min(out * 10 + (rest()[0] - '0'), kRepeatMax + 1);
    return at_ > first;
  };
  bool good = number(min);
  max = min;
  if (good && take(",") && !number(max)) max = RegexTree::kUnbounded;
  good = good && take("}");
  found = good;
  if (!good) return at_ = begin, Status();
  if (min > kRepeatMax || max > kRepeatMax || (max >= 0 && max < min))
    return refused("a repetition is beyond 1000, or its bounds are in disorder");
  return {};
}

SyntaxParser::Parsed SyntaxParser::atom() {
  switch (rest()[0]) {
    case '(':
      return group();
    case '[':
      return bracket();
    case '\\':
      return escape();
    case '*':
    case '+':
    case '?':
      return refuse("a repetition has nothing to repeat");
    case '.':
      ++at_;
      return add(
          {.kind = Kind::kChar,
           .set = flags_.dot_all ? CharSet{{0, kMaxCodePoint}} : CharSet{{'\n', '\n'}}.negated()});
    case '^':
      ++at_;
      return add_assertion(flags_.multi_line ? RegexAssertion::kLineBegin
                                             : RegexAssertion::kTextBegin);
    case '$':
      ++at_;
      return add_assertion(flags_.multi_line ? RegexAssertion::kLineEnd : RegexAssertion::kTextEnd);
    default: {
      const uint32_t code = take_char();
      return add_set({{code, code}});
    }
  }
}

// Groups capture nothing here, since a stop expression asks only where a match ends; names are
// checked and then forgotten.
SyntaxParser::Parsed SyntaxParser::group() {
  for (const std::string_view look : {"(?=", "(?!", "(?<=", "(?<!"})
    if (rest().starts_with(look))
      return refuse("look-around does not match in linear time: leave it out");
  take("(");
  const Flags outside = flags_;
  if (take("?P<") || take("?<")) {
    ESP_RETURN_IF_ERROR(group_name('>'));
  } else if (take("?")) {
    ESP_RETURN_IF_ERROR(group_flags());
    if (take(")")) return add({.kind = Kind::kEmpty});  // to the end of the group around it
    if (!take(":")) return refuse("this kind of group is unknown");
  }
  ESP_ASSIGN_OR_RETURN(const int32_t child, alternatives());
  if (!take(")")) return refuse("a ')' is missing");
  flags_ = outside;
  return child;
}

// U (lazy by default) is accepted without effect, for it does not change which texts match.
Status SyntaxParser::group_flags() {
  bool on = true;
  for (; !at_end(); ++at_) {
    const char c = rest()[0];
    if (c == 'i') flags_.ignore_case = on;
    if (c == 'm') flags_.multi_line = on;
    if (c == 's') flags_.dot_all = on;
    if (c == '-' && std::exchange(on, false)) continue;
    if (std::string_view("imsU").find(c) == std::string_view::npos) return {};
  }
  return {};
}

Status SyntaxParser::group_name(char end) {
  const size_t begin = at_;
  while (!at_end() && rest()[0] != end) {
    const bool word = perl_class('w')->contains(static_cast<unsigned char>(rest()[0]));
    if (!word) return refused("a group's name takes letters, digits and _");
    ++at_;
  }
  if (at_ == begin || at_end()) return refused("a group's name is missing");
  ++at_;
  return {};
}

SyntaxParser::Parsed SyntaxParser::escape() {
  struct Named {
    std::string_view text;
    RegexAssertion assertion;
  };
  constexpr Named kAssertions[] = {{"\\A", RegexAssertion::kTextBegin},
                                   {"\\z", RegexAssertion::kTextEnd},
                                   {"\\b", RegexAssertion::kWordBoundary},
                                   {"\\B", RegexAssertion::kNoWordBoundary}};
  for (const Named& named : kAssertions)
    if (take(named.text)) return add_assertion(named.assertion);
  ESP_ASSIGN_OR_RETURN(const auto set, class_escape());
  if (set) return add_set(*set);
  ESP_ASSIGN_OR_RETURN(const uint32_t code, char_escape());
  return add_set({{code, code}});
}

// \d, \pL and the like; nothing, and nothing taken, where another escape stands.
Result<std::optional<CharSet>> SyntaxParser::class_escape() {
  const char letter = rest().size() > 1 ? rest()[1] : '\0';
  const bool upper = letter >= 'A' && letter <= 'Z';
  const auto lower = static_cast<char>(upper ? letter - 'A' + 'a' : letter);
  if (const auto set = perl_class(lower)) {
    at_ += 2;
    return upper ? set->negated() : *set;
  }
  if (lower != 'p') return std::nullopt;
  at_ += 2;
  if (at_end()) return refuse("\\p names no class");
  std::string_view name = rest().substr(0, 1);
  const bool braced = name == "{";
  if (braced && rest().find('}') == std::string_view::npos) return refuse("a '}' is missing");
  if (braced) name = rest().substr(1, rest().find('}') - 1);
  const bool caret = name.starts_with('^');
  const auto set = category_class(name.substr(caret ? 1 : 0));
  if (!set)
    return refuse("this class of characters is unknown: give a general category, as \\p{Lu}");
  at_ += name.size() + (braced ? 2 : 0);
  return upper != caret ? set->negated() : *set;
}

Result<uint32_t> SyntaxParser::hexadecimal() {
  const bool braced = take("{");
  uint32_t code = 0;
  int count = 0;
  for (; !at_end() && (braced || count < 2); ++at_, ++count) {
    const auto c = static_cast<unsigned char>(rest()[0]);
    if (!posix_class("xdigit")->contains(c)) break;
    code = code * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    if (code > kMaxCodePoint) return refuse("\\x is beyond U+10FFFF");
  }
  if (count == 0 || (!braced && count < 2) || (braced && !take("}")))
    return refuse("\\x takes two hexadecimal digits, or some in braces");
  return code;
}

// A digit from 1 to 7 that another octal digit follows is an octal number; alone it would be a
// back-reference, which is refused. Letters without a meaning are refused too, as RE2 does, so that
// a typing error is no literal.
Result<uint32_t> SyntaxParser::char_escape() {
  constexpr std::pair<char, char> kControls[] = {{'a', '\a'}, {'f', '\f'}, {'n', '\n'},
                                                 {'r', '\r'}, {'t', '\t'}, {'v', '\v'}};
  take("\\");
  if (at_end()) return refuse("it ends with a '\\'");
  const char letter = rest()[0];
  for (const auto& [name, control] : kControls)
    if (name == letter) return ++at_, static_cast<uint32_t>(control);
  if (take("x")) return hexadecimal();
  const auto is_octal = [&] { return !at_end() && rest()[0] >= '0' && rest()[0] <= '7'; };
  if (letter >= '1' && letter <= '9' &&
      (letter > '7' || rest().size() < 2 || rest()[1] < '0' || rest()[1] > '7'))
    return refuse("back-references do not match in linear time: leave them out");
  if (is_octal()) {
    uint32_t code = 0;
    for (int i = 0; i < 3 && is_octal(); ++i, ++at_)
      code = code * 8 + static_cast<uint32_t>(rest()[0] - '0');
    return code;
  }
  const auto code = static_cast<unsigned char>(letter);
  if (code >= 0x80 || posix_class("word")->contains(code))
    return refuse(code == '_' ? "\\_ is unknown" : "this escape is unknown");
  return ++at_, uint32_t{code};
}

// A ']' that comes first is a literal. Letters are folded before the set is negated: (?i)[^a]
// excludes A.
SyntaxParser::Parsed SyntaxParser::bracket() {
  take("[");
  const bool negated = take("^");
  CharSet set;
  bool first = true;
  while (first || !rest().starts_with("]")) {
    if (at_end()) return refuse("a ']' is missing");
    ESP_RETURN_IF_ERROR(bracket_item(set));
    first = false;
  }
  take("]");
  if (flags_.ignore_case) set = set.folded();
  return add({.kind = Kind::kChar, .set = negated ? set.negated() : set});
}

Status SyntaxParser::bracket_item(CharSet& set) {
  if (rest().starts_with("[:")) {
    const size_t end = rest().find(":]");
    std::string_view name = rest().substr(2, end == std::string_view::npos ? 0 : end - 2);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    const auto known = posix_class(name);
    if (!known) return refused("this [:class:] is unknown");
    set.add(negated ? known->negated() : *known);
    at_ += end + 2;
    return {};
  }
  if (rest()[0] == '\\') {
    ESP_ASSIGN_OR_RETURN(const auto escaped, class_escape());
    if (escaped) return set.add(*escaped), Status();
  }
  const auto take_end = [&]() -> Result<uint32_t> {
    if (!at_end() && rest()[0] == '\\') return char_escape();
    if (at_end()) return refuse("a ']' is missing");
    return take_char();
  };
  ESP_ASSIGN_OR_RETURN(const uint32_t low, take_end());
  uint32_t high = low;
  if (rest().starts_with("-") && !rest().starts_with("-]")) {
    take("-");
    ESP_ASSIGN_OR_RETURN(high, take_end());
  }
  if (high < low) return refused("a range of characters ends before it begins");
  set.add(CodePointRange{low, high});
  return {};
}

}  // namespace

Result<RegexTree> parse_regex_syntax(std::string_view pattern) {
  return SyntaxParser(pattern).parse();
}

}  // namespace espalier
