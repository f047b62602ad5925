#include "grammar/frontends/ebnf.h"

#include <string>
#include <utility>
#include <vector>

#include "grammar/automata/unicode.h"
#include "grammar/frontends/grammar_text.h"
#include "grammar/frontends/lark.h"

namespace espalier::grammar {
namespace {

constexpr int kGroupDepthMax = 200;

bool name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

class EbnfParser {
 public:
  EbnfParser(Ir& ir, std::string_view text) : ir_(ir), text_(text), rules_(ir) {}

  Result<RuleId> parse(std::string_view root) {
    skip_space(true);
    while (!text_.done()) {
      ESP_RETURN_IF_ERROR(rule());
      skip_space(true);
    }
    return rules_.root(root);
  }

 private:
  void skip_space(bool newlines) {
    while (!text_.done()) {
      const char c = text_.next();
      if (c == '#') {
        text_.skip_line();
      } else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r'))) {
        text_.skip(1);
      } else {
        return;
      }
    }
  }

  // Returns whether the next rule begins here, after white space: NAME ::=
  bool at_rule_start() {
    const auto saved = text_.rest();
    skip_space(true);
    const bool named = !text_.take_while(name_char).empty();
    skip_space(false);
    const bool found = named && text_.rest().starts_with("::=");
    text_.set_rest(saved);
    return found;
  }

  Status rule() {
    const auto rule_name = text_.take_while(name_char);
    if (rule_name.empty()) return text_.wrong("a rule's name is expected");
    skip_space(false);
    if (!text_.take("::="))
      return text_.wrong(fmt::format("'::=' is expected after '{}'", rule_name));
    ESP_ASSIGN_OR_RETURN(const RuleId id, rules_.define(rule_name, text_));
    ESP_ASSIGN_OR_RETURN(const ExprId body, choice(0));
    if (text_.next() == ')') return text_.wrong("unmatched ')'");
    ir_.rules().set_body(id, body);
    return {};
  }

  Result<ExprId> choice(int depth) {
    if (depth > kGroupDepthMax) return fail(text_.wrong("groups nest too deeply"));
    std::vector<ExprId> parts;
    do {
      ESP_ASSIGN_OR_RETURN(const ExprId part, sequence(depth));
      parts.push_back(part);
      if (!at_rule_start()) skip_space(true);
    } while (text_.take("|"));
    return ir_.choice(parts);
  }

  Result<ExprId> sequence(int depth) {
    std::vector<ExprId> parts;
    while (true) {
      if (at_rule_start()) break;
      skip_space(true);
      if (text_.done() || text_.next() == '|' || text_.next() == ')') break;
      ESP_ASSIGN_OR_RETURN(ExprId part, atom(depth));
      ESP_ASSIGN_OR_RETURN(part, quantified(part));
      parts.push_back(part);
    }
    return ir_.sequence(parts);
  }

  // llama.cpp allows white space between an element and its repetition.
  void skip_space_before_repetition() {
    const auto saved = text_.rest();
    skip_space(true);
    if (text_.done() || std::string_view("*+?{").find(text_.next()) == std::string_view::npos)
      text_.set_rest(saved);
  }

  Result<ExprId> quantified(ExprId part) {
    while (true) {
      skip_space_before_repetition();
      if (text_.take("*")) {
        part = ir_.star(part);
      } else if (text_.take("+")) {
        part = ir_.repeat(part, 1, kUnbounded);
      } else if (text_.take("?")) {
        part = ir_.optional(part);
      } else if (text_.take("{")) {
        ESP_ASSIGN_OR_RETURN(const auto times, text_.bounds([this] { skip_space(true); }));
        part = ir_.repeat(part, times.first, times.second);
      } else {
        return part;
      }
    }
  }

  Result<ExprId> atom(int depth) {
    if (text_.take("(")) {
      ESP_ASSIGN_OR_RETURN(const ExprId inner, choice(depth + 1));
      skip_space(true);
      if (!text_.take(")")) return fail(text_.wrong("a group does not end: ')' is expected"));
      return inner;
    }
    if (text_.take("\"")) {
      ESP_ASSIGN_OR_RETURN(const std::string bytes, text_.quoted());
      return ir_.literal(bytes);
    }
    if (text_.take("[")) return bracket();
    if (text_.next() == '.' && (text_.rest().size() == 1 || !name_char(text_.rest()[1]))) {
      text_.skip(1);
      return ir_.chars({{0, 0x10ffff}});
    }
    const auto rule_name = text_.take_while(name_char);
    if (rule_name.empty()) {
      return fail(
          text_.wrong(fmt::format("'{}' is not understood here", text_.rest().substr(0, 1))));
    }
    return ir_.rule(rules_.use(rule_name, text_));
  }

  Result<ExprId> bracket() {
    const bool negated = text_.take("^");
    std::vector<CodeRange> set;
    while (!text_.take("]")) {
      if (text_.done() || text_.next() == '\n')
        return fail(text_.wrong("a character class does not end"));
      ESP_ASSIGN_OR_RETURN(const uint32_t low, text_.character());
      uint32_t high = low;
      if (text_.next() == '-' && text_.rest().size() > 1 && text_.rest()[1] != ']') {
        text_.skip(1);
        ESP_ASSIGN_OR_RETURN(high, text_.character());
        if (high < low) return fail(text_.wrong("a range in a class is reversed"));
      }
      set.push_back({low, high});
    }
    set = normalized(std::move(set));
    return ir_.chars(negated ? complement(set) : set);
  }

  Ir& ir_;
  GrammarText text_;
  NamedRules rules_;
};

}  // namespace

Result<RuleId> parse_ebnf(Ir& ir, std::string_view text, std::string_view root,
                          const GrammarLimits& limits) {
  if (!valid_utf8(text)) return fail(invalid_argument("the grammar is not valid UTF-8"));
  if (is_lark(text)) return parse_lark(ir, text, limits);
  return EbnfParser(ir, text).parse(root);
}

}  // namespace espalier::grammar
