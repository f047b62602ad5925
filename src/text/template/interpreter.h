// Executes a template's syntax tree as Python's jinja2 does in the environment of Hugging Face's
// apply_chat_template: an immutable sandbox with its own tojson, strftime_now and raise_exception.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/template/ast.h"
#include "text/template/evaluator.h"
#include "text/template/render_budget.h"
#include "text/template/scope.h"
#include "text/template/value.h"

namespace espalier::jinja {

// One render: executes statements, and leaves their expressions to the evaluator. Not thread-safe;
// the tree outlives it. Filters, tests, functions and methods call back into it.
class Interpreter {
 public:
  Interpreter(Value variables, std::time_t now, Limits limits);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Result<std::string> run(const Block& block);

  // For filters, tests, functions and methods.
  Result<Value> call(const Value& callee, const Arguments& arguments);
  Result<Value> attribute(const Value& object, std::string_view name);  // a.b
  Result<Value> item(const Value& object, const Value& key);            // a[b]
  Result<std::vector<Value>> iterate(const Value& value);
  Status charge(size_t steps) { return budget_.charge(steps); }
  Status charge_bytes(size_t bytes) { return budget_.charge_bytes(bytes); }
  Value make_namespace(Dict values);
  std::time_t now() const { return now_; }

  // For the evaluator, macros and loops.
  const Value* find_variable(std::string_view name) const { return scope_->find(name); }
  // Runs a macro's body in a scope of its own within `scope` and returns its text.
  Result<Value> call_macro(const Statement& macro, const std::shared_ptr<Scope>& scope,
                           const Arguments& arguments);
  // Runs a recursive loop again, over `iterable`, and returns its text.
  Result<Value> call_loop(const Statement& loop, const Value& iterable, int depth);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  Result<Flow> execute_block(const Block& block);
  Result<Flow> execute(const Statement& statement);
  Result<Flow> execute_if(const Statement& statement);
  Result<Flow> execute_for(const Statement& statement);
  Status run_loop(const Statement& statement, const Value& iterable, int depth);
  Result<std::vector<Value>> loop_items(const Statement& statement, const Value& iterable);
  Status execute_set_block(const Statement& statement);
  Status execute_call_block(const Statement& statement);
  Status execute_filter(const Statement& statement);
  Result<Flow> execute_scope(const Statement& statement);
  Status assign(const Expression& target, const Value& value);
  Status append(std::string_view text);
  // Runs a block in a scope of its own and returns its text.
  Result<std::string> capture(const Block& block);
  Status bind_parameters(const Statement& macro, const Arguments& arguments, Scope& own);

  const std::time_t now_;
  RenderBudget budget_;
  Evaluator evaluator_{*this, budget_};
  std::shared_ptr<Scope> scope_;
  std::string* out_ = nullptr;  // the text that statements append to
  // Cleared at the end, because namespaces may hold each other.
  std::vector<std::weak_ptr<Namespace>> namespaces_;
};

// ---- tables that the interpreter looks names up in ----

using Filter = Result<Value> (*)(Interpreter&, const Value&, const Arguments&);
Filter find_filter(std::string_view name);  // null: none of that name
using Test = Result<bool> (*)(Interpreter&, const Value&, const Arguments&);
Test find_test(std::string_view name);
// range, dict, namespace, raise_exception ...
std::optional<Value> find_global(std::string_view name);

// Methods of strings, lists and dictionaries.
bool has_method(const Value& self, std::string_view name);
Result<Value> call_method(Interpreter& interpreter, const Value& self, std::string_view name,
                          const Arguments& arguments);

// ---- markup.cc: strings that are safe HTML ----

std::string escape_html(std::string_view text);
// `value` for use with a safe string: a string that is none is escaped, in tuples and dictionaries
// too.
Value escaped(const Value& value);
// A method of a safe string. Arguments that become part of the result are escaped, and the result
// is safe.
Result<Value> call_markup_method(Interpreter& interpreter, const Value& self, std::string_view name,
                                 const Arguments& arguments);

// ---- generator.cc: results of `map`, `select` and similar filters, which are iterated once ----

Value make_generator(std::vector<Value> items, std::string type_name = "generator");
bool is_generator(const Value& value);
// The remaining items, which are removed from the generator. REQUIRES: is_generator(value).
std::vector<Value> take_generated(const Value& value);

// ---- operations ----

// + - * / // % **
Result<Value> binary_operation(Interpreter& interpreter, std::string_view op, const Value& a,
                               const Value& b);
Result<bool> contains(const Value& container, const Value& item);  // item in container
Result<Value> slice(const Value& value, const Value& start, const Value& stop, const Value& step);
// "%s" % value, as Python formats it.
Result<std::string> percent_format(std::string_view format, const Value& arguments);

// The arguments of a function by its parameters' names, in their order; absent ones are nullopt.
Result<std::vector<std::optional<Value>>> bind(std::string_view function,
                                               const Arguments& arguments,
                                               std::initializer_list<std::string_view> parameters);

// Case by Unicode.
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);

}  // namespace espalier::jinja
