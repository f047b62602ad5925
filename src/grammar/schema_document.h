// A JSON Schema document: where its references lead, and what a subschema's opposite is. Knows no
// grammar; json_schema.cc compiles what this resolves.
#pragma once

#include <boost/json.hpp>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/status.h"

namespace espalier::grammar {

// Keywords that only this compiler writes, for opposites that JSON Schema has no word for.
inline constexpr std::string_view kNotEnum = "\x01notEnum";        // an array of values
inline constexpr std::string_view kNotPattern = "\x01notPattern";  // a pattern that must not match
inline constexpr std::string_view kNotFormat = "\x01notFormat";
inline constexpr std::string_view kFractionType = "\x01fraction";  // numbers that are not integers

// Owns the document and every schema derived from it; addresses stay valid for its life. Not
// thread-safe.
class SchemaDocument {
 public:
  // kInvalidArgument: not JSON, or not a schema.
  static Result<std::unique_ptr<SchemaDocument>> parse(std::string_view text);

  const boost::json::value& root() const { return root_; }

  // Where `reference` leads: "#", "#/a/b", "#anchor", or the $id of a subschema of this document.
  // kUnimplemented for documents elsewhere; kInvalidArgument for a pointer that leads nowhere.
  Result<const boost::json::value*> resolve(std::string_view reference);

  // A schema that holds exactly where `schema` does not, one level deep (inner opposites are
  // written as "not" and are resolved when they are compiled). kUnimplemented names what has no
  // opposite here.
  Result<const boost::json::value*> opposite(const boost::json::value& schema);

  // Takes a derived schema over.
  const boost::json::value* keep(boost::json::value schema);

  // "#/properties/a", for messages; the nearest known ancestor's for derived schemas.
  std::string pointer_of(const boost::json::value* schema) const;

  // Up to draft 7, what stands beside $ref does not count.
  bool ref_hides_siblings() const { return ref_hides_siblings_; }

 private:
  SchemaDocument() = default;
  void index(const boost::json::value& value, const std::string& pointer, int depth);

  boost::json::value root_;
  bool ref_hides_siblings_ = false;
  std::deque<boost::json::value> derived_;
  std::unordered_map<std::string, const boost::json::value*> by_name_;  // $id, "#anchor"
  std::unordered_map<const boost::json::value*, std::string> pointers_;
  std::unordered_map<const boost::json::value*, const boost::json::value*> opposites_;
};

}  // namespace espalier::grammar
