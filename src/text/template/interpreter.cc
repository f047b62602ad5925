#include "text/template/interpreter.h"

#include <algorithm>

namespace espalier::jinja {

Interpreter::Interpreter(Value variables, std::time_t now, Limits limits)
    : now_(now), budget_(limits), scope_(make_scope(nullptr)) {
  for (const auto& [key, value] : variables.dict().entries) {
    scope_->names.emplace_back(key.string(), value);
  }
  // The template assigns to a scope of its own, so it cannot change the caller's variables.
  scope_ = make_scope(scope_);
}

// Namespaces are the only values that can refer to themselves (ns.a = ns), so clearing them breaks
// every cycle of shared pointers.
Interpreter::~Interpreter() {
  for (const std::weak_ptr<Namespace>& weak : namespaces_) {
    if (const std::shared_ptr<Namespace> object = weak.lock()) object->clear();
  }
}

Status Interpreter::append(std::string_view text) {
  ESP_RETURN_IF_ERROR(budget_.charge_output(text.size()));
  *out_ += text;
  return {};
}

Value Interpreter::make_namespace(Dict values) {
  auto object = std::make_shared<Namespace>();
  for (auto& [key, value] : values.entries) object->set(key.str(), value);
  namespaces_.push_back(object);
  return Value(std::shared_ptr<Object>(std::move(object)));
}

Result<std::string> Interpreter::run(const Block& block) {
  std::string text;
  out_ = &text;
  ESP_ASSIGN_OR_RETURN([[maybe_unused]] const Flow flow, execute_block(block));
  return text;
}

Result<Interpreter::Flow> Interpreter::execute_block(const Block& block) {
  for (const Statement& statement : block) {
    ESP_ASSIGN_OR_RETURN(const Flow flow, execute(statement));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::execute(const Statement& statement) {
  ESP_RETURN_IF_ERROR(budget_.charge(1));
  switch (statement.kind) {
    case StatementKind::kText:
      ESP_RETURN_IF_ERROR(append(statement.text));
      break;
    case StatementKind::kOutput: {
      ESP_ASSIGN_OR_RETURN(const Value value, evaluator_.evaluate(*statement.expression));
      ESP_RETURN_IF_ERROR(append(value.is_string() ? value.string() : value.str()));
      break;
    }
    case StatementKind::kIf:
      return execute_if(statement);
    case StatementKind::kFor:
      return execute_for(statement);
    case StatementKind::kSet: {
      ESP_ASSIGN_OR_RETURN(const Value value, evaluator_.evaluate(*statement.expression));
      ESP_RETURN_IF_ERROR(assign(*statement.target, value));
      break;
    }
    case StatementKind::kSetBlock:
      ESP_RETURN_IF_ERROR(execute_set_block(statement));
      break;
    case StatementKind::kMacro:
      scope_->set(statement.text,
                  Value(std::shared_ptr<Object>(std::make_shared<Macro>(statement, scope_))));
      break;
    case StatementKind::kCallBlock:
      ESP_RETURN_IF_ERROR(execute_call_block(statement));
      break;
    case StatementKind::kFilter:
      ESP_RETURN_IF_ERROR(execute_filter(statement));
      break;
    case StatementKind::kScope:
      return execute_scope(statement);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::execute_if(const Statement& statement) {
  const Statement* branch = &statement;
  for (;;) {
    ESP_ASSIGN_OR_RETURN(const Value condition, evaluator_.evaluate(*branch->expression));
    if (condition.truthy()) return execute_block(branch->body);
    const Block& otherwise = branch->otherwise;
    if (otherwise.size() != 1 || otherwise[0].kind != StatementKind::kIf) {
      return execute_block(otherwise);
    }
    branch = &otherwise[0];  // an elif
  }
}

Result<Interpreter::Flow> Interpreter::execute_for(const Statement& statement) {
  ESP_ASSIGN_OR_RETURN(const Value iterable, evaluator_.evaluate(*statement.expression));
  ESP_RETURN_IF_ERROR(run_loop(statement, iterable, 0));
  return Flow::kNext;
}

// The items for which the loop's condition holds.
Result<std::vector<Value>> Interpreter::loop_items(const Statement& statement,
                                                   const Value& iterable) {
  ESP_ASSIGN_OR_RETURN(std::vector<Value> items, iterate(iterable));
  if (statement.condition == nullptr) return items;
  std::vector<Value> kept;
  const std::shared_ptr<Scope> outer = scope_;
  Status status;
  for (Value& item : items) {
    scope_ = make_scope(outer);
    status = budget_.charge(2);
    if (status.ok()) status = assign(*statement.target, item);
    if (!status.ok()) break;
    const Result<Value> condition = evaluator_.evaluate(*statement.condition);
    if (!condition) {
      status = condition.error();
      break;
    }
    if (condition->truthy()) kept.push_back(std::move(item));
  }
  scope_ = outer;
  ESP_RETURN_IF_ERROR(status);
  return kept;
}

// Each round has a scope of its own, so what the body sets is gone in the next round and behind the
// loop, as in Jinja; only namespaces carry values out. `scope_` is restored on every way out.
Status Interpreter::run_loop(const Statement& statement, const Value& iterable, int depth) {
  const RenderBudget::Level level(budget_);
  if (budget_.too_deep()) return template_error("loops are nested too deeply");
  ESP_ASSIGN_OR_RETURN(const std::vector<Value> items, loop_items(statement, iterable));
  if (items.empty()) {
    ESP_ASSIGN_OR_RETURN([[maybe_unused]] const Flow flow, execute_block(statement.otherwise));
    return {};
  }
  const auto loop = std::make_shared<Loop>(statement, items, depth);
  const std::shared_ptr<Scope> outer = scope_;
  Status status;
  for (size_t i = 0; i < items.size() && status.ok(); ++i) {
    loop->set_index(i);
    status = budget_.charge(2);
    if (!status.ok()) break;
    scope_ = make_scope(outer);
    scope_->names.reserve(4);
    scope_->names.emplace_back("loop", Value(std::shared_ptr<Object>(loop)));
    status = assign(*statement.target, items[i]);
    if (!status.ok()) break;
    const Result<Flow> flow = execute_block(statement.body);
    if (!flow) status = flow.error();
    if (flow && *flow == Flow::kBreak) break;
  }
  scope_ = outer;
  return status;
}

// What a block prints, as text. Output goes to a string of its own meanwhile; output and scope are
// restored whether the block fails or not.
Result<std::string> Interpreter::capture(const Block& block) {
  std::string text;
  std::string* const outer_out = std::exchange(out_, &text);
  const std::shared_ptr<Scope> outer_scope = scope_;
  scope_ = make_scope(outer_scope);
  const Result<Flow> flow = execute_block(block);
  scope_ = outer_scope;
  out_ = outer_out;
  if (!flow) return fail(flow.error());
  ESP_RETURN_IF_ERROR(budget_.charge_bytes(text.size()));
  return text;
}

Status Interpreter::execute_set_block(const Statement& statement) {
  ESP_ASSIGN_OR_RETURN(std::string text, capture(statement.body));
  Value value(std::move(text));
  if (statement.expression != nullptr) {
    ESP_ASSIGN_OR_RETURN(value, evaluator_.evaluate_filter(*statement.expression, &value));
  }
  return assign(*statement.target, value);
}

Status Interpreter::execute_filter(const Statement& statement) {
  ESP_ASSIGN_OR_RETURN(std::string text, capture(statement.body));
  const Value value(std::move(text));
  ESP_ASSIGN_OR_RETURN(const Value filtered,
                       evaluator_.evaluate_filter(*statement.expression, &value));
  return append(filtered.str());
}

// The body of {% call %} becomes the macro `caller` among the arguments of the macro that is
// called.
Status Interpreter::execute_call_block(const Statement& statement) {
  ESP_ASSIGN_OR_RETURN(const Value callee, evaluator_.evaluate(*statement.expression->children[0]));
  ESP_ASSIGN_OR_RETURN(Arguments arguments,
                       evaluator_.evaluate_arguments(statement.expression->call));
  arguments.named.emplace_back(
      "caller", Value(std::shared_ptr<Object>(std::make_shared<Macro>(statement, scope_))));
  ESP_ASSIGN_OR_RETURN(const Value value, call(callee, arguments));
  return append(value.str());
}

// The expressions of {% with %} are evaluated in the scope outside, so none sees another's target.
Result<Interpreter::Flow> Interpreter::execute_scope(const Statement& statement) {
  auto scope = make_scope(scope_);
  for (const auto& [name, expression] : statement.with) {
    ESP_ASSIGN_OR_RETURN(Value value, evaluator_.evaluate(*expression));
    scope->set(name, std::move(value));
  }
  const std::shared_ptr<Scope> outer = std::exchange(scope_, scope);
  Result<Flow> flow = execute_block(statement.body);
  scope_ = outer;
  return flow;
}

Status Interpreter::assign(const Expression& target, const Value& value) {
  if (target.kind == ExpressionKind::kName) {
    scope_->set(target.name, value);
    return {};
  }
  if (target.kind == ExpressionKind::kAttribute) {
    ESP_ASSIGN_OR_RETURN(const Value object, evaluator_.evaluate(*target.children[0]));
    auto* space = object.is_object() ? dynamic_cast<Namespace*>(object.object().get()) : nullptr;
    if (space == nullptr) {
      return template_error("cannot assign attribute on non-namespace object");
    }
    space->set(target.name, value);
    return {};
  }
  ESP_ASSIGN_OR_RETURN(const std::vector<Value> items, iterate(value));
  if (items.size() != target.children.size()) {
    return template_error(
        fmt::format("{} values to unpack (expected {}, got {})",
                    items.size() < target.children.size() ? "not enough" : "too many",
                    target.children.size(), items.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    ESP_RETURN_IF_ERROR(assign(*target.children[i], items[i]));
  }
  return {};
}

// As Jinja binds them: positional arguments first, then named ones, then defaults, which may use
// parameters before them; what is left over is in `varargs` and `kwargs`, and a parameter without a
// value is undefined rather than an error.
Status Interpreter::bind_parameters(const Statement& macro, const Arguments& arguments,
                                    Scope& own) {
  const auto is_parameter = [&](std::string_view name) {
    return std::any_of(macro.parameters.begin(), macro.parameters.end(),
                       [&](const Parameter& parameter) { return parameter.name == name; });
  };
  std::vector<Value> rest;
  for (size_t i = macro.parameters.size(); i < arguments.positional.size(); ++i) {
    rest.push_back(arguments.positional[i]);
  }
  Dict other_named;
  for (const auto& [name, value] : arguments.named) {
    if (is_parameter(name) || name == "caller") {
      own.set(name, value);
    } else {
      other_named.set(Value(name), value);
    }
  }
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const bool named = own.has_own(parameter.name);
    if (i < arguments.positional.size()) {
      if (named) {
        return template_error(fmt::format("macro '{}' got two values for the argument '{}'",
                                          macro.text, parameter.name));
      }
      own.set(parameter.name, arguments.positional[i]);
    } else if (!named && parameter.otherwise != nullptr) {
      ESP_ASSIGN_OR_RETURN(Value value, evaluator_.evaluate(*parameter.otherwise));
      own.set(parameter.name, std::move(value));
    } else if (!named) {
      own.set(parameter.name,
              Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name)));
    }
  }
  own.set("varargs", Value::tuple(std::move(rest)));
  own.set("kwargs", Value(std::move(other_named)));
  return {};
}

// A macro sees the scope in which it was defined, not that of its caller; its value is what it
// prints.
Result<Value> Interpreter::call_macro(const Statement& macro, const std::shared_ptr<Scope>& scope,
                                      const Arguments& arguments) {
  const RenderBudget::Level level(budget_);
  if (budget_.too_deep()) {
    return fail(error(StatusCode::kResourceExhausted, "macros call each other too deeply"));
  }
  const std::shared_ptr<Scope> own = make_scope(scope);
  const std::shared_ptr<Scope> outer = std::exchange(scope_, own);
  std::string text;
  std::string* const outer_out = std::exchange(out_, &text);
  Status status = bind_parameters(macro, arguments, *own);
  if (status.ok()) {
    if (const Result<Flow> flow = execute_block(macro.body); !flow) status = flow.error();
  }
  scope_ = outer;
  out_ = outer_out;
  ESP_RETURN_IF_ERROR(status);
  ESP_RETURN_IF_ERROR(budget_.charge_bytes(text.size()));
  return Value(std::move(text));
}

Result<Value> Interpreter::call_loop(const Statement& loop, const Value& iterable, int depth) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  const Status status = run_loop(loop, iterable, depth);
  out_ = outer;
  ESP_RETURN_IF_ERROR(status);
  return Value(std::move(text));
}

Result<Value> Interpreter::call(const Value& callee, const Arguments& arguments) {
  if (callee.is_undefined()) return fail(template_error(callee.why_undefined()));
  if (!callee.is_object()) {
    return fail(template_error(fmt::format("'{}' object is not callable", callee.type_name())));
  }
  const std::shared_ptr<Object> object = callee.object();  // kept alive while it runs
  return object->call(*this, arguments);
}

}  // namespace espalier::jinja
