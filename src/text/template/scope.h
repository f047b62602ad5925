// The variables of a render, as levels of names, and the objects that refer to them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/template/ast.h"
#include "text/template/value.h"

namespace espalier::jinja {

// A level of names. The levels that run in it keep it alive; a macro refers to its own scope
// weakly, because the scope holds the macro.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string, Value>> names;

  bool has_own(std::string_view name) const;       // in this level
  const Value* find(std::string_view name) const;  // in this level or an outer one, or null
  void set(std::string_view name, Value value);    // in this level
};
std::shared_ptr<Scope> make_scope(std::shared_ptr<Scope> parent);

// namespace(): the only object that a template can change.
class Namespace final : public Object {
 public:
  std::string type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(std::string_view name) const override;
  void set(std::string_view name, Value value);
  void clear() { values_.entries.clear(); }

 private:
  Dict values_;
};

// A macro, or the body of a call block (`caller`), with the scope that defines it. The syntax tree
// outlives it.
class Macro final : public Object {
 public:
  Macro(const Statement& statement, const std::shared_ptr<Scope>& scope)
      : statement_(statement), scope_(scope) {}
  std::string type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  std::optional<Value> attribute(std::string_view name) const override;
  Result<Value> call(Interpreter& interpreter, const Arguments& arguments) override;

 private:
  const Statement& statement_;
  const std::weak_ptr<Scope> scope_;
};

// The variable `loop`. The syntax tree and the items outlive it.
class Loop final : public Object {
 public:
  // `depth`: recursive loops around this one.
  Loop(const Statement& statement, const std::vector<Value>& items, int depth)
      : statement_(statement), items_(items), depth_(depth) {}
  void set_index(size_t index) { index_ = index; }

  std::string type_name() const override { return "LoopContext"; }
  bool callable() const override { return statement_.recursive; }
  std::optional<Value> attribute(std::string_view name) const override;
  Result<Value> call(Interpreter& interpreter, const Arguments& arguments) override;
  Result<Value> cycle(const Arguments& arguments) const;
  Value changed(const Arguments& arguments);

 private:
  const Statement& statement_;
  const std::vector<Value>& items_;
  const int depth_;
  size_t index_ = 0;
  std::optional<Value> last_;  // the arguments of the last changed()
};

}  // namespace espalier::jinja
