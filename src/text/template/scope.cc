#include "text/template/scope.h"

#include <algorithm>

#include "text/template/interpreter.h"

namespace espalier::jinja {

bool Scope::has_own(std::string_view name) const {
  return std::any_of(names.begin(), names.end(),
                     [&](const auto& entry) { return entry.first == name; });
}

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

std::shared_ptr<Scope> make_scope(std::shared_ptr<Scope> parent) {
  return std::make_shared<Scope>(Scope{std::move(parent), {}});
}

std::optional<Value> Namespace::attribute(std::string_view name) const {
  const Value* value = values_.find(name);
  return value != nullptr ? std::optional(*value) : std::nullopt;
}

void Namespace::set(std::string_view name, Value value) {
  values_.set(Value(name), std::move(value));
}

std::optional<Value> Macro::attribute(std::string_view name) const {
  if (name == "name") return Value(statement_.text);
  return std::nullopt;
}

Result<Value> Macro::call(Interpreter& interpreter, const Arguments& arguments) {
  const std::shared_ptr<Scope> scope = scope_.lock();
  if (scope == nullptr) {
    return fail(template_error("a macro is called outside of the scope that defines it"));
  }
  return interpreter.call_macro(statement_, scope, arguments);
}

std::optional<Value> Loop::attribute(std::string_view name) const {
  const size_t count = items_.size();
  if (name == "index") return Value(index_ + 1);
  if (name == "index0") return Value(index_);
  if (name == "revindex") return Value(count - index_);
  if (name == "revindex0") return Value(count - index_ - 1);
  if (name == "first") return Value(index_ == 0);
  if (name == "last") return Value(index_ + 1 == count);
  if (name == "length") return Value(count);
  if (name == "depth") return Value(depth_ + 1);
  if (name == "depth0") return Value(depth_);
  if (name == "previtem") {
    return index_ > 0 ? items_[index_ - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index_ + 1 < count ? items_[index_ + 1] : Value::undefined("there is no next item");
  }
  return std::nullopt;
}

// loop(children), in a recursive loop.
Result<Value> Loop::call(Interpreter& interpreter, const Arguments& arguments) {
  if (!statement_.recursive || arguments.positional.size() != 1) {
    return fail(template_error("the loop is not marked recursive, or not given one iterable"));
  }
  return interpreter.call_loop(statement_, arguments.positional[0], depth_ + 1);
}

Result<Value> Loop::cycle(const Arguments& arguments) const {
  if (arguments.positional.empty()) return fail(template_error("no items for cycling given"));
  return arguments.positional[index_ % arguments.positional.size()];
}

Value Loop::changed(const Arguments& arguments) {
  Value values = Value::tuple(arguments.positional);
  const bool is_changed = !last_ || !equal(*last_, values);
  last_ = std::move(values);
  return is_changed;
}

}  // namespace espalier::jinja
