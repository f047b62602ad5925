// The checks of rules that are larger than their schema: judges the values that such rules matched.
#pragma once

#include <boost/json.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "grammar/ir.h"
#include "grammar/schema/document.h"
#include "grammar/schema/validator.h"

namespace espalier::grammar {

// The items of an unfinished array. Remembers the last array, since the tokens of a mask are judged
// behind the same text.
class EarlierItems {
 public:
  // Returns whether an earlier item equals `value`. `before`: the text before the value, which is
  // an item of an array.
  bool contain(std::string_view before, std::string_view value);
  size_t num_bytes() const;

 private:
  void read(std::string_view before);

  std::string before_;                     // the text that is read into the members below
  bool escapes_ = true;                    // whether an item may have another spelling
  std::unordered_set<std::string> texts_;  // without escapes: as written
  std::unordered_set<std::string> canonical_texts_;
};

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
  // Returns the number of the check that an item passes when no earlier item of its array equals
  // it.
  uint32_t add_distinct_item();
  bool holds(uint32_t check, std::string_view before, std::string_view value) override;
  bool compares_items(uint32_t check) const override { return check == kDistinctItem; }
  size_t num_bytes() const override;

 private:
  static constexpr uint32_t kDistinctItem = ~uint32_t{0};

  const std::unique_ptr<SchemaDocument> document_;
  SchemaValidator validator_;
  EarlierItems earlier_;
  std::vector<std::vector<Part>> checks_;
};

}  // namespace espalier::grammar
