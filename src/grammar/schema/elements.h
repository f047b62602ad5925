// What the parts of the schema compiler share: elements of conjunctions and simple questions about
// them. A value must satisfy every element of a conjunction. All functions are pure and borrow the
// document.
#pragma once

#include <boost/json.hpp>
#include <compare>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/schema/document.h"

namespace espalier::grammar {

// Keywords of an element that its conjunction accounts for elsewhere.
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

// A subschema in its dynamic scope.
struct Element {
  const boost::json::value* schema = nullptr;
  ScopeId scope = kNoScope;
  uint8_t done = 0;  // of Done
  friend auto operator<=>(const Element&, const Element&) = default;
};
using Conjunction = std::vector<Element>;  // sorted and unique once settled

// The types of JSON Schema, as bits.
enum ValueType : uint8_t {
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

// Returns the bits of a type's name, or 0 when it names no type.
uint8_t type_bits(std::string_view name);

// Returns the value of a keyword of the element, or null.
const boost::json::value* member(const Element& element, std::string_view key);

// Errors about a keyword, with its JSON pointer.
Status unsupported(const SchemaDocument& document, const Element& element, std::string_view key);
Status wrong(const SchemaDocument& document, const Element& element, std::string_view key,
             std::string_view expected);

// Returns the types that `type` leaves, before anything else is compiled. Names of unknown types
// leave all; the error is reported when keywords are collected.
uint8_t plain_types(const SchemaDocument& document, const Conjunction& elements);

// Returns the length of the longest list of items with schemas of their own.
size_t prefix_length(const Conjunction& elements);

// Returns whether no other keyword of the element evaluates items or properties that its `items`
// and `properties` do not name. unevaluated* then equal additional*.
bool evaluates_alone(const Element& element);

// Returns additionalProperties, or unevaluatedProperties where it says the same.
const boost::json::value* additional_of(const Element& element, const Conjunction& elements);

}  // namespace espalier::grammar
