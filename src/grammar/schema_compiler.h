// JSON Schema to grammar. What must hold of one value is a conjunction of subschemas; each distinct
// conjunction becomes one rule, so references may recurse and what is shared is compiled once.
#pragma once

#include <boost/json.hpp>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/automaton.h"
#include "grammar/ir.h"
#include "grammar/json.h"
#include "grammar/json_number.h"
#include "grammar/schema_document.h"

namespace espalier::grammar {

class SchemaCompiler {
 public:
  // All borrowed for the call of compile().
  SchemaCompiler(Ir& ir, SchemaDocument& document, Whitespace whitespace,
                 const GrammarLimits& limits)
      : ir_(ir), document_(document), pieces_(ir, whitespace), limits_(limits) {}

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
    std::vector<Decimal> divisors;
    int64_t length_min = 0, length_max = kUnbounded;
    std::vector<std::string> patterns, not_patterns;
    int64_t items_min = 0, items_max = kUnbounded;
    int64_t properties_min = 0, properties_max = kUnbounded;
    std::vector<std::string> required;
    bool unique_items = false;
    bool array_facts = false, object_facts = false, any_facts = false;
    // A keyword that is not supported matters only if its type remains.
    std::optional<Status> array_error, object_error;
  };

  Result<ExprId> compile(Conjunction elements);
  // Replaces references, allOf, not, if and dependencies by elements of their own. False: nothing
  // can match.
  Result<bool> settle(Conjunction& elements);
  Status expand(const Element& element, Conjunction& out);
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
  Result<ExprId> lower_array(const Conjunction& elements, const Facts& facts);
  Result<ExprId> lower_object(const Conjunction& elements, const Facts& facts);

  // What the item at `index` of an array must hold; index = prefix length for the rest.
  Conjunction item_conjunction(const Conjunction& elements, size_t index);
  size_t prefix_length(const Conjunction& elements) const;
  struct ExtraKeys {
    ExprId key, value;
  };
  Result<std::vector<ExtraKeys>> extra_keys(const Conjunction& elements,
                                            const std::vector<std::string>& names);
  Result<Conjunction> property_conjunction(const Conjunction& elements, const std::string& name);
  Result<bool> key_matches(const std::string& pattern, const std::string& name);
  Result<ExprId> key_language(const Conjunction& elements);  // what propertyNames leaves
  Status require_regular(const Element& element, std::string_view key, ExprId expr) const;
  Result<ExprId> pattern_string(const std::string& pattern);  // quoted strings that it matches

  ExprId canonical_char(const std::vector<CodeRange>& ranges);
  ExprId literal_value(const boost::json::value& value);
  ExprId quoted(std::string_view text);
  const boost::json::value* member(const Element& element, std::string_view key) const;
  Status unsupported(const Element& element, std::string_view key) const;
  Status wrong(const Element& element, std::string_view key, std::string_view expected) const;

  Ir& ir_;
  SchemaDocument& document_;
  JsonPieces pieces_;
  const GrammarLimits& limits_;
  int depth_ = 0;
  std::map<Conjunction, RuleId> rules_;
  std::set<RuleId> open_;  // rules whose bodies are being made
  std::map<std::string, ExprId> patterns_;
  std::map<std::pair<const boost::json::value*, uint8_t>, const boost::json::value*> derived_;
};

}  // namespace espalier::grammar
