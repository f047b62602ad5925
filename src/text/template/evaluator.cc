#include "text/template/evaluator.h"

#include "text/template/interpreter.h"
#include "text/template/render_budget.h"
#include "text/template/scope.h"

namespace espalier::jinja {

// Every node costs one step of the budget and one level of depth while it is evaluated, which
// bounds the time and the stack of a template that comes from a stranger's file.
Result<Value> Evaluator::evaluate(const Expression& expression) {
  ESP_RETURN_IF_ERROR(budget_.charge(1));
  const RenderBudget::Level level(budget_);
  if (budget_.too_deep()) {
    return fail(error(StatusCode::kResourceExhausted,
                      "the template's expressions or macros are nested too deeply"));
  }
  return evaluate_node(expression);
}

Result<Value> Evaluator::evaluate_node(const Expression& node) {
  switch (node.kind) {
    case ExpressionKind::kConstant:
      return node.value;
    case ExpressionKind::kName:
      return evaluate_name(node);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
      return evaluate_list(node);
    case ExpressionKind::kDict:
      return evaluate_dict(node);
    case ExpressionKind::kNegate:
    case ExpressionKind::kPositive:
      return evaluate_sign(node);
    case ExpressionKind::kNot: {
      ESP_ASSIGN_OR_RETURN(const Value operand, evaluate(*node.children[0]));
      return Value(!operand.truthy());
    }
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: {
      ESP_ASSIGN_OR_RETURN(Value left, evaluate(*node.children[0]));
      // The value of `and` and `or` is that of the operand which decides, not a bool; the other is
      // then not evaluated.
      if (left.truthy() == (node.kind == ExpressionKind::kOr)) return left;
      return evaluate(*node.children[1]);
    }
    case ExpressionKind::kBinary: {
      ESP_ASSIGN_OR_RETURN(const Value left, evaluate(*node.children[0]));
      ESP_ASSIGN_OR_RETURN(const Value right, evaluate(*node.children[1]));
      return binary_operation(interpreter_, node.name, left, right);
    }
    case ExpressionKind::kConcatenate:
      return evaluate_concatenate(node);
    case ExpressionKind::kCompare:
      return evaluate_compare(node);
    case ExpressionKind::kConditional:
      return evaluate_conditional(node);
    case ExpressionKind::kAttribute: {
      ESP_ASSIGN_OR_RETURN(const Value object, evaluate(*node.children[0]));
      return interpreter_.attribute(object, node.name);
    }
    case ExpressionKind::kItem:
      return evaluate_item(node);
    case ExpressionKind::kSlice:
      return fail(template_error("a slice stands outside of an index"));
    case ExpressionKind::kCall:
      return evaluate_call(node);
    case ExpressionKind::kFilter:
      return evaluate_filter(node, nullptr);
    case ExpressionKind::kTest:
      return evaluate_test(node);
  }
  return Value();
}

// A name that is nowhere is no error yet: the value is undefined, prints as nothing, and fails
// where it is used for more.
Result<Value> Evaluator::evaluate_name(const Expression& node) {
  if (const Value* value = interpreter_.find_variable(node.name)) return *value;
  if (std::optional<Value> global = find_global(node.name)) return *std::move(global);
  return Value::undefined(fmt::format("'{}' is undefined", node.name));
}

Result<Value> Evaluator::evaluate_sign(const Expression& node) {
  ESP_ASSIGN_OR_RETURN(Value operand, evaluate(*node.children[0]));
  if (operand.is_undefined()) return fail(template_error(operand.why_undefined()));
  if (!operand.is_number()) {
    return fail(
        template_error(fmt::format("bad operand type for unary -: '{}'", operand.type_name())));
  }
  if (node.kind == ExpressionKind::kPositive) return operand;
  return binary_operation(interpreter_, "-", Value(0), operand);
}

Result<Value> Evaluator::evaluate_conditional(const Expression& node) {
  ESP_ASSIGN_OR_RETURN(const Value condition, evaluate(*node.children[1]));
  if (condition.truthy()) return evaluate(*node.children[0]);
  if (node.children.size() > 2) return evaluate(*node.children[2]);
  return Value::undefined(
      "the inline if-expression evaluated to false and no else section was defined");
}

Result<Value> Evaluator::evaluate_list(const Expression& node) {
  std::vector<Value> items;
  items.reserve(node.children.size());
  for (const ExpressionPtr& child : node.children) {
    ESP_ASSIGN_OR_RETURN(Value item, evaluate(*child));
    items.push_back(std::move(item));
  }
  return node.kind == ExpressionKind::kTuple ? Value::tuple(std::move(items))
                                             : Value(std::move(items));
}

Result<Value> Evaluator::evaluate_dict(const Expression& node) {
  Dict dict;
  for (size_t i = 0; i < node.children.size(); i += 2) {
    ESP_ASSIGN_OR_RETURN(Value key, evaluate(*node.children[i]));
    ESP_ASSIGN_OR_RETURN(Value value, evaluate(*node.children[i + 1]));
    if (key.is_dict() || (key.is_list() && !key.list().is_tuple)) {
      return fail(template_error(fmt::format("unhashable type: '{}'", key.type_name())));
    }
    // Dict::set() scans its keys, so a long literal pays for its square.
    ESP_RETURN_IF_ERROR(budget_.charge(dict.entries.size() / 16));
    dict.set(std::move(key), std::move(value));
  }
  return Value(std::move(dict));
}

Result<Value> Evaluator::evaluate_concatenate(const Expression& node) {
  std::string text;
  for (const ExpressionPtr& child : node.children) {
    ESP_ASSIGN_OR_RETURN(const Value value, evaluate(*child));
    const std::string piece = value.str();
    // The whole text so far is charged for each piece: doubling a text in a loop meets the budget
    // before it meets the memory.
    ESP_RETURN_IF_ERROR(budget_.charge_bytes(text.size() + piece.size()));
    text += piece;
  }
  return Value(std::move(text));
}

// a < b < c holds when each neighbour does; the first that does not ends the evaluation, and later
// operands are not evaluated.
Result<Value> Evaluator::evaluate_compare(const Expression& node) {
  ESP_ASSIGN_OR_RETURN(Value left, evaluate(*node.children[0]));
  for (size_t i = 0; i < node.operators.size(); ++i) {
    const std::string& op = node.operators[i];
    ESP_ASSIGN_OR_RETURN(Value right, evaluate(*node.children[i + 1]));
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      if (right.is_string()) ESP_RETURN_IF_ERROR(budget_.charge(right.string().size() / 64));
      if (right.is_list()) ESP_RETURN_IF_ERROR(budget_.charge(right.items().size() / 8));
      ESP_ASSIGN_OR_RETURN(const bool is_in, contains(right, left));
      holds = is_in == (op == "in");
    } else {
      ESP_ASSIGN_OR_RETURN(const int order, compare(left, right));
      holds = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Evaluator::evaluate_item(const Expression& node) {
  ESP_ASSIGN_OR_RETURN(const Value object, evaluate(*node.children[0]));
  const Expression& index = *node.children[1];
  if (index.kind != ExpressionKind::kSlice) {
    ESP_ASSIGN_OR_RETURN(const Value key, evaluate(index));
    return interpreter_.item(object, key);
  }
  Value parts[3];
  for (size_t i = 0; i < 3; ++i) {
    if (index.children[i] == nullptr) continue;
    ESP_ASSIGN_OR_RETURN(parts[i], evaluate(*index.children[i]));
  }
  if (object.is_string()) ESP_RETURN_IF_ERROR(budget_.charge_bytes(object.string().size()));
  if (object.is_list()) ESP_RETURN_IF_ERROR(budget_.charge(object.items().size() / 8));
  return slice(object, parts[0], parts[1], parts[2]);
}

// In Python's order of evaluation: positional ones, *args, named ones, **kwargs.
Result<Arguments> Evaluator::evaluate_arguments(const Call& call) {
  Arguments arguments;
  for (const ExpressionPtr& expression : call.positional) {
    ESP_ASSIGN_OR_RETURN(Value value, evaluate(*expression));
    arguments.positional.push_back(std::move(value));
  }
  if (call.star != nullptr) {
    ESP_ASSIGN_OR_RETURN(const Value star, evaluate(*call.star));
    ESP_ASSIGN_OR_RETURN(std::vector<Value> items, interpreter_.iterate(star));
    for (Value& item : items) arguments.positional.push_back(std::move(item));
  }
  for (const auto& [name, expression] : call.named) {
    ESP_ASSIGN_OR_RETURN(Value value, evaluate(*expression));
    arguments.named.emplace_back(name, std::move(value));
  }
  if (call.double_star != nullptr) {
    ESP_ASSIGN_OR_RETURN(const Value named, evaluate(*call.double_star));
    if (!named.is_dict()) {
      return fail(template_error("argument after ** must be a mapping"));
    }
    for (const auto& [key, value] : named.dict().entries) {
      arguments.named.emplace_back(key.str(), value);
    }
  }
  return arguments;
}

Result<Value> Evaluator::evaluate_call(const Expression& node) {
  const Expression& callee = *node.children[0];
  if (callee.kind != ExpressionKind::kAttribute) {
    ESP_ASSIGN_OR_RETURN(const Value function, evaluate(callee));
    ESP_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(node.call));
    return interpreter_.call(function, arguments);
  }
  // A method, without making an object of it first.
  ESP_ASSIGN_OR_RETURN(const Value self, evaluate(*callee.children[0]));
  if (has_method(self, callee.name)) {
    ESP_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(node.call));
    return call_method(interpreter_, self, callee.name, arguments);
  }
  if (self.is_object()) {
    if (auto* loop = dynamic_cast<Loop*>(self.object().get())) {
      if (callee.name == "cycle" || callee.name == "changed") {
        ESP_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(node.call));
        if (callee.name == "cycle") return loop->cycle(arguments);
        return loop->changed(arguments);
      }
    }
  }
  ESP_ASSIGN_OR_RETURN(const Value function, interpreter_.attribute(self, callee.name));
  ESP_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(node.call));
  return interpreter_.call(function, arguments);
}

Result<Value> Evaluator::evaluate_filter(const Expression& node, const Value* block_text) {
  const RenderBudget::Level level(budget_);
  if (budget_.too_deep()) {
    return fail(error(StatusCode::kResourceExhausted, "filters are chained too deeply"));
  }
  Value input;
  if (node.children[0] == nullptr) {
    input = *block_text;
  } else if (node.children[0]->kind == ExpressionKind::kFilter) {
    ESP_ASSIGN_OR_RETURN(input, evaluate_filter(*node.children[0], block_text));
  } else {
    ESP_ASSIGN_OR_RETURN(input, evaluate(*node.children[0]));
  }
  ESP_RETURN_IF_ERROR(budget_.charge(input.is_string() ? 1 + input.string().size() / 64 : 1));
  const Filter filter = find_filter(node.name);
  if (filter == nullptr) {
    return fail(template_error(fmt::format("line {}: no filter named '{}'", node.line, node.name)));
  }
  ESP_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(node.call));
  return filter(interpreter_, input, arguments);
}

Result<Value> Evaluator::evaluate_test(const Expression& node) {
  const Test test = find_test(node.name);
  if (test == nullptr) {
    return fail(template_error(fmt::format("line {}: no test named '{}'", node.line, node.name)));
  }
  ESP_ASSIGN_OR_RETURN(const Value value, evaluate(*node.children[0]));
  ESP_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(node.call));
  ESP_ASSIGN_OR_RETURN(const bool holds, test(interpreter_, value, arguments));
  return Value(holds);
}

}  // namespace espalier::jinja
