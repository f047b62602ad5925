#include "text/template/bindings.h"

#include <utility>

namespace espalier::jinja {
namespace {

Result<ExpressionPtr> parse_target(TokenCursor& tokens) {
  if (tokens.current().is_operator("(")) {
    ESP_RETURN_IF_ERROR(tokens.enter("the targets are"));
    Result<ExpressionPtr> targets = parse_targets(tokens, "");
    tokens.leave();
    return targets;
  }
  ExpressionPtr target = make_expression(ExpressionKind::kName, tokens);
  ESP_ASSIGN_OR_RETURN(target->name, tokens.expect_name());
  static constexpr std::string_view kReserved[] = {"true",  "false", "none", "True",
                                                   "False", "None",  "loop"};
  for (const std::string_view name : kReserved) {
    if (target->name == name) {
      return fail(tokens.wrong(fmt::format("'{}' cannot be assigned to", name)));
    }
  }
  if (!tokens.skip_operator(".")) return target;
  ExpressionPtr attribute = make_expression(ExpressionKind::kAttribute, tokens);
  ESP_ASSIGN_OR_RETURN(attribute->name, tokens.expect_name());
  attribute->children.push_back(std::move(target));
  return attribute;
}

}  // namespace

Result<ExpressionPtr> parse_targets(TokenCursor& tokens, std::string_view stop) {
  ExpressionPtr tuple = make_expression(ExpressionKind::kTuple, tokens);
  bool is_tuple = false;
  const bool parenthesised = tokens.skip_operator("(");
  for (;;) {
    ESP_ASSIGN_OR_RETURN(ExpressionPtr target, parse_target(tokens));
    tuple->children.push_back(std::move(target));
    if (!tokens.skip_operator(",")) break;
    is_tuple = true;
    if (tokens.current().is_name(stop) || tokens.current().is_operator(stop)) break;
  }
  if (parenthesised) ESP_RETURN_IF_ERROR(tokens.expect_operator(")"));
  if (is_tuple) return tuple;
  return std::move(tuple->children[0]);
}

Status parse_parameters(TokenCursor& tokens, ExpressionParser& expressions,
                        std::vector<Parameter>& parameters) {
  ESP_RETURN_IF_ERROR(tokens.expect_operator("("));
  while (!tokens.current().is_operator(")")) {
    if (!parameters.empty()) {
      ESP_RETURN_IF_ERROR(tokens.expect_operator(","));
      if (tokens.current().is_operator(")")) break;
    }
    Parameter parameter;
    ESP_ASSIGN_OR_RETURN(parameter.name, tokens.expect_name());
    if (tokens.skip_operator("=")) {
      ESP_ASSIGN_OR_RETURN(parameter.otherwise, expressions.parse_expression());
    } else if (!parameters.empty() && parameters.back().otherwise != nullptr) {
      return tokens.wrong("a parameter without default follows one with a default");
    }
    parameters.push_back(std::move(parameter));
  }
  tokens.advance();
  return {};
}

}  // namespace espalier::jinja
