// JSON Schema to grammar. What must hold of one value is a conjunction of subschemas; each distinct
// conjunction becomes one rule, so references may recurse and what is shared is compiled once.
#pragma once

#include <boost/json.hpp>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/ir.h"
#include "grammar/schema/document.h"
#include "grammar/schema/json_schema.h"
#include "grammar/schema/json_syntax.h"
#include "grammar/schema/number_ranges.h"
#include "grammar/schema/validator.h"

namespace espalier::grammar {

// Judges values by conjunctions of schemas of a document that it owns. Lives with the networks made
// of the schema.
class SchemaChecker final : public ValueChecker {
 public:
  struct Part {
    const boost::json::value* schema;
    ScopeId scope;
  };
  explicit SchemaChecker(std::unique_ptr<SchemaDocument> document)
      : document_(std::move(document)), validator_(*document_) {}

  SchemaDocument& document() { return *document_; }
  SchemaValidator& validator() { return validator_; }

  uint32_t add(std::vector<Part> all);  // the number of a check: a value satisfies all of them
  bool holds(uint32_t check, std::string_view value) override;

 private:
  const std::unique_ptr<SchemaDocument> document_;
  SchemaValidator validator_;
  std::vector<std::vector<Part>> checks_;
};

// What keywords ask for is written as grammar where that stays small. What does not (oneOf of
// overlapping objects, uniqueItems, ...) is left out of a rule that then is larger than the schema,
// and the rule is given a check of the value that it matched.
class SchemaCompiler {
 public:
  // All borrowed for the call of compile().
  SchemaCompiler(Ir& ir, std::shared_ptr<SchemaChecker> checker, Whitespace whitespace,
                 const SchemaOptions& options, const GrammarLimits& limits)
      : ir_(ir),
        checker_(std::move(checker)),
        document_(checker_->document()),
        syntax_(ir, whitespace),
        options_(options),
        limits_(limits) {}

  // An expression of every JSON text (properties in declared order) that the document allows.
  // kUnimplemented names the keyword that is not supported, with its JSON pointer.
  Result<ExprId> compile();

 private:
  // Keywords of an element that are already accounted for elsewhere in its conjunction.
  enum Done : uint8_t {
    kDoneRef = 1,
    kDoneAllOf = 2,
    kDoneAnyOf = 4,
    kDoneOneOf = 8,
    kDoneNot = 16,
    kDoneIf = 32,
    kDoneDependent = 64,
    kDoneEnum = 128,
  };
  struct Element {
    const boost::json::value* schema = nullptr;
    ScopeId scope = kNoScope;
    uint8_t done = 0;
    friend auto operator<=>(const Element&, const Element&) = default;
  };
  using Conjunction = std::vector<Element>;  // sorted, unique once settled

  enum Type : uint8_t {
    kNull = 1,
    kBoolean = 2,
    kInteger = 4,
    kFraction = 8,  // numbers that are not integers
    kString = 16,
    kArray = 32,
    kObject = 64,
    kNumber = kInteger | kFraction,
    kAllTypes = 127,
  };
  // What a settled conjunction without choices asks for.
  struct Facts {
    uint8_t types = kAllTypes;
    std::vector<const boost::json::value*> enums;      // arrays; a value is in all of them
    std::vector<const boost::json::value*> constants;  // a value equals all of them
    std::vector<const boost::json::value*> not_enums;
    NumberBounds bounds;
    std::vector<Decimal> divisors, not_divisors;
    int64_t length_min = 0, length_max = kUnbounded;
    std::vector<std::string> patterns, not_patterns;
    int64_t items_min = 0, items_max = kUnbounded;
    int64_t properties_min = 0, properties_max = kUnbounded;
    std::vector<std::string> required;
    bool unique_items = false;
    size_t num_elements = 0;
    bool array_facts = false, object_facts = false, any_facts = false;
    // A keyword that is not supported matters only if its type remains.
    std::optional<Status> array_error, object_error;
  };

  Result<ExprId> compile(Conjunction elements);
  // The same with what is not practical left out; adds a check to `rule`.
  Result<ExprId> approximate(const Conjunction& elements, RuleId rule);
  // The same with objects as states of a formula: exact, where that is not too large.
  class ByFormula;
  Result<ExprId> by_formula(const Conjunction& elements);
  Status add_check(const Conjunction& elements, RuleId rule);
  Result<ExprId> lower_some(Conjunction elements);
  uint8_t plain_types(const Conjunction& elements) const;
  Result<bool> holds(const boost::json::value& value, const Conjunction& elements);
  // Replaces references, allOf, not, if and dependencies by elements of their own. False: nothing
  // can match.
  Result<bool> settle(Conjunction& elements);
  Status expand(const Element& element, Conjunction& out);
  const boost::json::value* condition(const Element& element);
  const boost::json::value* dependency(const boost::json::value& dependencies,
                                       const Element& element);
  Result<ExprId> lower(const Conjunction& elements);
  Result<ExprId> branch_any_of(const Conjunction& elements, size_t index);
  Result<ExprId> branch_one_of(const Conjunction& elements, size_t index);
  Result<bool> may_match(Conjunction elements, int depth);
  std::optional<std::vector<const boost::json::value*>> allowed_values(const Facts& facts) const;

  Result<Facts> gather(const Conjunction& elements);
  Status gather_keyword(std::string_view key, const boost::json::value& value,
                        const Element& element, Facts& facts);
  Status gather_bound(std::string_view key, const boost::json::value& value, const Element& element,
                      Facts& facts);

  Result<ExprId> lower_facts(const Conjunction& elements, const Facts& facts);
  Result<ExprId> lower_values(const Conjunction& elements,
                              const std::vector<const boost::json::value*>& values,
                              const Facts& facts);
  Result<ExprId> lower_number(const Facts& facts);
  Result<ExprId> lower_string(const Facts& facts);
  Result<ExprId> lower_string_exactly(const Facts& facts);
  Result<std::optional<ExprId>> counted_string(const Facts& facts);
  Result<ExprId> counted_array(const Conjunction& elements, const Facts& facts);
  // The same as an automaton, made once: for what is met with several others.
  Result<ExprId> deterministic(ExprId expr);
  ExprId own_rule(ExprId expr, const char* name);
  ExprId with_whole_fraction(ExprId integer);
  Result<ExprId> lower_array(const Conjunction& elements, const Facts& facts);
  Result<ExprId> lower_object(const Conjunction& elements, const Facts& facts);

  // What the item at `index` of an array must hold; index = prefix length for the rest.
  Conjunction item_conjunction(const Conjunction& elements, size_t index);
  size_t prefix_length(const Conjunction& elements) const;
  struct ExtraKeys {
    ExprId key, value;
  };
  struct Property {
    ExprId pair;  // key, colon and value
    bool required;
  };
  Result<std::vector<ExtraKeys>> extra_keys(const Conjunction& elements,
                                            const std::vector<std::string>& names);
  Result<Conjunction> property_conjunction(const Conjunction& elements, const std::string& name);
  Ir::Graph object_graph(std::span<const Property> list, const std::vector<ExtraKeys>& extra,
                         bool begun);
  Ir::Graph counted_object_graph(const std::vector<Property>& list,
                                 const std::vector<ExtraKeys>& extra, int64_t properties_min,
                                 int64_t cap, std::optional<int64_t> properties_max);
  Status bound_names(const Element& element, const std::vector<std::string>& names) const;
  ExprId comma();
  ExprId any_order_object(std::vector<ExprId> pairs, const std::vector<ExtraKeys>& extra,
                          const Facts& facts);
  // Whether no other keyword of it looks at items or properties that it does not name itself.
  bool evaluates_alone(const Element& element) const {
    return element.done == 0 && member(element, "contains") == nullptr;
  }
  const boost::json::value* additional_of(const Element& element,
                                          const Conjunction& elements) const;
  Result<bool> key_matches(const std::string& pattern, const std::string& name);
  Result<ExprId> key_language(const Conjunction& elements);  // what propertyNames leaves
  bool limits_names(const Conjunction& elements) const;      // whether it stands there
  Status require_regular(const Element& element, std::string_view key, ExprId expr) const;
  // Quoted strings that it matches, with ticks for their characters where they are counted.
  Result<ExprId> pattern_string(const std::string& pattern, bool counted = false);

  ExprId literal_value(const boost::json::value& value);
  ExprId quoted(std::string_view text);
  const boost::json::value* member(const Element& element, std::string_view key) const;
  Status unsupported(const Element& element, std::string_view key) const;
  Status wrong(const Element& element, std::string_view key, std::string_view expected) const;

  Ir& ir_;
  const std::shared_ptr<SchemaChecker> checker_;  // shared with the rules' checks
  SchemaDocument& document_;
  JsonSyntax syntax_;
  const SchemaOptions& options_;
  const GrammarLimits& limits_;
  int depth_ = 0;
  bool frugal_ = false;        // the exact way was too large: approximate early
  bool over_budget_ = false;   // ... which is found out meanwhile
  bool rough_ = false;         // in approximate(): leave out, and ask for a check
  bool uncounted_ = false;     // what is made is met with other languages: no counters
  bool numbers_only_ = false;  // what is made is met with numbers
  int formulas_begun_ = 0, formula_steps_ = 0;  // by_formula()
  bool left_out_ = false;                       // something was left out of the rule being made
  std::map<Conjunction, RuleId> rules_;
  std::set<RuleId> open_;  // rules whose bodies are being made
  std::map<std::pair<std::string, bool>, ExprId> patterns_;
  std::map<ExprId, ExprId> deterministic_;
  std::map<std::pair<const boost::json::value*, uint8_t>, const boost::json::value*> derived_;
};

}  // namespace espalier::grammar
