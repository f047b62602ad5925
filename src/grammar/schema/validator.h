// Judges JSON values by a schema, keyword by keyword as the specifications read: what the grammar
// is compared with, and what decides at a value's end where a keyword's language has no practical
// grammar (oneOf of overlapping objects, uniqueItems, unevaluated*, ...). Shares no lowering code
// with the grammar.
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
#include <utility>
#include <vector>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/schema/document.h"

namespace espalier::grammar {

// Equal as JSON Schema means it: 1 and 1.0 are, the order of members does not count.
bool equal_values(const boost::json::value& a, const boost::json::value& b);
// A text that is the same exactly for equal values.
std::string canonical_text(const boost::json::value& v);

// Drafts 4 to 2020-12. Borrows the document. Not thread-safe.
class SchemaValidator {
 public:
  explicit SchemaValidator(SchemaDocument& document);
  ~SchemaValidator();

  // Whether all that `schema` can lead to is supported: references, patterns. Names what is not.
  // Patterns are made within the limits, so that values are judged without that work.
  Status admits(const boost::json::value* schema, ScopeId scope, const GrammarLimits& limits);

  // kInvalidArgument or kUnimplemented where the schema is wrong or a pattern not supported;
  // kResourceExhausted where a pattern that is new does not keep to the limits.
  Result<bool> valid(const boost::json::value& instance, const boost::json::value* schema,
                     ScopeId scope, const GrammarLimits& limits = {});

 private:
  using Value = boost::json::value;
  // What keywords have looked at, for unevaluated*.
  struct Seen {
    std::set<std::string_view> properties;
    std::set<size_t> items;
    void add(const Seen& other);
  };
  struct Pattern;
  struct Context {
    const Value& schema;
    const boost::json::object& keywords;
    ScopeId scope;
    const Value& instance;
    Seen& seen;
  };
  struct Verdict {
    bool valid = false;
    Seen seen;
  };

  bool check(const Value* schema, ScopeId scope, const Value& instance, Seen* seen);
  bool check_referred(const Value* schema, ScopeId scope, const Value& instance, Seen* seen);
  Verdict judge(const Value* schema, ScopeId scope, const Value& instance);
  static bool told(const Verdict& verdict, Seen* seen);
  bool check_keywords(const Context& c);
  bool check_any_type(const Context& c);
  bool check_applicators(const Context& c);
  bool check_reference(const Context& c, std::string_view keyword);
  bool check_number(const Context& c);
  bool check_string(const Context& c);
  bool check_array(const Context& c);
  bool check_contains(const Context& c, const Value& contains);
  bool check_object(const Context& c);
  bool check_members(const Context& c);
  bool check_dependencies(const Context& c);
  Result<const Pattern*> pattern_of(std::string_view pattern, const GrammarLimits& limits);
  Status make_patterns(std::string_view pattern, const GrammarLimits& limits);
  bool matches(std::string_view pattern, std::string_view text);
  bool is_among(const Value& list, const Value& v);  // of `enum`
  bool failed(Status status);                        // notes it; false

  SchemaDocument& document_;
  std::unordered_map<std::string, std::unique_ptr<Pattern>> patterns_;  // null: matches nothing
  size_t pattern_bytes_ = 0;
  std::unordered_map<const Value*, std::unordered_set<std::string>> lists_;  // canonical texts
  std::set<std::pair<const Value*, ScopeId>> admitted_;
  Status status_;
  // Of the instance being judged. What is referred to is judged once of each part of it: where
  // references meet again and again, more ways lead to a schema than can be walked.
  const GrammarLimits* limits_ = nullptr;
  int depth_ = 0;
  int64_t steps_ = 0;
  std::map<std::tuple<const Value*, ScopeId, const Value*>, Verdict> verdicts_;
  std::deque<Value> names_;  // judged by propertyNames
};

}  // namespace espalier::grammar
