// Evaluates the expressions of a template. interpreter.h executes the statements around them.
#pragma once

#include "text/template/ast.h"
#include "text/template/value.h"

namespace espalier::jinja {

class Interpreter;
class RenderBudget;

// Evaluates the nodes of a syntax tree as Python would. Each node costs a step of the budget and a
// level of depth. Calls, attributes and loops over values go through the interpreter, which
// filters, tests and methods get too. Not thread-safe; part of one render, whose interpreter and
// budget outlive it.
class Evaluator {
 public:
  Evaluator(Interpreter& interpreter, RenderBudget& budget)
      : interpreter_(interpreter), budget_(budget) {}

  Result<Value> evaluate(const Expression& expression);
  // A kFilter chain. `block_text`: its input where its innermost filter has no child.
  Result<Value> evaluate_filter(const Expression& expression, const Value* block_text);
  Result<Arguments> evaluate_arguments(const Call& call);

 private:
  Result<Value> evaluate_node(const Expression& node);
  Result<Value> evaluate_name(const Expression& node);
  Result<Value> evaluate_sign(const Expression& node);
  Result<Value> evaluate_list(const Expression& node);
  Result<Value> evaluate_dict(const Expression& node);
  Result<Value> evaluate_compare(const Expression& node);
  Result<Value> evaluate_concatenate(const Expression& node);
  Result<Value> evaluate_conditional(const Expression& node);
  Result<Value> evaluate_item(const Expression& node);
  Result<Value> evaluate_call(const Expression& node);
  Result<Value> evaluate_test(const Expression& node);

  Interpreter& interpreter_;
  RenderBudget& budget_;
};

}  // namespace espalier::jinja
