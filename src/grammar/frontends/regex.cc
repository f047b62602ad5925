#include "grammar/frontends/regex.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "grammar/automata/unicode.h"

namespace espalier::grammar {
namespace {

constexpr int kDepthMax = 200;       // nested groups
constexpr int kRepeatMax = 1 << 20;  // the largest bound of {m,n}
constexpr int kAnchoredRepeatMax = 100;
// bound on the parts of sequences that anchors expand
constexpr size_t kAnchoredPartsMax = 1 << 20;
constexpr uint32_t kMaxCodePoint = 0x10ffff;

struct Tree {
  enum class Kind { kEmpty, kChars, kSequence, kChoice, kRepeat, kTextStart, kTextEnd };
  Kind kind = Kind::kEmpty;
  std::vector<CodeRange> chars;
  std::vector<Tree> children;
  int32_t min = 0, max = 0;
  bool anchored = false;  // whether the tree contains an anchor
};

Tree make(Tree::Kind kind, std::vector<Tree> children = {}) {
  Tree tree;
  tree.kind = kind;
  tree.children = std::move(children);
  tree.anchored = kind == Tree::Kind::kTextStart || kind == Tree::Kind::kTextEnd;
  for (const Tree& child : tree.children) tree.anchored |= child.anchored;
  return tree;
}

Tree chars(std::vector<CodeRange> ranges) {
  Tree tree;
  tree.kind = Tree::Kind::kChars;
  tree.chars = normalized(std::move(ranges));
  return tree;
}

class Parser {
 public:
  Parser(std::string_view pattern, bool single_quantifiers)
      : pattern_(pattern), rest_(pattern), single_quantifiers_(single_quantifiers) {}

  Result<Tree> parse() {
    if (!valid_utf8(pattern_)) return fail(invalid_argument("the regex is not valid UTF-8"));
    if (rest_.starts_with("(?i)")) {
      ignore_case_ = true;
      rest_.remove_prefix(4);
    }
    ESP_ASSIGN_OR_RETURN(Tree tree, choice(0));
    if (!rest_.empty()) return fail(wrong("unmatched ')'"));
    return tree;
  }

 private:
  Status wrong(std::string_view what) const {
    return invalid_argument("regex, at byte {}: {} in '{}'", pattern_.size() - rest_.size(), what,
                            pattern_.substr(0, 200));
  }
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  Result<Tree> choice(int depth) {
    if (depth > kDepthMax) return fail(wrong("groups nest too deeply"));
    std::vector<Tree> parts;
    do {
      ESP_ASSIGN_OR_RETURN(Tree part, sequence(depth));
      parts.push_back(std::move(part));
    } while (take("|"));
    if (parts.size() == 1) return std::move(parts[0]);
    return make(Tree::Kind::kChoice, std::move(parts));
  }

  Result<Tree> sequence(int depth) {
    std::vector<Tree> parts;
    while (!rest_.empty() && rest_[0] != '|' && rest_[0] != ')') {
      ESP_ASSIGN_OR_RETURN(Tree part, atom(depth));
      ESP_ASSIGN_OR_RETURN(part, quantified(std::move(part)));
      parts.push_back(std::move(part));
    }
    if (parts.size() == 1) return std::move(parts[0]);
    if (parts.empty()) return make(Tree::Kind::kEmpty);
    return make(Tree::Kind::kSequence, std::move(parts));
  }

  Result<Tree> quantified(Tree part) {
    while (true) {
      int32_t min = 0, max = kUnbounded;
      if (take("*")) {
      } else if (take("+")) {
        min = 1;
      } else if (take("?")) {
        max = 1;
      } else if (auto bounds = braces(); bounds) {
        min = bounds->first;
        max = bounds->second;
      } else {
        return part;
      }
      if (max != kUnbounded && max < min) return fail(wrong("a repetition's bounds are reversed"));
      if (part.anchored && std::max(min, max) > kAnchoredRepeatMax) {
        return fail(wrong("a repetition of more than 100 holds an anchor"));
      }
      if (min > kRepeatMax || max > kRepeatMax) {
        return fail(wrong("a repetition is bounded by more than 1048576"));
      }
      take("?");  // lazy repetition has the same language
      if (rest_.starts_with("+") && single_quantifiers_) return fail(wrong("nothing to repeat"));
      if (rest_.starts_with("+")) return fail(wrong("possessive quantifiers are not supported"));
      Tree repeat = make(Tree::Kind::kRepeat);
      repeat.anchored = part.anchored;
      repeat.children.push_back(std::move(part));
      repeat.min = min;
      repeat.max = max;
      part = std::move(repeat);
      const bool another = rest_.starts_with("*") || rest_.starts_with("?") || has_braces();
      if (single_quantifiers_ && another) return fail(wrong("nothing to repeat"));
    }
  }

  // Returns whether a repetition in braces is next.
  bool has_braces() {
    const auto saved = rest_;
    const bool found = braces().has_value();
    rest_ = saved;
    return found;
  }

  // Parses {m}, {m,}, {m,n} or {,n} at the front; returns nothing for a literal brace.
  std::optional<std::pair<int32_t, int32_t>> braces() {
    if (!rest_.starts_with("{")) return std::nullopt;
    std::string_view text = rest_.substr(1);
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
    rest_ = text.substr(1);
    return std::pair(low.value_or(0), *high);
  }

  Result<Tree> atom(int depth) {
    if (take("(")) return group(depth);
    if (take("[")) return bracket();
    if (take(".")) return chars(complement({{'\n', '\n'}}));
    if (take("^")) return make(Tree::Kind::kTextStart);
    if (take("$")) return make(Tree::Kind::kTextEnd);
    if (rest_[0] == '*' || rest_[0] == '+' || rest_[0] == '?') {
      return fail(wrong("nothing to repeat"));
    }
    if (take("\\")) return escape();
    return literal(*take_code_point(rest_));
  }

  Tree literal(uint32_t code_point) const { return with_case(chars({{code_point, code_point}})); }
  Tree with_case(Tree tree) const {
    if (ignore_case_) tree.chars = with_other_cases(tree.chars);
    return tree;
  }

  Result<Tree> group(int depth) {
    if (take("?")) {
      if (take(":")) {
      } else if (take("P<") || (rest_.starts_with("<") && !rest_.starts_with("<=") &&
                                !rest_.starts_with("<!") && take("<"))) {
        const size_t end = rest_.find('>');
        if (end == std::string_view::npos) return fail(wrong("a group's name does not end"));
        rest_.remove_prefix(end + 1);
      } else if (rest_.starts_with("=") || rest_.starts_with("!") || rest_.starts_with("<")) {
        return fail(wrong("look-around is not supported"));
      } else {
        return fail(wrong("this kind of group is not supported"));
      }
    }
    ESP_ASSIGN_OR_RETURN(Tree inner, choice(depth + 1));
    if (!take(")")) return fail(wrong("a group does not end"));
    return inner;
  }

  // Parses what follows a backslash.
  Result<Tree> escape() {
    if (rest_.empty()) return fail(wrong("a backslash at the end"));
    if (take("A")) return make(Tree::Kind::kTextStart);
    if (take("Z") || take("z")) return make(Tree::Kind::kTextEnd);
    if (rest_[0] == 'b' || rest_[0] == 'B') {
      return fail(wrong("word boundaries are not supported"));
    }
    if ((rest_[0] >= '1' && rest_[0] <= '9') || rest_[0] == 'k') {
      return fail(wrong("back-references are not supported"));
    }
    ESP_ASSIGN_OR_RETURN(auto set, escaped_set());
    if (set) return with_case(chars(std::move(*set)));
    ESP_ASSIGN_OR_RETURN(const uint32_t code_point, escaped_char());
    return literal(code_point);
  }

  // Parses \d and its kin, or \p{..}; returns nothing when the escape is one character.
  Result<std::optional<std::vector<CodeRange>>> escaped_set() {
    using Set = std::optional<std::vector<CodeRange>>;
    switch (rest_[0]) {
      case 'd':
        rest_.remove_prefix(1);
        return Set(digit_chars());
      case 'D':
        rest_.remove_prefix(1);
        return Set(complement(digit_chars()));
      case 'w':
        rest_.remove_prefix(1);
        return Set(word_chars());
      case 'W':
        rest_.remove_prefix(1);
        return Set(complement(word_chars()));
      case 's':
        rest_.remove_prefix(1);
        return Set(space_chars());
      case 'S':
        rest_.remove_prefix(1);
        return Set(complement(space_chars()));
      case 'p':
      case 'P':
        break;
      default:
        return Set();
    }
    const bool negated = rest_[0] == 'P';
    rest_.remove_prefix(1);
    const size_t end = rest_.find('}');
    if (!rest_.starts_with("{") || end == std::string_view::npos) {
      return fail(wrong("\\p needs a property in braces"));
    }
    std::string_view name = rest_.substr(1, end - 1);
    for (std::string_view prefix : {"gc=", "General_Category="}) {
      if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
    }
    auto set = category_chars(name);
    if (!set) {
      return fail(wrong(fmt::format("the Unicode property '{}' is not supported", name)));
    }
    rest_.remove_prefix(end + 1);
    return Set(negated ? complement(*set) : std::move(*set));
  }

  Result<uint32_t> hex(size_t digits) {
    if (rest_.size() < digits) return fail(wrong("an escape ends too early"));
    uint32_t value = 0;
    for (char c : rest_.substr(0, digits)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return fail(wrong("an escape needs hexadecimal digits"));
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    rest_.remove_prefix(digits);
    return value;
  }

  Result<uint32_t> escaped_char() {
    const uint32_t c = *take_code_point(rest_);
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
        if (rest_.empty()) return fail(wrong("\\c needs a letter"));
        return *take_code_point(rest_) & 0x1f;
      case 'x':
        return hex(2);
      case 'U':
        return hex(8);
      case 'u':
        break;
      default:
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
          return fail(wrong(fmt::format("the escape \\{} is not supported", static_cast<char>(c))));
        }
        return c;
    }
    if (take("{")) {
      const size_t end = rest_.find('}');
      if (end == std::string_view::npos || end == 0 || end > 6) {
        return fail(wrong("\\u{} needs one to six digits"));
      }
      ESP_ASSIGN_OR_RETURN(const uint32_t value, hex(end));
      take("}");
      if (value > kMaxCodePoint) return fail(wrong("there is no such code point"));
      return value;
    }
    ESP_ASSIGN_OR_RETURN(const uint32_t high, hex(4));
    const bool pair = high >= 0xd800 && high < 0xdc00 && take("\\u");
    if (!pair) return high;
    ESP_ASSIGN_OR_RETURN(const uint32_t low, hex(4));
    if (low < 0xdc00 || low > 0xdfff) return fail(wrong("a lone surrogate"));
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
  }

  // Parses what follows '['.
  Result<Tree> bracket() {
    const bool negated = take("^");
    std::vector<CodeRange> set;
    while (!take("]")) {
      if (rest_.empty()) return fail(wrong("a character class does not end"));
      ESP_ASSIGN_OR_RETURN(auto low, bracket_item());
      const bool range = rest_.starts_with("-") && rest_.size() > 1 && rest_[1] != ']';
      if (low.size() != 1 || low[0].low != low[0].high || !range) {
        set.insert(set.end(), low.begin(), low.end());
        continue;
      }
      rest_.remove_prefix(1);
      ESP_ASSIGN_OR_RETURN(auto high, bracket_item());
      if (high.size() != 1 || high[0].low != high[0].high) {
        set.insert(set.end(), high.begin(), high.end());  // in [a-\d], '-' is a literal
        set.insert(set.end(), {low[0], {'-', '-'}});
        continue;
      }
      if (high[0].low < low[0].low) return fail(wrong("a range in a class is reversed"));
      set.push_back({low[0].low, high[0].low});
    }
    set = normalized(std::move(set));
    if (ignore_case_) set = with_other_cases(set);
    return chars(negated ? complement(set) : std::move(set));
  }

  Result<std::vector<CodeRange>> bracket_item() {
    if (!take("\\")) {
      const uint32_t c = *take_code_point(rest_);
      return std::vector<CodeRange>{{c, c}};
    }
    if (rest_.empty()) return fail(wrong("a character class does not end"));
    if (take("b")) return std::vector<CodeRange>{{'\b', '\b'}};
    ESP_ASSIGN_OR_RETURN(auto set, escaped_set());
    if (set) return std::move(*set);
    ESP_ASSIGN_OR_RETURN(const uint32_t c, escaped_char());
    return std::vector<CodeRange>{{c, c}};
  }

  std::string_view pattern_, rest_;
  const bool single_quantifiers_;
  bool ignore_case_ = false;
};

// Anchors depend on the position in the text, of which there are three kinds: nothing has been
// read, something has been read and more may follow, nothing may follow. A tree becomes a 3 x 3
// matrix of expressions by the kind of position before and after it. ^ passes only at kStart, and $
// leads to kEnd, where no byte is read.
constexpr int kStart = 0, kMiddle = 1, kEnd = 2;
using Places = std::array<std::array<ExprId, 3>, 3>;

class Lowering {
 public:
  Lowering(Ir& ir, const RegexOptions& options) : ir_(ir), options_(options) {}

  ExprId whole(const Tree& tree) {
    if (!options_.search && !tree.anchored) return plain(tree);
    Tree any = make(Tree::Kind::kRepeat);
    any.children.push_back(chars({{0, kMaxCodePoint}}));
    any.max = kUnbounded;
    if (!tree.anchored) return ir_.sequence({plain(any), plain(tree), plain(any)});
    Places all = places(tree);
    if (options_.search) {
      all = product(product(places(any), all), places(any));
    }
    return ir_.choice({all[kStart][kStart], all[kStart][kMiddle], all[kStart][kEnd]});
  }
  // When true, the result of whole() is meaningless.
  bool too_large() const { return written_ > kAnchoredPartsMax; }

 private:
  ExprId plain(const Tree& tree) {
    switch (tree.kind) {
      case Tree::Kind::kChars:
        return options_.encode ? options_.encode(ir_, tree.chars) : ir_.chars(tree.chars);
      case Tree::Kind::kSequence:
      case Tree::Kind::kChoice: {
        std::vector<ExprId> parts;
        for (const Tree& child : tree.children) parts.push_back(plain(child));
        return tree.kind == Tree::Kind::kSequence ? ir_.sequence(parts) : ir_.choice(parts);
      }
      case Tree::Kind::kRepeat:
        return ir_.repeat(plain(tree.children[0]), tree.min, tree.max);
      default:
        return ir_.empty();
    }
  }

  static bool nullable(const Tree& tree) {
    switch (tree.kind) {
      case Tree::Kind::kChars:
        return false;
      case Tree::Kind::kSequence:
        for (const Tree& child : tree.children) {
          if (!nullable(child)) return false;
        }
        return true;
      case Tree::Kind::kChoice:
        for (const Tree& child : tree.children) {
          if (nullable(child)) return true;
        }
        return false;
      case Tree::Kind::kRepeat:
        return tree.min == 0 || nullable(tree.children[0]);
      default:
        return true;
    }
  }

  Places nothing() const {
    Places out;
    for (auto& row : out) row.fill(ir_.never());
    return out;
  }
  Places identity() const {
    Places out = nothing();
    for (int i = 0; i < 3; ++i) out[i][i] = ir_.empty();
    return out;
  }
  Places sum(const Places& a, const Places& b) {
    Places out = nothing();
    for (int i = 0; i < 3; ++i) {
      for (int j = i; j < 3; ++j) out[i][j] = ir_.choice({a[i][j], b[i][j]});
    }
    return out;
  }
  Places product(const Places& a, const Places& b) {
    Places out = nothing();
    if (too_large()) return out;
    for (int i = 0; i < 3; ++i) {
      for (int j = i; j < 3; ++j) {
        std::vector<ExprId> alternatives;
        for (int k = i; k <= j; ++k) {
          alternatives.push_back(ir_.sequence({a[i][k], b[k][j]}));
          written_ += ir_.node(alternatives.back()).count;
        }
        out[i][j] = ir_.choice(alternatives);
      }
    }
    return out;
  }
  // S = 1 + M S. M never leads backwards, so the last row is solved first.
  Places star(const Places& m) {
    Places out = nothing();
    for (int i = 2; i >= 0; --i) {
      const ExprId loop = ir_.star(m[i][i]);
      out[i][i] = loop;
      for (int j = i + 1; j < 3; ++j) {
        std::vector<ExprId> alternatives;
        for (int k = i + 1; k <= j; ++k)
          alternatives.push_back(ir_.sequence({loop, m[i][k], out[k][j]}));
        out[i][j] = ir_.choice(alternatives);
      }
    }
    return out;
  }

  Places places(const Tree& tree) {
    Places out = nothing();
    if (!tree.anchored) return unanchored(plain(tree), nullable(tree));
    switch (tree.kind) {
      case Tree::Kind::kTextStart:
        out[kStart][kStart] = ir_.empty();
        break;
      case Tree::Kind::kTextEnd:
        out[kStart][kEnd] = out[kMiddle][kEnd] = out[kEnd][kEnd] = ir_.empty();
        break;
      case Tree::Kind::kSequence: {
        out = identity();
        // Adjacent parts without anchors are one factor, whatever their number.
        std::vector<ExprId> run;
        bool run_nullable = true;
        const auto end_run = [&] {
          if (!run.empty()) out = product(out, unanchored(ir_.sequence(run), run_nullable));
          run.clear();
          run_nullable = true;
        };
        for (const Tree& child : tree.children) {
          if (child.anchored) {
            end_run();
            out = product(out, places(child));
          } else {
            run.push_back(plain(child));
            run_nullable &= nullable(child);
          }
        }
        end_run();
        break;
      }
      case Tree::Kind::kChoice: {
        std::array<std::array<std::vector<ExprId>, 3>, 3> alternatives;
        for (const Tree& child : tree.children) {
          const Places inner = places(child);
          for (int i = 0; i < 3; ++i) {
            for (int j = i; j < 3; ++j) alternatives[i][j].push_back(inner[i][j]);
          }
        }
        for (int i = 0; i < 3; ++i) {
          for (int j = i; j < 3; ++j) out[i][j] = ir_.choice(alternatives[i][j]);
        }
        break;
      }
      case Tree::Kind::kRepeat: {
        const Places once = places(tree.children[0]);
        out = identity();
        for (int32_t i = 0; i < tree.min; ++i) out = product(out, once);
        if (tree.max == kUnbounded) {
          out = product(out, star(once));
        } else {
          const Places maybe = sum(identity(), once);
          for (int32_t i = tree.min; i < tree.max; ++i) out = product(out, maybe);
        }
        break;
      }
      default:
        break;
    }
    return out;
  }

  Places unanchored(ExprId expr, bool may_be_empty) const {
    Places out = nothing();
    out[kStart][kMiddle] = out[kMiddle][kMiddle] = expr;
    if (may_be_empty) out[kStart][kStart] = out[kEnd][kEnd] = ir_.empty();
    return out;
  }

  Ir& ir_;
  const RegexOptions& options_;
  size_t written_ = 0;  // parts of sequences made by matrix products
};

}  // namespace

Result<ExprId> parse_regex(Ir& ir, std::string_view pattern, const RegexOptions& options) {
  ESP_ASSIGN_OR_RETURN(const Tree tree, Parser(pattern, options.single_quantifiers).parse());
  Lowering lowering(ir, options);
  const ExprId expr = lowering.whole(tree);
  if (lowering.too_large()) {
    return fail(error(StatusCode::kResourceExhausted,
                      "regex: too many anchors (^, $) once repetitions are written out in '{}'; "
                      "anchor the whole pattern instead of its parts",
                      pattern.substr(0, 200)));
  }
  return expr;
}

std::optional<LookaheadParts> split_lookahead(std::string_view pattern) {
  if (!pattern.starts_with("^(?=") && !pattern.starts_with("^(?!")) return std::nullopt;
  // Finds the end of the look-ahead, and whether an alternative stands outside all groups.
  size_t end = 0;
  int depth = 0;
  bool in_class = false;
  for (size_t i = 1; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      ++i;
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
    } else if (c == '(') {
      ++depth;
    } else if (c == ')') {
      if (--depth == 0 && end == 0) end = i;
    } else if (c == '|' && depth == 0) {
      return std::nullopt;
    }
  }
  if (end == 0 || depth != 0) return std::nullopt;
  std::string_view rest = pattern.substr(end + 1);
  if (rest.starts_with("^")) rest.remove_prefix(1);
  return LookaheadParts{.rest = "^" + std::string(rest),
                        .ahead = "^(?:" + std::string(pattern.substr(4, end - 4)) + ")",
                        .wanted = pattern[3] == '='};
}

}  // namespace espalier::grammar
