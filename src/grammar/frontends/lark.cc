#include "grammar/frontends/lark.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "grammar/automata/unicode.h"
#include "grammar/frontends/grammar_text.h"
#include "grammar/frontends/lark_parts.h"
#include "grammar/frontends/regex.h"

namespace espalier::grammar {
namespace {

constexpr int kLarkDepthMax = 200;
constexpr int kInnerDepthMax = 4;  // of grammars within rules, each with its own depth of groups

bool lark_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool is_terminal(std::string_view name) {
  const size_t first = name.find_first_not_of('_');
  return first != std::string_view::npos && name[first] >= 'A' && name[first] <= 'Z';
}

// The terminals that `%import common.NAME` brings, as regular expressions.
struct CommonTerminal {
  std::string_view name, regex;
};
constexpr CommonTerminal kCommon[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[a-fA-F0-9]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"NUMBER", "[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER",
     "[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\\.[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", "\"([^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[_A-Za-z][_A-Za-z0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(\\r?\\n)+"}};

Status not_supported(const GrammarText& text, std::string_view what) {
  return error(StatusCode::kUnimplemented, "grammar, line {}: {} not supported", text.line(), what);
}

// Parses what is not a rule: strings, regular expressions and ranges. Borrows both.
class AtomParser {
 public:
  AtomParser(Ir& ir, GrammarText& text) : ir_(ir), text_(text) {}

  // Parses a string, a range or a regular expression; nothing where none begins here.
  Result<std::optional<ExprId>> parse() {
    using Atom = std::optional<ExprId>;
    if (text_.take("\"")) {
      ESP_ASSIGN_OR_RETURN(const ExprId made, string());
      return Atom(made);
    }
    if (text_.next() != '/' || text_.rest().starts_with("//")) return Atom();
    text_.skip(1);
    ESP_ASSIGN_OR_RETURN(const ExprId made, regex());
    return Atom(made);
  }

 private:
  Result<ExprId> string() {
    ESP_ASSIGN_OR_RETURN(const std::string bytes, text_.quoted());
    if (text_.take("..")) return range(bytes);
    if (text_.next() == 'i' && (text_.rest().size() == 1 || !lark_name_char(text_.rest()[1]))) {
      text_.skip(1);
      return in_any_case(bytes);
    }
    return ir_.literal(bytes);
  }

  Result<ExprId> range(std::string_view low) {
    if (!text_.take("\"")) return fail(text_.wrong("a range ends with a string"));
    ESP_ASSIGN_OR_RETURN(const std::string high, text_.quoted());
    std::string_view from = low, to = high;
    const auto first = take_code_point(from), last = take_code_point(to);
    if (!first || !last || !from.empty() || !to.empty())
      return fail(text_.wrong("the ends of a range are single characters"));
    if (*last < *first) return fail(text_.wrong("a range is reversed"));
    return ir_.chars({{*first, *last}});
  }

  ExprId in_any_case(std::string_view bytes) {
    std::vector<ExprId> parts;
    while (!bytes.empty()) {
      const uint32_t c = *take_code_point(bytes);
      parts.push_back(ir_.chars(with_other_cases({{c, c}})));
    }
    return ir_.sequence(parts);
  }

  Result<ExprId> regex() {
    const std::string_view begin = text_.rest();
    size_t length = 0;
    while (length < begin.size() && begin[length] != '/' && begin[length] != '\n')
      length += begin[length] == '\\' ? 2 : 1;
    if (length >= begin.size() || begin[length] != '/')
      return fail(text_.wrong("a regular expression does not end"));
    std::string pattern(begin.substr(0, length));
    text_.skip(length + 1);
    for (const char flag : text_.take_while([](char c) { return c >= 'a' && c <= 'z'; })) {
      if (flag != 'i' && flag != 's') {
        return fail(not_supported(text_, fmt::format("the flag '{}' of an expression is", flag)));
      }
      pattern = fmt::format("(?{}){}", flag, pattern);
    }
    auto made = parse_regex(ir_, pattern);
    if (!made)
      return fail(made.error().with_context(fmt::format("grammar, line {}", text_.line())));
    return made;
  }

  Ir& ir_;
  GrammarText& text_;
};

// Parses what follows the '%' of %json {...} or %lark {...} in a rule.
Result<ExprId> inner_grammar(Ir& ir, GrammarText& text, const GrammarLimits& limits, int depth);

class Parser {
 public:
  Parser(Ir& ir, std::string_view text, const GrammarLimits& limits, int inner_depth)
      : ir_(ir), text_(text), limits_(limits), inner_depth_(inner_depth) {}
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  Result<RuleId> parse() {
    skip_space(true);
    while (!text_.done()) {
      ESP_RETURN_IF_ERROR(text_.take("%") ? directive() : rule());
      skip_space(false);
      if (!text_.done() && text_.next() != '\n')
        return fail(
            text_.wrong(fmt::format("'{}' is not understood here", text_.rest().substr(0, 1))));
      skip_space(true);
    }
    ir_.rules().set_body(ignored_, ir_.star(ir_.choice(ignored_parts_)));
    return rules_.root("start");
  }

 private:
  void skip_space(bool newlines) {
    while (!text_.done()) {
      const char c = text_.next();
      if (c == '#' || text_.rest().starts_with("//")) {
        text_.skip_line();
      } else if (c == ' ' || c == '\t' || c == '\r' || (newlines && c == '\n')) {
        text_.skip(1);
      } else {
        return;
      }
    }
  }
  // A line that begins with '|' continues the rule before it, and a group may span lines.
  void skip_space_in(int depth) {
    skip_space(depth > 0);
    const auto saved = text_.rest();
    skip_space(true);
    if (text_.next() != '|') text_.set_rest(saved);
  }

  Status rule() {
    if (text_.next() == '?' || text_.next() == '!') text_.skip(1);  // they shape trees alone
    const auto name = text_.take_while(lark_name_char);
    if (name.empty()) return text_.wrong("a rule's name is expected");
    if (text_.next() == '{') return not_supported(text_, "templates are");
    if (text_.next() == '[') ESP_RETURN_IF_ERROR(take_attributes(text_));
    if (text_.take(".")) text_.number();  // a priority
    skip_space(false);
    if (!text_.take(":")) return text_.wrong(fmt::format("':' is expected after '{}'", name));
    ESP_ASSIGN_OR_RETURN(const RuleId id, rules_.define(name, text_));
    in_terminal_ = is_terminal(name);
    ESP_ASSIGN_OR_RETURN(const ExprId body, choice(0));
    ir_.rules().set_body(id, body);
    return {};
  }

  Status directive() {
    const auto name = text_.take_while(lark_name_char);
    skip_space(false);
    if (name == "ignore") {
      in_terminal_ = true;
      ESP_ASSIGN_OR_RETURN(const ExprId part, choice(0));
      ignored_parts_.push_back(part);
      return {};
    }
    if (name == "import") return import();
    if (name == "llguidance") return take_options(text_);
    return not_supported(text_, fmt::format("the directive %{} is", name));
  }

  // %import common.NAME, common.NAME -> OTHER, or common (NAME, NAME)
  Status import() {
    if (text_.take_while(lark_name_char) != "common")
      return not_supported(text_, "an import from anything but 'common' is");
    if (text_.take(".")) {
      const auto name = text_.take_while(lark_name_char);
      skip_space(false);
      if (!text_.take("->")) return import_as(name, name);
      skip_space(false);
      return import_as(name, text_.take_while(lark_name_char));
    }
    skip_space(false);
    if (!text_.take("(")) return text_.wrong("'.' or a list in parentheses is expected");
    do {
      skip_space(true);
      const auto name = text_.take_while(lark_name_char);
      ESP_RETURN_IF_ERROR(import_as(name, name));
      skip_space(true);
    } while (text_.take(","));
    return text_.take(")") ? Status() : text_.wrong("a list does not end: ')' is expected");
  }

  Status import_as(std::string_view name, std::string_view alias) {
    const auto* found = std::ranges::find(kCommon, name, &CommonTerminal::name);
    if (found == std::end(kCommon))
      return text_.wrong(fmt::format("there is no terminal common.{}", name));
    ESP_ASSIGN_OR_RETURN(const RuleId id, rules_.define(alias, text_));
    ESP_ASSIGN_OR_RETURN(const ExprId body, parse_regex(ir_, found->regex));
    ir_.rules().set_body(id, body);
    return {};
  }

  Result<ExprId> choice(int depth) {
    if (depth > kLarkDepthMax) return fail(text_.wrong("groups nest too deeply"));
    std::vector<ExprId> parts;
    do {
      ESP_ASSIGN_OR_RETURN(const ExprId part, sequence(depth));
      parts.push_back(part);
      skip_space_in(depth);
    } while (text_.take("|"));
    return ir_.choice(parts);
  }

  Result<ExprId> sequence(int depth) {
    std::vector<ExprId> parts;
    for (skip_space_in(depth); !at_sequence_end(); skip_space_in(depth)) {
      if (text_.take("->")) {  // an alias names a node of the tree
        skip_space(false);
        text_.take_while(lark_name_char);
        continue;
      }
      ESP_ASSIGN_OR_RETURN(ExprId part, atom(depth));
      ESP_ASSIGN_OR_RETURN(part, quantified(part));
      parts.push_back(part);
    }
    return ir_.sequence(parts);
  }

  bool at_sequence_end() const {
    return text_.done() || std::string_view("|)]\n").find(text_.next()) != std::string_view::npos;
  }

  Result<ExprId> quantified(ExprId part) {
    if (text_.take("*")) return ir_.star(part);
    if (text_.take("+")) return ir_.repeat(part, 1, kUnbounded);
    if (text_.take("?")) return ir_.optional(part);
    if (text_.take("{")) {
      ESP_ASSIGN_OR_RETURN(const auto times, text_.bounds([this] { skip_space(false); }));
      return ir_.repeat(part, times.first, times.second);
    }
    const auto saved = text_.rest();
    skip_space(false);
    if (!text_.take("~")) {
      text_.set_rest(saved);
      return part;
    }
    skip_space(false);
    const auto low = text_.number();
    const auto high = text_.take("..") ? text_.number() : low;
    if (!low || !high) return fail(text_.wrong("a repetition needs a number"));
    ESP_RETURN_IF_ERROR(text_.check_bounds(*low, *high));
    return ir_.repeat(part, *low, *high);
  }

  Result<ExprId> atom(int depth) {
    for (const auto& [open, close] : {std::pair("(", ")"), std::pair("[", "]")}) {
      if (!text_.take(open)) continue;
      ESP_ASSIGN_OR_RETURN(const ExprId inner, choice(depth + 1));
      skip_space(true);
      if (!text_.take(close))
        return fail(text_.wrong(fmt::format("a group does not end: '{}' is expected", close)));
      return *open == '[' ? ir_.optional(inner) : inner;
    }
    if (text_.next() == '<') return fail(not_supported(text_, "special tokens are"));
    if (text_.take("%")) {
      ESP_ASSIGN_OR_RETURN(const ExprId inner, inner_grammar(ir_, text_, limits_, inner_depth_));
      return terminal(inner);
    }
    ESP_ASSIGN_OR_RETURN(const auto literal, atoms_.parse());
    if (literal) return terminal(*literal);
    const auto name = text_.take_while(lark_name_char);
    if (name.empty()) {
      return fail(
          text_.wrong(fmt::format("'{}' is not understood here", text_.rest().substr(0, 1))));
    }
    if (text_.next() == '{' && !in_terminal_ && text_.rest().size() > 1 &&
        std::isalpha(static_cast<unsigned char>(text_.rest()[1])) != 0)
      return fail(not_supported(text_, "templates are"));
    const ExprId used = ir_.rule(rules_.use(name, text_));
    return is_terminal(name) ? terminal(used) : used;
  }

  // A terminal in a rule: ignored text may follow it.
  ExprId terminal(ExprId expr) {
    return in_terminal_ ? expr : ir_.sequence({expr, ir_.rule(ignored_)});
  }

  Ir& ir_;
  GrammarText text_;
  const GrammarLimits& limits_;
  const int inner_depth_;  // how many grammars this one stands in
  NamedRules rules_{ir_};
  AtomParser atoms_{ir_, text_};
  const RuleId ignored_ = ir_.rules().add("ignored");  // any number of ignored terminals
  std::vector<ExprId> ignored_parts_;
  bool in_terminal_ = false;  // whether the rule that is parsed is a terminal
};

Result<ExprId> inner_grammar(Ir& ir, GrammarText& text, const GrammarLimits& limits, int depth) {
  const auto kind = text.take_while(lark_name_char);
  if (kind == "json") return take_json(ir, text, limits);
  if (kind != "lark")
    return fail(not_supported(text, fmt::format("the directive %{} in a rule is", kind)));
  if (depth == kInnerDepthMax) return fail(text.wrong("grammars nest too deeply"));
  const int line = text.line();
  ESP_ASSIGN_OR_RETURN(const std::string_view source, take_braces(text));
  const auto root = Parser(ir, source, limits, depth + 1).parse();
  if (!root) return fail(root.error().with_context(fmt::format("grammar, line {}", line)));
  return ir.rule(*root);
}

}  // namespace

bool is_lark(std::string_view source) {
  GrammarText text(source);
  while (!text.done()) {
    if (text.next() == '#' || text.rest().starts_with("//")) {
      text.skip_line();
    } else if (std::string_view(" \t\r\n").find(text.next()) != std::string_view::npos) {
      text.skip(1);
    } else {
      break;
    }
  }
  if (text.next() == '%') return true;
  if (text.next() == '?' || text.next() == '!') text.skip(1);
  if (text.take_while(lark_name_char).empty()) return false;
  if (text.next() == '[' || text.next() == '{') return true;  // attributes or parameters of a rule
  if (text.take(".")) text.number();
  text.take_while([](char c) { return c == ' ' || c == '\t'; });
  return text.next() == ':' && !text.rest().starts_with("::=");
}

Result<RuleId> parse_lark(Ir& ir, std::string_view text, const GrammarLimits& limits) {
  return Parser(ir, text, limits, 0).parse();
}

}  // namespace espalier::grammar
