#include "text/template/parser.h"

#include <algorithm>
#include <initializer_list>

namespace espalier::jinja {
namespace {

class TemplateParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Result<Block> parse() {
    Block block;
    ESP_RETURN_IF_ERROR(parse_block(block, {}));
    return block;
  }

 private:
  using Ends = std::initializer_list<std::string_view>;

  // Statements up to one of the tags of `ends`, whose name is then current (its '{%' is taken); up
  // to the end of the template where there are none.
  Status parse_block(Block& block, Ends ends) {
    if (++nesting_ > kNestingMax) return wrong("statements are nested too deeply");
    for (;;) {
      switch (current().kind) {
        case TokenKind::kData:
          block.push_back(statement(StatementKind::kText));
          block.back().text = current().text;
          advance();
          break;
        case TokenKind::kVariableBegin: {
          block.push_back(statement(StatementKind::kOutput));
          advance();
          ESP_ASSIGN_OR_RETURN(block.back().expression, parse_tuple());
          if (current().kind != TokenKind::kVariableEnd) return unexpected("'}}'");
          advance();
          break;
        }
        case TokenKind::kBlockBegin: {
          advance();
          if (current().kind != TokenKind::kName) return unexpected("a statement");
          if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) {
            --nesting_;
            return {};
          }
          ESP_RETURN_IF_ERROR(parse_statement(block));
          break;
        }
        default:
          if (ends.size() > 0) {
            return wrong(fmt::format("the template ends before '{}'", *ends.begin()));
          }
          --nesting_;
          return {};
      }
    }
  }

  Status parse_statement(Block& block) {
    const std::string name = current().text;
    Statement node = statement(StatementKind::kText);
    advance();
    Status status;
    if (name == "if") {
      status = parse_if(node);
    } else if (name == "for") {
      status = parse_for(node);
    } else if (name == "set") {
      status = parse_set(node);
    } else if (name == "macro") {
      status = parse_macro(node);
    } else if (name == "call") {
      status = parse_call_block(node);
    } else if (name == "filter") {
      status = parse_filter_block(node);
    } else if (name == "with") {
      status = parse_with(node);
    } else if (name == "generation") {
      node.kind = StatementKind::kScope;
      status = parse_body(node.body, "endgeneration");
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) return wrong(fmt::format("'{}' outside of a loop", name));
      node.kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
      status = expect_block_end();
    } else {
      return wrong(fmt::format("unknown or unsupported statement '{}'", name));
    }
    block.push_back(std::move(node));
    return status;
  }

  Statement statement(StatementKind kind) const {
    Statement node;
    node.kind = kind;
    node.line = current().line;
    return node;
  }

  Status expect_block_end() {
    if (current().kind != TokenKind::kBlockEnd) return unexpected("'%}'");
    advance();
    return {};
  }

  // '%}' body '{% end %}'
  Status parse_body(Block& body, std::string_view end) {
    ESP_RETURN_IF_ERROR(expect_block_end());
    ESP_RETURN_IF_ERROR(parse_block(body, {end}));
    advance();
    return expect_block_end();
  }

  Status parse_if(Statement& node) {
    node.kind = StatementKind::kIf;
    ESP_ASSIGN_OR_RETURN(node.expression, parse_tuple(/*with_conditional=*/false));
    ESP_RETURN_IF_ERROR(expect_block_end());
    ESP_RETURN_IF_ERROR(parse_block(node.body, {"endif", "elif", "else"}));
    // An elif is an if within else; their chain is built in a loop, for it may be long.
    Statement* last = &node;
    while (current().is_name("elif")) {
      last->otherwise.push_back(statement(StatementKind::kIf));
      last = &last->otherwise.back();
      advance();
      ESP_ASSIGN_OR_RETURN(last->expression, parse_tuple(/*with_conditional=*/false));
      ESP_RETURN_IF_ERROR(expect_block_end());
      ESP_RETURN_IF_ERROR(parse_block(last->body, {"endif", "elif", "else"}));
    }
    if (skip_name("else")) return parse_body(last->otherwise, "endif");
    advance();
    return expect_block_end();
  }

  Status parse_for(Statement& node) {
    node.kind = StatementKind::kFor;
    ESP_ASSIGN_OR_RETURN(node.target, parse_targets("in"));
    if (!skip_name("in")) return unexpected("'in'");
    ESP_ASSIGN_OR_RETURN(node.expression,
                         parse_tuple(/*with_conditional=*/false, false, "recursive"));
    if (skip_name("if")) {
      ESP_ASSIGN_OR_RETURN(node.condition, parse_expression());
    }
    node.recursive = skip_name("recursive");
    ESP_RETURN_IF_ERROR(expect_block_end());
    ++loops_;
    ESP_RETURN_IF_ERROR(parse_block(node.body, {"endfor", "else"}));
    --loops_;
    if (skip_name("else")) return parse_body(node.otherwise, "endfor");
    advance();
    return expect_block_end();
  }

  // a | a, b | (a, b) | ns.a: what can be assigned to.
  Result<ExpressionPtr> parse_targets(std::string_view stop) {
    ExpressionPtr tuple = make(ExpressionKind::kTuple);
    bool is_tuple = false;
    const bool parenthesised = skip_operator("(");
    for (;;) {
      ESP_ASSIGN_OR_RETURN(ExpressionPtr target, parse_target());
      tuple->children.push_back(std::move(target));
      if (!skip_operator(",")) break;
      is_tuple = true;
      if (current().is_name(stop) || current().is_operator(stop)) break;
    }
    if (parenthesised) ESP_RETURN_IF_ERROR(expect_operator(")"));
    if (is_tuple) return tuple;
    return std::move(tuple->children[0]);
  }

  Result<ExpressionPtr> parse_target() {
    if (current().is_operator("(")) return parse_targets("");
    ExpressionPtr target = make(ExpressionKind::kName);
    ESP_ASSIGN_OR_RETURN(target->name, expect_name());
    static constexpr std::string_view kReserved[] = {"true",  "false", "none", "True",
                                                     "False", "None",  "loop"};
    for (const std::string_view name : kReserved) {
      if (target->name == name) {
        return fail(wrong(fmt::format("'{}' cannot be assigned to", name)));
      }
    }
    if (!skip_operator(".")) return target;
    ExpressionPtr attribute = make(ExpressionKind::kAttribute);
    ESP_ASSIGN_OR_RETURN(attribute->name, expect_name());
    attribute->children.push_back(std::move(target));
    return attribute;
  }

  Status parse_set(Statement& node) {
    ESP_ASSIGN_OR_RETURN(node.target, parse_targets("="));
    if (skip_operator("=")) {
      node.kind = StatementKind::kSet;
      ESP_ASSIGN_OR_RETURN(node.expression, parse_tuple());
      return expect_block_end();
    }
    node.kind = StatementKind::kSetBlock;
    ESP_ASSIGN_OR_RETURN(node.expression, parse_filters(nullptr, false));
    return parse_body(node.body, "endset");
  }

  Status parse_parameters(std::vector<Parameter>& parameters) {
    ESP_RETURN_IF_ERROR(expect_operator("("));
    while (!current().is_operator(")")) {
      if (!parameters.empty()) {
        ESP_RETURN_IF_ERROR(expect_operator(","));
        if (current().is_operator(")")) break;
      }
      Parameter parameter;
      ESP_ASSIGN_OR_RETURN(parameter.name, expect_name());
      if (skip_operator("=")) {
        ESP_ASSIGN_OR_RETURN(parameter.otherwise, parse_expression());
      } else if (!parameters.empty() && parameters.back().otherwise != nullptr) {
        return wrong("a parameter without default follows one with a default");
      }
      parameters.push_back(std::move(parameter));
    }
    advance();
    return {};
  }

  // break and continue do not reach out of a macro.
  Status parse_function_body(Block& body, std::string_view end) {
    const int outer_loops = std::exchange(loops_, 0);
    ESP_RETURN_IF_ERROR(parse_body(body, end));
    loops_ = outer_loops;
    return {};
  }

  Status parse_macro(Statement& node) {
    node.kind = StatementKind::kMacro;
    ESP_ASSIGN_OR_RETURN(node.text, expect_name());
    ESP_RETURN_IF_ERROR(parse_parameters(node.parameters));
    return parse_function_body(node.body, "endmacro");
  }

  Status parse_call_block(Statement& node) {
    node.kind = StatementKind::kCallBlock;
    if (current().is_operator("(")) ESP_RETURN_IF_ERROR(parse_parameters(node.parameters));
    ESP_ASSIGN_OR_RETURN(node.expression, parse_expression());
    if (node.expression->kind != ExpressionKind::kCall) return wrong("expected a call");
    return parse_function_body(node.body, "endcall");
  }

  Status parse_filter_block(Statement& node) {
    node.kind = StatementKind::kFilter;
    ESP_ASSIGN_OR_RETURN(node.expression, parse_filters(nullptr, true));
    return parse_body(node.body, "endfilter");
  }

  Status parse_with(Statement& node) {
    node.kind = StatementKind::kScope;
    while (current().kind != TokenKind::kBlockEnd) {
      if (!node.with.empty()) ESP_RETURN_IF_ERROR(expect_operator(","));
      ESP_ASSIGN_OR_RETURN(std::string name, expect_name());
      ESP_RETURN_IF_ERROR(expect_operator("="));
      ESP_ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
      node.with.emplace_back(std::move(name), std::move(value));
    }
    return parse_body(node.body, "endwith");
  }

  int loops_ = 0;
};

}  // namespace

Result<Block> parse_template(std::string_view source) {
  ESP_ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize_template(source));
  return TemplateParser(std::move(tokens)).parse();
}

}  // namespace espalier::jinja
