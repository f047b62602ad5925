// The syntax tree of a template. Built by parse_template, read by the interpreter.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/template/value.h"

namespace espalier::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Call {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr star, double_star;  // *args, **kwargs; or null
};

enum class ExpressionKind {
  kConstant,     // value
  kName,         // name
  kList,         // children
  kTuple,        // children
  kDict,         // children: key, value, key, value ...
  kNegate,       // children[0]
  kPositive,     // children[0]
  kNot,          // children[0]
  kAnd,          // children[0], [1]
  kOr,           // children[0], [1]
  kBinary,       // children[0] name children[1]: + - * / // % **
  kConcatenate,  // children, by ~
  kCompare,      // children[0], then operators[i] children[i + 1]
  kConditional,  // children[0] if children[1] else children[2] (which may be missing)
  kAttribute,    // children[0].name
  kItem,         // children[0][children[1]]
  kSlice,        // [children[0] : children[1] : children[2]], each may be null; in a kItem
  kCall,         // children[0](call)
  kFilter,       // children[0] | name(call); no child: the text of a block
  kTest,         // children[0] is name(call)
};

struct Expression {
  ExpressionKind kind;
  int line = 1;
  std::string name;
  Value value;
  std::vector<ExpressionPtr> children;
  std::vector<std::string> operators;
  Call call;
};

struct Statement;
using Block = std::vector<Statement>;

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;  // null: none
};

enum class StatementKind {
  kText,       // text
  kOutput,     // expression
  kIf,         // condition: expression; body; otherwise: else
  kFor,        // target in expression, if condition; body; otherwise
  kSet,        // target = expression
  kSetBlock,   // target = body, through the filters of expression (null: none)
  kMacro,      // text: name; parameters; body
  kCallBlock,  // expression: a kCall; parameters of caller; body
  kFilter,     // expression: kFilter chain over the body
  kScope,      // body, in a scope of its own, where targets are set first (with, generation)
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind;
  int line = 1;
  std::string text;
  ExpressionPtr target;  // a name, an attribute of a name, or a tuple of names
  ExpressionPtr expression;
  ExpressionPtr condition;
  bool recursive = false;
  std::vector<Parameter> parameters;
  std::vector<std::pair<std::string, ExpressionPtr>> with;  // kScope
  Block body, otherwise;
};

// kInvalidArgument names the line and what is not understood.
Result<Block> parse_template(std::string_view source);

}  // namespace espalier::jinja
