// Evaluates a schema on an instance, keyword by keyword by the rows of the table (keywords.h).
// Internal to the validator.
#pragma once

#include <boost/json.hpp>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/status.h"
#include "grammar/schema/document.h"
#include "grammar/schema/string_matcher.h"

namespace espalier::grammar {

// The properties and items that keywords have evaluated, for unevaluated*.
struct Evaluated {
  std::set<std::string_view> properties;
  std::set<size_t> items;
  void add(const Evaluated& other);
};

class InstanceEvaluator;

// One keyword of one schema, evaluated on one instance.
struct KeywordEvaluation {
  InstanceEvaluator& evaluator;
  const boost::json::value& schema;
  const boost::json::object& keywords;  // of the schema
  ScopeId scope;
  const boost::json::value& instance;
  Evaluated& evaluated;
  std::string_view key;
  const boost::json::value& value;  // of the keyword

  const boost::json::value* sibling(std::string_view name) const {
    return keywords.if_contains(name);
  }
  // Returns whether a subschema holds of the instance, or of a part of it.
  bool holds(const boost::json::value& subschema) const;
  bool holds_of_part(const boost::json::value& subschema, const boost::json::value& part) const;
};

// The state of one evaluation, and caches that last for the life of the validator. Borrows the
// document. Not thread-safe.
class InstanceEvaluator {
 public:
  InstanceEvaluator(SchemaDocument& document, StringMatcher& strings)
      : document_(document), strings_(strings) {}

  // Evaluates from the start. A failure to decide is an error: see SchemaValidator::valid.
  Result<bool> run(const boost::json::value& instance, const boost::json::value* schema,
                   ScopeId scope, const GrammarLimits& limits);

  // For the functions of the table.
  SchemaDocument& document() { return document_; }
  bool check(const boost::json::value* schema, ScopeId scope, const boost::json::value& instance,
             Evaluated* evaluated);
  bool check_reference(const KeywordEvaluation& at);
  bool matches(std::string_view pattern, std::string_view text);
  bool is_among(const boost::json::value& list, const boost::json::value& v);  // of `enum`
  const boost::json::value& name_value(std::string_view name);  // a property's name as an instance
  bool ok() const { return status_.ok(); }

 private:
  struct Verdict {
    bool valid = false;
    Evaluated evaluated;
  };
  bool check_referred(const boost::json::value* schema, ScopeId scope,
                      const boost::json::value& instance, Evaluated* evaluated);
  Verdict evaluate(const boost::json::value* schema, ScopeId scope,
                   const boost::json::value& instance);
  bool evaluate_keywords(const boost::json::value& schema, ScopeId scope,
                         const boost::json::value& instance, Evaluated& evaluated);
  static bool take_over(const Verdict& verdict, Evaluated* evaluated);
  bool failed(Status status);  // records it; returns false

  SchemaDocument& document_;
  StringMatcher& strings_;
  // By an `enum` list: canonical texts of its values.
  std::unordered_map<const boost::json::value*, std::unordered_set<std::string>> lists_;
  Status status_;
  const GrammarLimits* limits_ = nullptr;
  int depth_ = 0;
  int64_t steps_ = 0;
  // The target of a reference is evaluated once on each part of the instance: where references meet
  // again and again, the number of paths to a schema is exponential.
  std::map<std::tuple<const boost::json::value*, ScopeId, const boost::json::value*>, Verdict>
      verdicts_;
  std::deque<boost::json::value> names_;  // evaluated by propertyNames
};

}  // namespace espalier::grammar
