#include "text/template/interpreter.h"

#include <algorithm>

namespace espalier::jinja {

// ---- scopes and objects ----

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [key, value] : scope->names) {
      if (key == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [key, old] : names) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

std::optional<Value> Namespace::attribute(std::string_view name) const {
  const Value* value = values_.find(name);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

void Namespace::set(std::string_view name, Value value) {
  values_.set(Value(name), std::move(value));
}

class Interpreter::Macro final : public Object {
 public:
  Macro(const Statement& statement, const std::shared_ptr<Scope>& scope)
      : statement_(statement), scope_(scope) {}
  std::string type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  std::optional<Value> attribute(std::string_view name) const override {
    if (name == "name") return Value(statement_.text);
    return std::nullopt;
  }
  Result<Value> call(Interpreter& interpreter, const Arguments& arguments) override {
    const std::shared_ptr<Scope> scope = scope_.lock();
    if (scope == nullptr) {
      return fail(template_error("a macro is called outside of the scope that defines it"));
    }
    return interpreter.call_macro(statement_, scope, arguments);
  }

 private:
  const Statement& statement_;
  const std::weak_ptr<Scope> scope_;
};

// The variable `loop`.
class Interpreter::Loop final : public Object {
 public:
  Loop(const Statement& statement, const std::vector<Value>& items, int depth)
      : statement_(statement), items_(items), depth_(depth) {}
  std::string type_name() const override { return "LoopContext"; }
  bool callable() const override { return statement_.recursive; }
  size_t index = 0;

  std::optional<Value> attribute(std::string_view name) const override {
    const size_t count = items_.size();
    if (name == "index") return Value(index + 1);
    if (name == "index0") return Value(index);
    if (name == "revindex") return Value(count - index);
    if (name == "revindex0") return Value(count - index - 1);
    if (name == "first") return Value(index == 0);
    if (name == "last") return Value(index + 1 == count);
    if (name == "length") return Value(count);
    if (name == "depth") return Value(depth_ + 1);
    if (name == "depth0") return Value(depth_);
    if (name == "previtem") {
      return index > 0 ? items_[index - 1] : Value::undefined("there is no previous item");
    }
    if (name == "nextitem") {
      return index + 1 < count ? items_[index + 1] : Value::undefined("there is no next item");
    }
    return std::nullopt;
  }

  // loop(children), in a recursive loop.
  Result<Value> call(Interpreter& interpreter, const Arguments& arguments) override {
    if (!statement_.recursive || arguments.positional.size() != 1) {
      return fail(template_error("the loop is not marked recursive, or not given one iterable"));
    }
    std::string text;
    std::string* const outer = std::exchange(interpreter.out_, &text);
    const Status status = interpreter.run_loop(statement_, arguments.positional[0], depth_ + 1);
    interpreter.out_ = outer;
    ESP_RETURN_IF_ERROR(status);
    return Value(std::move(text));
  }

  Result<Value> cycle(const Arguments& arguments) const {
    if (arguments.positional.empty()) return fail(template_error("no items for cycling given"));
    return arguments.positional[index % arguments.positional.size()];
  }
  Value changed(const Arguments& arguments) {
    Value values = Value::tuple(arguments.positional);
    const bool is_changed = !last_ || !equal(*last_, values);
    last_ = std::move(values);
    return is_changed;
  }

 private:
  const Statement& statement_;
  const std::vector<Value>& items_;
  const int depth_;
  std::optional<Value> last_;
};

// Counts evaluations within each other.
class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(Interpreter& interpreter) : depth_(interpreter.depth_) { ++depth_; }
  ~DepthGuard() { --depth_; }

 private:
  int& depth_;
};

// ---- running ----

Interpreter::Interpreter(Value variables, std::time_t now, Limits limits)
    : limits_(limits),
      now_(now),
      deadline_(std::chrono::steady_clock::now() +
                std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                    std::chrono::duration<double>(limits.seconds_max))),
      scope_(std::make_shared<Scope>()) {
  for (const auto& [key, value] : variables.dict().entries) {
    scope_->names.emplace_back(key.string(), value);
  }
  // Assignments at the top are the template's, not the caller's.
  scope_ = std::make_shared<Scope>(Scope{scope_, {}});
}

Interpreter::~Interpreter() {
  for (const std::weak_ptr<Namespace>& weak : namespaces_) {
    if (const std::shared_ptr<Namespace> object = weak.lock()) object->clear();
  }
}

Status Interpreter::charge(size_t steps) {
  steps_ += static_cast<int64_t>(std::min<size_t>(steps, 1u << 30));
  if (steps_ > limits_.steps_max) {
    return error(StatusCode::kResourceExhausted, "the template takes more than {} steps",
                 limits_.steps_max);
  }
  constexpr int64_t kStepsBetweenLooks = 4096;
  if (steps_ < next_look_) return {};
  next_look_ = steps_ + kStepsBetweenLooks;
  if (std::chrono::steady_clock::now() < deadline_) return {};
  return error(StatusCode::kResourceExhausted, "the template takes more than {} s",
               limits_.seconds_max);
}

Status Interpreter::charge_bytes(size_t bytes) {
  if (bytes > static_cast<size_t>(limits_.output_bytes_max)) {
    return error(StatusCode::kResourceExhausted, "the template makes a text of more than {} bytes",
                 limits_.output_bytes_max);
  }
  return charge(bytes / 64);
}

Status Interpreter::append(std::string_view text) {
  output_bytes_ += static_cast<int64_t>(text.size());
  if (output_bytes_ > limits_.output_bytes_max) {
    return error(StatusCode::kResourceExhausted, "the template makes more than {} bytes",
                 limits_.output_bytes_max);
  }
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
  ESP_RETURN_IF_ERROR(charge(1));
  switch (statement.kind) {
    case StatementKind::kText:
      ESP_RETURN_IF_ERROR(append(statement.text));
      break;
    case StatementKind::kOutput: {
      ESP_ASSIGN_OR_RETURN(const Value value, evaluate(*statement.expression));
      ESP_RETURN_IF_ERROR(append(value.is_string() ? value.string() : value.str()));
      break;
    }
    case StatementKind::kIf:
      return execute_if(statement);
    case StatementKind::kFor:
      return execute_for(statement);
    case StatementKind::kSet: {
      ESP_ASSIGN_OR_RETURN(const Value value, evaluate(*statement.expression));
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
    ESP_ASSIGN_OR_RETURN(const Value condition, evaluate(*branch->expression));
    if (condition.truthy()) return execute_block(branch->body);
    const Block& otherwise = branch->otherwise;
    if (otherwise.size() != 1 || otherwise[0].kind != StatementKind::kIf) {
      return execute_block(otherwise);
    }
    branch = &otherwise[0];  // an elif
  }
}

Result<Interpreter::Flow> Interpreter::execute_for(const Statement& statement) {
  ESP_ASSIGN_OR_RETURN(const Value iterable, evaluate(*statement.expression));
  ESP_RETURN_IF_ERROR(run_loop(statement, iterable, 0));
  return Flow::kNext;
}

// The items that the loop's condition lets through.
Result<std::vector<Value>> Interpreter::loop_items(const Statement& statement,
                                                   const Value& iterable) {
  ESP_ASSIGN_OR_RETURN(std::vector<Value> items, iterate(iterable));
  if (statement.condition == nullptr) return items;
  std::vector<Value> kept;
  const std::shared_ptr<Scope> outer = scope_;
  Status status;
  for (Value& item : items) {
    scope_ = std::make_shared<Scope>(Scope{outer, {}});
    status = charge(2);
    if (status.ok()) status = assign(*statement.target, item);
    if (!status.ok()) break;
    const Result<Value> condition = evaluate(*statement.condition);
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

Status Interpreter::run_loop(const Statement& statement, const Value& iterable, int depth) {
  const DepthGuard guard(*this);
  if (depth_ > limits_.depth_max) return template_error("loops are nested too deeply");
  ESP_ASSIGN_OR_RETURN(const std::vector<Value> items, loop_items(statement, iterable));
  if (items.empty()) {
    ESP_ASSIGN_OR_RETURN([[maybe_unused]] const Flow flow, execute_block(statement.otherwise));
    return {};
  }
  const auto loop = std::make_shared<Loop>(statement, items, depth);
  const std::shared_ptr<Scope> outer = scope_;
  Status status;
  for (size_t i = 0; i < items.size() && status.ok(); ++i) {
    loop->index = i;
    status = charge(2);
    if (!status.ok()) break;
    scope_ = std::make_shared<Scope>(Scope{outer, {}});
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

Result<std::string> Interpreter::capture(const Block& block) {
  std::string text;
  std::string* const outer_out = std::exchange(out_, &text);
  const std::shared_ptr<Scope> outer_scope = scope_;
  scope_ = std::make_shared<Scope>(Scope{outer_scope, {}});
  const Result<Flow> flow = execute_block(block);
  scope_ = outer_scope;
  out_ = outer_out;
  if (!flow) return fail(flow.error());
  ESP_RETURN_IF_ERROR(charge_bytes(text.size()));
  return text;
}

Status Interpreter::execute_set_block(const Statement& statement) {
  ESP_ASSIGN_OR_RETURN(std::string text, capture(statement.body));
  Value value(std::move(text));
  if (statement.expression != nullptr) {
    ESP_ASSIGN_OR_RETURN(value, evaluate_filter(*statement.expression, &value));
  }
  return assign(*statement.target, value);
}

Status Interpreter::execute_filter(const Statement& statement) {
  ESP_ASSIGN_OR_RETURN(std::string text, capture(statement.body));
  const Value value(std::move(text));
  ESP_ASSIGN_OR_RETURN(const Value filtered, evaluate_filter(*statement.expression, &value));
  return append(filtered.str());
}

Status Interpreter::execute_call_block(const Statement& statement) {
  ESP_ASSIGN_OR_RETURN(const Value callee, evaluate(*statement.expression->children[0]));
  ESP_ASSIGN_OR_RETURN(Arguments arguments, evaluate_arguments(statement.expression->call));
  arguments.named.emplace_back(
      "caller", Value(std::shared_ptr<Object>(std::make_shared<Macro>(statement, scope_))));
  ESP_ASSIGN_OR_RETURN(const Value value, call(callee, arguments));
  return append(value.str());
}

Result<Interpreter::Flow> Interpreter::execute_scope(const Statement& statement) {
  auto scope = std::make_shared<Scope>(Scope{scope_, {}});
  for (const auto& [name, expression] : statement.with) {
    ESP_ASSIGN_OR_RETURN(Value value, evaluate(*expression));
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
    ESP_ASSIGN_OR_RETURN(const Value object, evaluate(*target.children[0]));
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

Result<Value> Interpreter::call_macro(const Statement& macro, const std::shared_ptr<Scope>& scope,
                                      const Arguments& arguments) {
  const DepthGuard guard(*this);
  if (depth_ > limits_.depth_max) {
    return fail(error(StatusCode::kResourceExhausted, "macros call each other too deeply"));
  }
  const std::shared_ptr<Scope> outer =
      std::exchange(scope_, std::make_shared<Scope>(Scope{scope, {}}));
  const std::shared_ptr<Scope> own = scope_;
  std::string text;
  std::string* const outer_out = std::exchange(out_, &text);
  const Status status = [&]() -> Status {
    std::vector<Value> rest;
    for (size_t i = macro.parameters.size(); i < arguments.positional.size(); ++i) {
      rest.push_back(arguments.positional[i]);
    }
    Dict other_named;
    for (const auto& [name, value] : arguments.named) {
      const bool is_parameter =
          std::any_of(macro.parameters.begin(), macro.parameters.end(),
                      [&, wanted = std::string_view(name)](const Parameter& parameter) {
                        return parameter.name == wanted;
                      });
      if (is_parameter || name == "caller") {
        own->set(name, value);
      } else {
        other_named.set(Value(name), value);
      }
    }
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const Parameter& parameter = macro.parameters[i];
      const bool named = std::any_of(own->names.begin(), own->names.end(), [&](const auto& entry) {
        return entry.first == parameter.name;
      });
      if (i < arguments.positional.size()) {
        if (named) {
          return template_error(fmt::format("macro '{}' got two values for the argument '{}'",
                                            macro.text, parameter.name));
        }
        own->set(parameter.name, arguments.positional[i]);
      } else if (!named && parameter.otherwise != nullptr) {
        ESP_ASSIGN_OR_RETURN(Value value, evaluate(*parameter.otherwise));
        own->set(parameter.name, std::move(value));
      } else if (!named) {
        own->set(parameter.name,
                 Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name)));
      }
    }
    own->set("varargs", Value::tuple(std::move(rest)));
    own->set("kwargs", Value(std::move(other_named)));
    ESP_ASSIGN_OR_RETURN([[maybe_unused]] const Flow flow, execute_block(macro.body));
    return {};
  }();
  scope_ = outer;
  out_ = outer_out;
  ESP_RETURN_IF_ERROR(status);
  ESP_RETURN_IF_ERROR(charge_bytes(text.size()));
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

// ---- expressions ----

Result<Value> Interpreter::evaluate(const Expression& expression) {
  ESP_RETURN_IF_ERROR(charge(1));
  const DepthGuard guard(*this);
  if (depth_ > limits_.depth_max) {
    return fail(error(StatusCode::kResourceExhausted,
                      "the template's expressions or macros are nested too deeply"));
  }
  return evaluate_node(expression);
}

Result<Value> Interpreter::evaluate_node(const Expression& node) {
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
    case ExpressionKind::kPositive: {
      ESP_ASSIGN_OR_RETURN(Value operand, evaluate(*node.children[0]));
      if (operand.is_undefined()) return fail(template_error(operand.why_undefined()));
      if (!operand.is_number()) {
        return fail(
            template_error(fmt::format("bad operand type for unary -: '{}'", operand.type_name())));
      }
      if (node.kind == ExpressionKind::kPositive) return operand;
      return binary_operation(*this, "-", Value(0), operand);
    }
    case ExpressionKind::kNot: {
      ESP_ASSIGN_OR_RETURN(const Value operand, evaluate(*node.children[0]));
      return Value(!operand.truthy());
    }
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: {
      ESP_ASSIGN_OR_RETURN(Value left, evaluate(*node.children[0]));
      if (left.truthy() == (node.kind == ExpressionKind::kOr)) return left;
      return evaluate(*node.children[1]);
    }
    case ExpressionKind::kBinary: {
      ESP_ASSIGN_OR_RETURN(const Value left, evaluate(*node.children[0]));
      ESP_ASSIGN_OR_RETURN(const Value right, evaluate(*node.children[1]));
      return binary_operation(*this, node.name, left, right);
    }
    case ExpressionKind::kConcatenate:
      return evaluate_concatenate(node);
    case ExpressionKind::kCompare:
      return evaluate_compare(node);
    case ExpressionKind::kConditional: {
      ESP_ASSIGN_OR_RETURN(const Value condition, evaluate(*node.children[1]));
      if (condition.truthy()) return evaluate(*node.children[0]);
      if (node.children.size() > 2) return evaluate(*node.children[2]);
      return Value::undefined(
          "the inline if-expression evaluated to false and no else section was defined");
    }
    case ExpressionKind::kAttribute: {
      ESP_ASSIGN_OR_RETURN(const Value object, evaluate(*node.children[0]));
      return attribute(object, node.name);
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

Result<Value> Interpreter::evaluate_name(const Expression& node) {
  if (const Value* value = scope_->find(node.name)) return *value;
  if (std::optional<Value> global = find_global(node.name)) return *std::move(global);
  return Value::undefined(fmt::format("'{}' is undefined", node.name));
}

Result<Value> Interpreter::evaluate_list(const Expression& node) {
  std::vector<Value> items;
  items.reserve(node.children.size());
  for (const ExpressionPtr& child : node.children) {
    ESP_ASSIGN_OR_RETURN(Value item, evaluate(*child));
    items.push_back(std::move(item));
  }
  return node.kind == ExpressionKind::kTuple ? Value::tuple(std::move(items))
                                             : Value(std::move(items));
}

Result<Value> Interpreter::evaluate_dict(const Expression& node) {
  Dict dict;
  for (size_t i = 0; i < node.children.size(); i += 2) {
    ESP_ASSIGN_OR_RETURN(Value key, evaluate(*node.children[i]));
    ESP_ASSIGN_OR_RETURN(Value value, evaluate(*node.children[i + 1]));
    if (key.is_dict() || (key.is_list() && !key.list().is_tuple)) {
      return fail(template_error(fmt::format("unhashable type: '{}'", key.type_name())));
    }
    ESP_RETURN_IF_ERROR(charge(dict.entries.size() / 16));
    dict.set(std::move(key), std::move(value));
  }
  return Value(std::move(dict));
}

Result<Value> Interpreter::evaluate_concatenate(const Expression& node) {
  std::string text;
  for (const ExpressionPtr& child : node.children) {
    ESP_ASSIGN_OR_RETURN(const Value value, evaluate(*child));
    const std::string piece = value.str();
    ESP_RETURN_IF_ERROR(charge_bytes(text.size() + piece.size()));
    text += piece;
  }
  return Value(std::move(text));
}

Result<Value> Interpreter::evaluate_compare(const Expression& node) {
  ESP_ASSIGN_OR_RETURN(Value left, evaluate(*node.children[0]));
  for (size_t i = 0; i < node.operators.size(); ++i) {
    const std::string& op = node.operators[i];
    ESP_ASSIGN_OR_RETURN(Value right, evaluate(*node.children[i + 1]));
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      if (right.is_string()) ESP_RETURN_IF_ERROR(charge(right.string().size() / 64));
      if (right.is_list()) ESP_RETURN_IF_ERROR(charge(right.items().size() / 8));
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

Result<Value> Interpreter::evaluate_item(const Expression& node) {
  ESP_ASSIGN_OR_RETURN(const Value object, evaluate(*node.children[0]));
  const Expression& index = *node.children[1];
  if (index.kind != ExpressionKind::kSlice) {
    ESP_ASSIGN_OR_RETURN(const Value key, evaluate(index));
    return item(object, key);
  }
  Value parts[3];
  for (size_t i = 0; i < 3; ++i) {
    if (index.children[i] == nullptr) continue;
    ESP_ASSIGN_OR_RETURN(parts[i], evaluate(*index.children[i]));
  }
  if (object.is_string()) ESP_RETURN_IF_ERROR(charge_bytes(object.string().size()));
  if (object.is_list()) ESP_RETURN_IF_ERROR(charge(object.items().size() / 8));
  return slice(object, parts[0], parts[1], parts[2]);
}

Result<Arguments> Interpreter::evaluate_arguments(const Call& call) {
  Arguments arguments;
  for (const ExpressionPtr& expression : call.positional) {
    ESP_ASSIGN_OR_RETURN(Value value, evaluate(*expression));
    arguments.positional.push_back(std::move(value));
  }
  if (call.star != nullptr) {
    ESP_ASSIGN_OR_RETURN(const Value star, evaluate(*call.star));
    ESP_ASSIGN_OR_RETURN(std::vector<Value> items, iterate(star));
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

Result<Value> Interpreter::evaluate_call(const Expression& node) {
  const Expression& callee = *node.children[0];
  if (callee.kind != ExpressionKind::kAttribute) {
    ESP_ASSIGN_OR_RETURN(const Value function, evaluate(callee));
    ESP_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(node.call));
    return call(function, arguments);
  }
  // A method, without making an object of it first.
  ESP_ASSIGN_OR_RETURN(const Value self, evaluate(*callee.children[0]));
  if (has_method(self, callee.name)) {
    ESP_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(node.call));
    return call_method(*this, self, callee.name, arguments);
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
  ESP_ASSIGN_OR_RETURN(const Value function, attribute(self, callee.name));
  ESP_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(node.call));
  return call(function, arguments);
}

Result<Value> Interpreter::evaluate_filter(const Expression& node, const Value* block_text) {
  const DepthGuard guard(*this);
  if (depth_ > limits_.depth_max) {
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
  ESP_RETURN_IF_ERROR(charge(input.is_string() ? 1 + input.string().size() / 64 : 1));
  const Filter filter = find_filter(node.name);
  if (filter == nullptr) {
    return fail(template_error(fmt::format("line {}: no filter named '{}'", node.line, node.name)));
  }
  ESP_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(node.call));
  return filter(*this, input, arguments);
}

Result<Value> Interpreter::evaluate_test(const Expression& node) {
  const Test test = find_test(node.name);
  if (test == nullptr) {
    return fail(template_error(fmt::format("line {}: no test named '{}'", node.line, node.name)));
  }
  ESP_ASSIGN_OR_RETURN(const Value value, evaluate(*node.children[0]));
  ESP_ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(node.call));
  ESP_ASSIGN_OR_RETURN(const bool holds, test(*this, value, arguments));
  return Value(holds);
}

}  // namespace espalier::jinja
