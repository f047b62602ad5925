// What the keywords of a settled conjunction without choices require, collected into one record.
// The rows of keywords.h fill it.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/ir.h"
#include "grammar/schema/elements.h"
#include "grammar/schema/number_ranges.h"

namespace espalier::grammar {

struct Constraints {
  uint8_t types = kAllTypes;                         // of ValueType
  std::vector<const boost::json::value*> enums;      // arrays; a value is in all of them
  std::vector<const boost::json::value*> constants;  // a value equals all of them
  std::vector<const boost::json::value*> not_enums;
  NumberBounds bounds;
  std::vector<Decimal> divisors, not_divisors;
  int64_t length_min = 0, length_max = kUnbounded;  // characters
  std::vector<std::string> patterns, not_patterns;
  int64_t items_min = 0, items_max = kUnbounded;
  int64_t properties_min = 0, properties_max = kUnbounded;
  std::vector<std::string> required;  // sorted
  bool unique_items = false;
  bool of_arrays = false, of_objects = false, of_scalars = false;  // which types have constraints
  bool needs_check = false;  // part of it is left to a check of the value
  // An unsupported keyword matters only where its type remains.
  std::optional<Status> array_error, object_error;
};

// One keyword of one element, while constraints are collected.
struct KeywordUse {
  const SchemaDocument& document;
  const Element& element;
  std::string_view key;
  const boost::json::value& value;
  bool alone = false;  // evaluates_alone(element), and no other element is beside it
  Constraints& out;
};

// Collects the constraints of the elements. kInvalidArgument names a keyword with a wrong value.
Result<Constraints> collect_constraints(const SchemaDocument& document,
                                        const Conjunction& elements);

// Returns the values that all enums and constants share; nothing when there are none of these
// keywords.
std::optional<std::vector<const boost::json::value*>> allowed_values(
    const Constraints& constraints);

}  // namespace espalier::grammar
