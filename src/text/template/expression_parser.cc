// One function for each level of Jinja's precedence, the loosest first: conditional, or, and, not,
// comparison, sum, ~, product, **, sign, then subscripts, calls, filters and tests. The order is
// Jinja's, not Python's: ~ binds tighter than + and looser than *, and ** is tighter than * but
// looser than a sign. Functions that call themselves count their depth in TokenCursor::enter(), so
// a hostile template cannot exhaust the stack.
#include "text/template/expression_parser.h"

#include <charconv>

namespace espalier::jinja {

namespace {

// The operators of comparison but `in` and `not in`.
bool is_comparison(const Token& token) {
  return token.kind == TokenKind::kOperator &&
         (token.text == "==" || token.text == "!=" || token.text == "<" || token.text == "<=" ||
          token.text == ">" || token.text == ">=");
}

}  // namespace

ExpressionPtr make_expression(ExpressionKind kind, const TokenCursor& tokens) {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = tokens.current().line;
  return node;
}

ExpressionPtr ExpressionParser::binary(std::string_view op, ExpressionPtr left,
                                       ExpressionPtr right) const {
  ExpressionPtr node = make(ExpressionKind::kBinary);
  node->name = op;
  node->children.push_back(std::move(left));
  node->children.push_back(std::move(right));
  return node;
}

Result<ExpressionPtr> ExpressionParser::parse_expression(bool with_conditional) {
  ESP_RETURN_IF_ERROR(tokens_.enter("the expression is"));
  Result<ExpressionPtr> node = with_conditional ? parse_conditional() : parse_or();
  tokens_.leave();
  return node;
}

// `a if b if c` is accepted as Jinja accepts it: the value so far becomes the first operand of the
// next condition. Without `else` the node has two children.
Result<ExpressionPtr> ExpressionParser::parse_conditional() {
  ESP_ASSIGN_OR_RETURN(ExpressionPtr value, parse_or());
  while (tokens_.skip_name("if")) {
    ExpressionPtr node = make(ExpressionKind::kConditional);
    ESP_ASSIGN_OR_RETURN(ExpressionPtr condition, parse_or());
    node->children.push_back(std::move(value));
    node->children.push_back(std::move(condition));
    if (tokens_.skip_name("else")) {
      ESP_ASSIGN_OR_RETURN(ExpressionPtr otherwise, parse_expression());
      node->children.push_back(std::move(otherwise));
    }
    value = std::move(node);
  }
  return value;
}

Result<ExpressionPtr> ExpressionParser::parse_or() {
  ESP_ASSIGN_OR_RETURN(ExpressionPtr left, parse_and());
  while (tokens_.current().is_name("or")) {
    ExpressionPtr node = make(ExpressionKind::kOr);
    tokens_.advance();
    ESP_ASSIGN_OR_RETURN(ExpressionPtr right, parse_and());
    node->children.push_back(std::move(left));
    node->children.push_back(std::move(right));
    left = std::move(node);
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::parse_and() {
  ESP_ASSIGN_OR_RETURN(ExpressionPtr left, parse_not());
  while (tokens_.current().is_name("and")) {
    ExpressionPtr node = make(ExpressionKind::kAnd);
    tokens_.advance();
    ESP_ASSIGN_OR_RETURN(ExpressionPtr right, parse_not());
    node->children.push_back(std::move(left));
    node->children.push_back(std::move(right));
    left = std::move(node);
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::parse_not() {
  if (!tokens_.current().is_name("not")) return parse_compare();
  ExpressionPtr node = make(ExpressionKind::kNot);
  tokens_.advance();
  ESP_RETURN_IF_ERROR(tokens_.enter("the expression is"));
  ESP_ASSIGN_OR_RETURN(ExpressionPtr operand, parse_not());
  tokens_.leave();
  node->children.push_back(std::move(operand));
  return node;
}

// A chain a < b < c is one node, for its operands are evaluated once each; without an operator the
// operand itself is returned, so that no node costs a step of the budget for nothing.
Result<ExpressionPtr> ExpressionParser::parse_compare() {
  ESP_ASSIGN_OR_RETURN(ExpressionPtr first, parse_sum());
  ExpressionPtr node = make(ExpressionKind::kCompare);
  node->children.push_back(std::move(first));
  for (;;) {
    if (is_comparison(tokens_.current())) {
      node->operators.push_back(tokens_.current().text);
      tokens_.advance();
    } else if (tokens_.skip_name("in")) {
      node->operators.emplace_back("in");
    } else if (tokens_.current().is_name("not") && tokens_.peek().is_name("in")) {
      tokens_.advance();
      tokens_.advance();
      node->operators.emplace_back("not in");
    } else {
      break;
    }
    ESP_ASSIGN_OR_RETURN(ExpressionPtr right, parse_sum());
    node->children.push_back(std::move(right));
  }
  if (node->operators.empty()) return std::move(node->children[0]);
  return node;
}

Result<ExpressionPtr> ExpressionParser::parse_sum() {
  ESP_ASSIGN_OR_RETURN(ExpressionPtr left, parse_concatenate());
  while (tokens_.current().is_operator("+") || tokens_.current().is_operator("-")) {
    const std::string op = tokens_.current().text;
    tokens_.advance();
    ESP_ASSIGN_OR_RETURN(ExpressionPtr right, parse_concatenate());
    left = binary(op, std::move(left), std::move(right));
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::parse_concatenate() {
  ESP_ASSIGN_OR_RETURN(ExpressionPtr first, parse_product());
  if (!tokens_.current().is_operator("~")) return first;
  ExpressionPtr node = make(ExpressionKind::kConcatenate);
  node->children.push_back(std::move(first));
  while (tokens_.skip_operator("~")) {
    ESP_ASSIGN_OR_RETURN(ExpressionPtr next, parse_product());
    node->children.push_back(std::move(next));
  }
  return node;
}

Result<ExpressionPtr> ExpressionParser::parse_product() {
  ESP_ASSIGN_OR_RETURN(ExpressionPtr left, parse_power());
  while (tokens_.current().is_operator("*") || tokens_.current().is_operator("/") ||
         tokens_.current().is_operator("//") || tokens_.current().is_operator("%")) {
    const std::string op = tokens_.current().text;
    tokens_.advance();
    ESP_ASSIGN_OR_RETURN(ExpressionPtr right, parse_power());
    left = binary(op, std::move(left), std::move(right));
  }
  return left;
}

// Left associative, as in Jinja, where Python's is right associative.
Result<ExpressionPtr> ExpressionParser::parse_power() {
  ESP_ASSIGN_OR_RETURN(ExpressionPtr left, parse_unary());
  while (tokens_.skip_operator("**")) {
    ESP_ASSIGN_OR_RETURN(ExpressionPtr right, parse_unary());
    left = binary("**", std::move(left), std::move(right));
  }
  return left;
}

// A filter binds looser than a sign (-x|abs is (-x)|abs), so the operand of a sign is parsed
// without filters and they are applied to the whole.
Result<ExpressionPtr> ExpressionParser::parse_unary(bool with_filter) {
  ExpressionPtr node;
  if (tokens_.current().is_operator("-") || tokens_.current().is_operator("+")) {
    node = make(tokens_.current().is_operator("-") ? ExpressionKind::kNegate
                                                   : ExpressionKind::kPositive);
    tokens_.advance();
    ESP_RETURN_IF_ERROR(tokens_.enter("the expression is"));
    ESP_ASSIGN_OR_RETURN(ExpressionPtr operand, parse_unary(false));
    tokens_.leave();
    node->children.push_back(std::move(operand));
  } else {
    ESP_ASSIGN_OR_RETURN(node, parse_primary());
  }
  ESP_ASSIGN_OR_RETURN(node, parse_postfix(std::move(node)));
  if (!with_filter) return node;
  return parse_filter_expression(std::move(node));
}

Result<ExpressionPtr> ExpressionParser::parse_primary() {
  const Token& token = tokens_.current();
  ExpressionPtr node;
  if (token.kind == TokenKind::kName) {
    node = make(ExpressionKind::kConstant);
    if (token.text == "true" || token.text == "True") {
      node->value = Value(true);
    } else if (token.text == "false" || token.text == "False") {
      node->value = Value(false);
    } else if (token.text != "none" && token.text != "None") {
      node->kind = ExpressionKind::kName;
      node->name = token.text;
    }
    tokens_.advance();
    return node;
  }
  if (token.kind == TokenKind::kString) {
    node = make(ExpressionKind::kConstant);
    std::string text;
    for (; tokens_.current().kind == TokenKind::kString; tokens_.advance())
      text += tokens_.current().text;
    node->value = Value(std::move(text));
    return node;
  }
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat) return parse_number();
  if (tokens_.skip_operator("(")) {
    ESP_ASSIGN_OR_RETURN(node, parse_tuple(true, /*parenthesised=*/true));
    ESP_RETURN_IF_ERROR(tokens_.expect_operator(")"));
    return node;
  }
  if (token.is_operator("[")) return parse_list();
  if (token.is_operator("{")) return parse_dict();
  return fail(tokens_.unexpected("an expression"));
}

Result<ExpressionPtr> ExpressionParser::parse_number() {
  ExpressionPtr node = make(ExpressionKind::kConstant);
  const std::string text = tokens_.current().text;
  const char* begin = text.data();
  const char* end = text.data() + text.size();
  if (tokens_.current().kind == TokenKind::kFloat) {
    double d = 0;
    std::from_chars(begin, end, d);
    node->value = Value(d);
  } else {
    int base = 10;
    if (text.size() > 2 && text[0] == '0' && (text[1] < '0' || text[1] > '9')) {
      base = text[1] == 'x' || text[1] == 'X' ? 16 : text[1] == 'o' || text[1] == 'O' ? 8 : 2;
      begin += 2;
    }
    int64_t i = 0;
    const auto result = std::from_chars(begin, end, i, base);
    if (result.ec != std::errc() || result.ptr != end) {
      return fail(tokens_.wrong(fmt::format("the integer {} is too large or malformed", text)));
    }
    node->value = Value(i);
  }
  tokens_.advance();
  return node;
}

Result<ExpressionPtr> ExpressionParser::parse_list() {
  ExpressionPtr node = make(ExpressionKind::kList);
  tokens_.advance();
  while (!tokens_.current().is_operator("]")) {
    if (!node->children.empty()) {
      ESP_RETURN_IF_ERROR(tokens_.expect_operator(","));
      if (tokens_.current().is_operator("]")) break;
    }
    ESP_ASSIGN_OR_RETURN(ExpressionPtr item, parse_expression());
    node->children.push_back(std::move(item));
  }
  tokens_.advance();
  return node;
}

Result<ExpressionPtr> ExpressionParser::parse_dict() {
  ExpressionPtr node = make(ExpressionKind::kDict);
  tokens_.advance();
  while (!tokens_.current().is_operator("}")) {
    if (!node->children.empty()) {
      ESP_RETURN_IF_ERROR(tokens_.expect_operator(","));
      if (tokens_.current().is_operator("}")) break;
    }
    ESP_ASSIGN_OR_RETURN(ExpressionPtr key, parse_expression());
    ESP_RETURN_IF_ERROR(tokens_.expect_operator(":"));
    ESP_ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
    node->children.push_back(std::move(key));
    node->children.push_back(std::move(value));
  }
  tokens_.advance();
  return node;
}

bool ExpressionParser::at_tuple_end(std::string_view stop_name) const {
  return tokens_.current().kind == TokenKind::kVariableEnd ||
         tokens_.current().kind == TokenKind::kBlockEnd || tokens_.current().is_operator(")") ||
         (!stop_name.empty() && tokens_.current().is_name(stop_name));
}

Result<ExpressionPtr> ExpressionParser::parse_tuple(bool with_conditional, bool parenthesised,
                                                    std::string_view stop_name) {
  ExpressionPtr node = make(ExpressionKind::kTuple);
  bool is_tuple = false;
  while (!at_tuple_end(stop_name)) {
    ESP_ASSIGN_OR_RETURN(ExpressionPtr item, parse_expression(with_conditional));
    node->children.push_back(std::move(item));
    if (!tokens_.skip_operator(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return node;
  if (!node->children.empty()) return std::move(node->children[0]);
  if (!parenthesised) return fail(tokens_.unexpected("an expression"));
  return node;
}

Result<ExpressionPtr> ExpressionParser::parse_postfix(ExpressionPtr node) {
  for (;;) {
    if (tokens_.current().is_operator(".") || tokens_.current().is_operator("[")) {
      ESP_ASSIGN_OR_RETURN(node, parse_subscript(std::move(node)));
    } else if (tokens_.current().is_operator("(")) {
      ExpressionPtr call = make(ExpressionKind::kCall);
      ESP_ASSIGN_OR_RETURN(call->call, parse_call_arguments());
      call->children.push_back(std::move(node));
      node = std::move(call);
    } else {
      return node;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::parse_subscript(ExpressionPtr node) {
  if (tokens_.skip_operator(".")) {
    ExpressionPtr access = make(ExpressionKind::kAttribute);
    access->children.push_back(std::move(node));
    if (tokens_.current().kind == TokenKind::kInteger) {  // a.0
      access->kind = ExpressionKind::kItem;
      ESP_ASSIGN_OR_RETURN(ExpressionPtr index, parse_number());
      access->children.push_back(std::move(index));
      return access;
    }
    ESP_ASSIGN_OR_RETURN(access->name, tokens_.expect_name());
    return access;
  }
  ExpressionPtr access = make(ExpressionKind::kItem);
  tokens_.advance();
  access->children.push_back(std::move(node));
  std::vector<ExpressionPtr> items;
  while (!tokens_.current().is_operator("]")) {
    if (!items.empty()) ESP_RETURN_IF_ERROR(tokens_.expect_operator(","));
    ESP_ASSIGN_OR_RETURN(ExpressionPtr item, parse_slice_or_item());
    items.push_back(std::move(item));
  }
  if (items.empty()) return fail(tokens_.unexpected("an index"));
  tokens_.advance();
  if (items.size() == 1) {
    access->children.push_back(std::move(items[0]));
  } else {
    ExpressionPtr tuple = make(ExpressionKind::kTuple);
    tuple->children = std::move(items);
    access->children.push_back(std::move(tuple));
  }
  return access;
}

Result<ExpressionPtr> ExpressionParser::parse_slice_or_item() {
  ExpressionPtr slice = make(ExpressionKind::kSlice);
  slice->children.resize(3);
  size_t part = 0;
  for (;;) {
    if (tokens_.skip_operator(":")) {
      if (++part > 2) return fail(tokens_.wrong("a slice has at most three parts"));
      continue;
    }
    if (tokens_.current().is_operator("]") || tokens_.current().is_operator(",")) break;
    if (slice->children[part] != nullptr) return fail(tokens_.unexpected("':' or ']'"));
    ESP_ASSIGN_OR_RETURN(slice->children[part], parse_expression());
    if (part == 0 && !tokens_.current().is_operator(":")) return std::move(slice->children[0]);
  }
  return slice;
}

Result<Call> ExpressionParser::parse_call_arguments() {
  Call call;
  ESP_RETURN_IF_ERROR(tokens_.expect_operator("("));
  bool first = true;
  while (!tokens_.current().is_operator(")")) {
    if (!first) {
      ESP_RETURN_IF_ERROR(tokens_.expect_operator(","));
      if (tokens_.current().is_operator(")")) break;
    }
    first = false;
    if (tokens_.skip_operator("*")) {
      ESP_ASSIGN_OR_RETURN(call.star, parse_expression());
    } else if (tokens_.skip_operator("**")) {
      ESP_ASSIGN_OR_RETURN(call.double_star, parse_expression());
    } else if (tokens_.current().kind == TokenKind::kName && tokens_.peek().is_operator("=")) {
      const std::string name = tokens_.current().text;
      tokens_.advance();
      tokens_.advance();
      ESP_ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
      call.named.emplace_back(name, std::move(value));
    } else {
      if (!call.named.empty() || call.double_star != nullptr) {
        return fail(tokens_.wrong("a positional argument follows a named one"));
      }
      ESP_ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
      call.positional.push_back(std::move(value));
    }
  }
  tokens_.advance();
  return call;
}

Result<ExpressionPtr> ExpressionParser::parse_filter_expression(ExpressionPtr node) {
  for (;;) {
    if (tokens_.current().is_operator("|")) {
      ESP_ASSIGN_OR_RETURN(node, parse_filters(std::move(node), false));
    } else if (tokens_.current().is_name("is")) {
      ESP_ASSIGN_OR_RETURN(node, parse_test(std::move(node)));
    } else if (tokens_.current().is_operator("(")) {  // the result of a filter, called
      ExpressionPtr call = make(ExpressionKind::kCall);
      ESP_ASSIGN_OR_RETURN(call->call, parse_call_arguments());
      call->children.push_back(std::move(node));
      node = std::move(call);
    } else {
      return node;
    }
  }
}

Result<ExpressionPtr> ExpressionParser::parse_filters(ExpressionPtr node, bool first_without_pipe) {
  while (first_without_pipe || tokens_.skip_operator("|")) {
    first_without_pipe = false;
    ExpressionPtr filter = make(ExpressionKind::kFilter);
    ESP_ASSIGN_OR_RETURN(filter->name, tokens_.expect_name());
    while (tokens_.skip_operator(".")) {
      ESP_ASSIGN_OR_RETURN(const std::string part, tokens_.expect_name());
      filter->name += "." + part;
    }
    if (tokens_.current().is_operator("(")) {
      ESP_ASSIGN_OR_RETURN(filter->call, parse_call_arguments());
    }
    filter->children.push_back(std::move(node));
    node = std::move(filter);
  }
  return node;
}

Result<ExpressionPtr> ExpressionParser::parse_test(ExpressionPtr node) {
  tokens_.advance();  // is
  const bool negated = tokens_.skip_name("not");
  ExpressionPtr test = make(ExpressionKind::kTest);
  ESP_ASSIGN_OR_RETURN(test->name, tokens_.expect_name());
  test->children.push_back(std::move(node));
  const Token& next = tokens_.current();
  const bool starts_argument = next.kind == TokenKind::kName || next.kind == TokenKind::kString ||
                               next.kind == TokenKind::kInteger || next.kind == TokenKind::kFloat ||
                               next.is_operator("[") || next.is_operator("{");
  if (next.is_operator("(")) {
    ESP_ASSIGN_OR_RETURN(test->call, parse_call_arguments());
  } else if (starts_argument && !next.is_name("else") && !next.is_name("or") &&
             !next.is_name("and")) {
    if (next.is_name("is")) return fail(tokens_.wrong("tests cannot be chained with 'is'"));
    ESP_ASSIGN_OR_RETURN(ExpressionPtr argument, parse_primary());
    ESP_ASSIGN_OR_RETURN(argument, parse_postfix(std::move(argument)));
    test->call.positional.push_back(std::move(argument));
  }
  if (!negated) return test;
  ExpressionPtr inverse = make(ExpressionKind::kNot);
  inverse->children.push_back(std::move(test));
  return inverse;
}

}  // namespace espalier::jinja
