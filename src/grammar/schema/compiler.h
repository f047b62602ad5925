// Compiles a JSON Schema to a grammar. A value must satisfy a conjunction of subschemas; each
// distinct conjunction becomes one rule, so references may recurse and what is shared is compiled
// once.
//
// Keywords become grammar where that stays small. The others (oneOf of overlapping objects,
// unevaluated* beside what evaluates, ...) are left out of a rule that is then larger than the
// schema, and the rule gets a check of the value that it matched.
#pragma once

#include <boost/json.hpp>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"
#include "grammar/schema/constraints.h"
#include "grammar/schema/elements.h"
#include "grammar/schema/json_schema.h"
#include "grammar/schema/json_syntax.h"
#include "grammar/schema/patterns.h"
#include "grammar/schema/settler.h"
#include "grammar/schema/value_checker.h"

namespace espalier::grammar {

// Not thread-safe. Borrows the Ir, the options and the limits; shares the checker with the rules'
// checks.
class SchemaCompiler {
 public:
  SchemaCompiler(Ir& ir, std::shared_ptr<SchemaChecker> checker, Whitespace whitespace,
                 const SchemaOptions& options, const GrammarLimits& limits);

  // Returns every JSON text (properties in declared order) that the document allows. kUnimplemented
  // names a keyword that is not supported, with its JSON pointer.
  Result<ExprId> compile();

  // What follows is for the parts of the compiler.

  // Returns the texts of the values that satisfy all elements, as a rule.
  Result<ExprId> compile(Conjunction elements);
  // The same without counters, so that the result may be intersected with others.
  Result<ExprId> compile_uncounted(Conjunction elements);
  // Returns false only where it is plain that no value satisfies all elements: by types, constants,
  // or a required property that cannot satisfy both.
  Result<bool> may_match(Conjunction elements, int depth);
  // Returns whether a value satisfies all elements, by the validator.
  Result<bool> holds(const boost::json::value& value, const Conjunction& elements);
  // Returns the texts of an item that differ from the array's earlier items. Numbers, which have no
  // certain end, are not compared.
  Result<ExprId> distinct_item(ExprId item);
  // Returns an error, and has the schema compiled again, until all commas are made as for values
  // that a check may refuse at their end: see comma().
  Status judge_items();
  // Operations on regular languages inline rules, which must end: an error where a rule may lead to
  // itself or to one under construction, or has a check or a counter.
  Status require_regular(const Element& element, std::string_view key, ExprId expr) const;
  // A comma between items or properties. Where the end of a value is checked it may be refused,
  // so white space before the comma must not leave the end as the only continuation.
  ExprId comma();

  bool approximating() const { return approximating_; }
  bool counters_allowed() const { return counters_allowed_; }
  void require_check() { needs_check_ = true; }  // of the rule under construction
  bool spend_formula_step();                     // false: formulas have taken too many steps in all

  Ir& ir() { return ir_; }
  JsonSyntax& syntax() { return syntax_; }
  SchemaDocument& document() { return document_; }
  const SchemaOptions& options() const { return options_; }
  const GrammarLimits& limits() const { return limits_; }
  PatternCompiler& patterns() { return patterns_; }
  ConjunctionSettler& settler() { return settler_; }

 private:
  Result<bool> settle(Conjunction& elements);
  Result<ExprId> lower(const Conjunction& elements);
  Result<ExprId> lower_in_any_way(const Conjunction& given, const Conjunction& settled,
                                  RuleId rule);
  Result<ExprId> lower_settling(Conjunction elements);
  Status too_large(const Element& element) const;
  // With what is not practical left out; adds a check to `rule`.
  Result<ExprId> approximate(const Conjunction& elements, RuleId rule);
  // With objects and arrays as states of a formula (formula_compiler.h): exact, where that is not
  // too large.
  Result<ExprId> by_formula(const Conjunction& elements);
  Status add_check(const Conjunction& elements, RuleId rule);
  Result<ExprId> branch_any_of(const Conjunction& elements, size_t index);
  Result<ExprId> branch_one_of(const Conjunction& elements, size_t index);

  Ir& ir_;
  const std::shared_ptr<SchemaChecker> checker_;  // shared with the rules' checks
  SchemaDocument& document_;
  JsonSyntax syntax_;
  const SchemaOptions& options_;
  const GrammarLimits& limits_;
  PatternCompiler patterns_;
  ConjunctionSettler settler_;
  int depth_ = 0;
  // Whether items are compared or counted, so that any value may be refused at its end.
  // kStartAgain: found after rules were made.
  enum class JudgedItems : uint8_t { kNo, kStartAgain, kYes } judged_items_ = JudgedItems::kNo;
  bool approximate_early_ = false;  // the exact attempt had too many rules
  bool over_budget_ = false;        // the exact attempt has too many rules
  bool approximating_ = false;      // leave out what is not practical, and require a check
  bool counters_allowed_ = true;    // false: the result is intersected with other languages
  bool exact_only_ = false;         // the result has no certain end, so it cannot be checked
  bool needs_check_ = false;        // something was left out of the rule under construction
  int formulas_begun_ = 0, formula_steps_ = 0;  // by_formula()
  std::map<Conjunction, RuleId> rules_;
  std::set<RuleId> open_rules_;  // under construction
};

// What the parts of the compiler share: borrowed from it.
class CompilerPart {
 public:
  explicit CompilerPart(SchemaCompiler& compiler)
      : compiler_(compiler),
        ir_(compiler.ir()),
        syntax_(compiler.syntax()),
        document_(compiler.document()),
        options_(compiler.options()),
        limits_(compiler.limits()) {}

 protected:
  SchemaCompiler& compiler_;
  Ir& ir_;
  JsonSyntax& syntax_;
  SchemaDocument& document_;
  const SchemaOptions& options_;
  const GrammarLimits& limits_;
};

}  // namespace espalier::grammar
