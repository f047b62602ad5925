// Judges JSON values by a schema, keyword by keyword as the specifications define them. Tests
// compare the grammar with it, and it decides at the end of a value where a keyword's language has
// no practical grammar (oneOf of overlapping objects, unevaluated*, ...). It shares no lowering
// code with the grammar.
#pragma once

#include <boost/json.hpp>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "grammar/automata/transition_network.h"
#include "grammar/schema/document.h"
#include "grammar/schema/json_values.h"

namespace espalier::grammar {

// Drafts 4 to 2020-12. Borrows the document. Not thread-safe.
class SchemaValidator {
 public:
  explicit SchemaValidator(SchemaDocument& document);
  ~SchemaValidator();

  // Returns an error where a reference or a pattern that `schema` can lead to is not supported.
  // Compiles the patterns within the limits, so that valid() need not.
  Status admits(const boost::json::value* schema, ScopeId scope, const GrammarLimits& limits);

  // Returns whether the instance satisfies the schema. kInvalidArgument or kUnimplemented: the
  // schema is wrong or a pattern is not supported; kResourceExhausted: a pattern or the evaluation
  // exceeds its limits.
  Result<bool> valid(const boost::json::value& instance, const boost::json::value* schema,
                     ScopeId scope, const GrammarLimits& limits = {});

  size_t num_bytes() const;  // held by compiled patterns

 private:
  struct Impl;
  SchemaDocument& document_;
  std::unique_ptr<Impl> impl_;
  std::set<std::pair<const boost::json::value*, ScopeId>> admitted_;
};

}  // namespace espalier::grammar
