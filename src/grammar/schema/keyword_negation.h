// The `negate` functions of the table of keywords. A negation is a list of schemas, any of which
// makes the keyword fail. They are listed here for keywords.cc alone.
#pragma once

#include <boost/json.hpp>
#include <string_view>
#include <vector>

#include "grammar/schema/document.h"

namespace espalier::grammar {

// Collects the negations of the keywords of one schema. Borrows the document and the schema. Not
// thread-safe.
class NegationBuilder {
 public:
  NegationBuilder(SchemaDocument& document, const boost::json::value& schema)
      : document_(document), whole_(schema) {}

  SchemaDocument& document() { return document_; }
  const boost::json::value& whole() const { return whole_; }
  const boost::json::object& schema() const { return whole_.get_object(); }
  void add(boost::json::value alternative) { alternatives_.push_back(std::move(alternative)); }
  // {"not": schema}, which is resolved when it is compiled.
  boost::json::value negated(const boost::json::value& schema);
  const boost::json::array& alternatives() const { return alternatives_; }

 private:
  SchemaDocument& document_;
  const boost::json::value& whole_;
  boost::json::array alternatives_;
};

namespace negation {

// Each returns false where the keyword has no such list.
bool type(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool enum_values(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool constant(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool negated(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool reference(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool unavailable(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool multiple_of(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool items(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool contains(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool unique_items(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool additional(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool all_of(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool any_of(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool one_of(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool condition(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool numeric_bound(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool count_bound(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool pattern(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool format(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool required(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool properties(NegationBuilder& out, std::string_view key, const boost::json::value& value);
// The internal keywords, whose negations are keywords of JSON Schema.
bool internal(NegationBuilder& out, std::string_view key, const boost::json::value& value);
// What fails of an array or an object in a way that no keyword expresses matters to these types
// only.
bool of_arrays(NegationBuilder& out, std::string_view key, const boost::json::value& value);
bool of_objects(NegationBuilder& out, std::string_view key, const boost::json::value& value);

}  // namespace negation

}  // namespace espalier::grammar
