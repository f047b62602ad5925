// Parses a template's statements by recursive descent.
#include <algorithm>
#include <initializer_list>
#include <utility>

#include "text/template/ast.h"
#include "text/template/bindings.h"
#include "text/template/expression_parser.h"
#include "text/template/token_cursor.h"

namespace espalier::jinja {
namespace {

class TemplateParser {
 public:
  explicit TemplateParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Block> parse() {
    Block block;
    ESP_RETURN_IF_ERROR(parse_block(block, {}));
    return block;
  }

 private:
  using Ends = std::initializer_list<std::string_view>;

  // Parses statements up to one of the tags in `ends`, or to the template's end if `ends` is empty.
  // The cursor stops at the tag's name, behind its '{%'.
  Status parse_block(Block& block, Ends ends) {
    ESP_RETURN_IF_ERROR(tokens_.enter("statements are"));
    for (;;) {
      switch (tokens_.current().kind) {
        case TokenKind::kData:
          block.push_back(statement(StatementKind::kText));
          block.back().text = tokens_.current().text;
          tokens_.advance();
          break;
        case TokenKind::kVariableBegin: {
          block.push_back(statement(StatementKind::kOutput));
          tokens_.advance();
          ESP_ASSIGN_OR_RETURN(block.back().expression, expressions_.parse_tuple());
          ESP_RETURN_IF_ERROR(tokens_.expect_kind(TokenKind::kVariableEnd, "'}}'"));
          break;
        }
        case TokenKind::kBlockBegin: {
          tokens_.advance();
          if (tokens_.current().kind != TokenKind::kName) return tokens_.unexpected("a statement");
          if (std::find(ends.begin(), ends.end(), tokens_.current().text) != ends.end()) {
            tokens_.leave();
            return {};
          }
          ESP_RETURN_IF_ERROR(parse_statement(block));
          break;
        }
        default:
          if (ends.size() > 0) {
            return tokens_.wrong(fmt::format("the template ends before '{}'", *ends.begin()));
          }
          tokens_.leave();
          return {};
      }
    }
  }

  Status parse_statement(Block& block) {
    const std::string name = tokens_.current().text;
    Statement node = statement(StatementKind::kText);
    tokens_.advance();
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
      if (loops_ == 0) return tokens_.wrong(fmt::format("'{}' outside of a loop", name));
      node.kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
      status = tokens_.expect_kind(TokenKind::kBlockEnd, "'%}'");
    } else {
      return tokens_.wrong(fmt::format("unknown or unsupported statement '{}'", name));
    }
    block.push_back(std::move(node));
    return status;
  }

  Statement statement(StatementKind kind) const {
    Statement node;
    node.kind = kind;
    node.line = tokens_.current().line;
    return node;
  }

  // '%}' body '{% end %}'
  Status parse_body(Block& body, std::string_view end) {
    ESP_RETURN_IF_ERROR(tokens_.expect_kind(TokenKind::kBlockEnd, "'%}'"));
    ESP_RETURN_IF_ERROR(parse_block(body, {end}));
    tokens_.advance();
    return tokens_.expect_kind(TokenKind::kBlockEnd, "'%}'");
  }

  Status parse_if(Statement& node) {
    node.kind = StatementKind::kIf;
    ESP_ASSIGN_OR_RETURN(node.expression, expressions_.parse_tuple(/*with_conditional=*/false));
    ESP_RETURN_IF_ERROR(tokens_.expect_kind(TokenKind::kBlockEnd, "'%}'"));
    ESP_RETURN_IF_ERROR(parse_block(node.body, {"endif", "elif", "else"}));
    // An elif is an if within else. A loop builds the chain, because a long one would exhaust the
    // stack.
    Statement* last = &node;
    while (tokens_.current().is_name("elif")) {
      last->otherwise.push_back(statement(StatementKind::kIf));
      last = &last->otherwise.back();
      tokens_.advance();
      ESP_ASSIGN_OR_RETURN(last->expression, expressions_.parse_tuple(/*with_conditional=*/false));
      ESP_RETURN_IF_ERROR(tokens_.expect_kind(TokenKind::kBlockEnd, "'%}'"));
      ESP_RETURN_IF_ERROR(parse_block(last->body, {"endif", "elif", "else"}));
    }
    if (tokens_.skip_name("else")) return parse_body(last->otherwise, "endif");
    tokens_.advance();
    return tokens_.expect_kind(TokenKind::kBlockEnd, "'%}'");
  }

  Status parse_for(Statement& node) {
    node.kind = StatementKind::kFor;
    ESP_ASSIGN_OR_RETURN(node.target, parse_targets(tokens_, "in"));
    if (!tokens_.skip_name("in")) return tokens_.unexpected("'in'");
    ESP_ASSIGN_OR_RETURN(node.expression,
                         expressions_.parse_tuple(/*with_conditional=*/false, false, "recursive"));
    if (tokens_.skip_name("if")) {
      ESP_ASSIGN_OR_RETURN(node.condition, expressions_.parse_expression());
    }
    node.recursive = tokens_.skip_name("recursive");
    ESP_RETURN_IF_ERROR(tokens_.expect_kind(TokenKind::kBlockEnd, "'%}'"));
    ++loops_;
    ESP_RETURN_IF_ERROR(parse_block(node.body, {"endfor", "else"}));
    --loops_;
    if (tokens_.skip_name("else")) return parse_body(node.otherwise, "endfor");
    tokens_.advance();
    return tokens_.expect_kind(TokenKind::kBlockEnd, "'%}'");
  }

  Status parse_set(Statement& node) {
    ESP_ASSIGN_OR_RETURN(node.target, parse_targets(tokens_, "="));
    if (tokens_.skip_operator("=")) {
      node.kind = StatementKind::kSet;
      ESP_ASSIGN_OR_RETURN(node.expression, expressions_.parse_tuple());
      return tokens_.expect_kind(TokenKind::kBlockEnd, "'%}'");
    }
    node.kind = StatementKind::kSetBlock;
    ESP_ASSIGN_OR_RETURN(node.expression, expressions_.parse_filters(nullptr, false));
    return parse_body(node.body, "endset");
  }

  // A macro's body is in no loop: break and continue do not leave the macro.
  Status parse_function_body(Block& body, std::string_view end) {
    const int outer_loops = std::exchange(loops_, 0);
    ESP_RETURN_IF_ERROR(parse_body(body, end));
    loops_ = outer_loops;
    return {};
  }

  Status parse_macro(Statement& node) {
    node.kind = StatementKind::kMacro;
    ESP_ASSIGN_OR_RETURN(node.text, tokens_.expect_name());
    ESP_RETURN_IF_ERROR(parse_parameters(tokens_, expressions_, node.parameters));
    return parse_function_body(node.body, "endmacro");
  }

  Status parse_call_block(Statement& node) {
    node.kind = StatementKind::kCallBlock;
    if (tokens_.current().is_operator("("))
      ESP_RETURN_IF_ERROR(parse_parameters(tokens_, expressions_, node.parameters));
    ESP_ASSIGN_OR_RETURN(node.expression, expressions_.parse_expression());
    if (node.expression->kind != ExpressionKind::kCall) return tokens_.wrong("expected a call");
    return parse_function_body(node.body, "endcall");
  }

  Status parse_filter_block(Statement& node) {
    node.kind = StatementKind::kFilter;
    ESP_ASSIGN_OR_RETURN(node.expression, expressions_.parse_filters(nullptr, true));
    return parse_body(node.body, "endfilter");
  }

  Status parse_with(Statement& node) {
    node.kind = StatementKind::kScope;
    while (tokens_.current().kind != TokenKind::kBlockEnd) {
      if (!node.with.empty()) ESP_RETURN_IF_ERROR(tokens_.expect_operator(","));
      ESP_ASSIGN_OR_RETURN(std::string name, tokens_.expect_name());
      ESP_RETURN_IF_ERROR(tokens_.expect_operator("="));
      ESP_ASSIGN_OR_RETURN(ExpressionPtr value, expressions_.parse_expression());
      node.with.emplace_back(std::move(name), std::move(value));
    }
    return parse_body(node.body, "endwith");
  }

  TokenCursor tokens_;
  ExpressionParser expressions_{tokens_};
  int loops_ = 0;  // loops around the current statement, within its macro
};

}  // namespace

Result<Block> parse_template(std::string_view source) {
  ESP_ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize_template(source));
  return TemplateParser(std::move(tokens)).parse();
}

}  // namespace espalier::jinja
