// The checks of rules that are larger than their schema: judges the values that such rules matched.
#pragma once

#include <boost/json.hpp>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/ir.h"
#include "grammar/schema/document.h"
#include "grammar/schema/validator.h"

namespace espalier::grammar {

// Judges values by conjunctions of schemas of a document that it owns. It lives as long as the
// networks compiled from the schema. Not thread-safe: the grammar's lock guards it.
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

  // Returns the number of a check that a value passes when it satisfies all parts.
  uint32_t add(std::vector<Part> all);
  bool holds(uint32_t check, std::string_view value) override;
  size_t num_bytes() const override;

 private:
  const std::unique_ptr<SchemaDocument> document_;
  SchemaValidator validator_;
  std::vector<std::vector<Part>> checks_;
};

}  // namespace espalier::grammar
