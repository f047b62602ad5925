// The table of JSON Schema keywords. One row holds everything that the room knows of a keyword:
// where subschemas stand in its value, what kind of keyword it is, and how it is lowered, negated
// and validated. A new keyword is a row and its functions (keyword_lowering.cc,
// keyword_negation.cc, keyword_validation.cc). Immutable and thread-safe.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace espalier::grammar {

struct KeywordUse;         // constraints.h
class NegationBuilder;     // keyword_negation.h
struct KeywordEvaluation;  // evaluator.h

// Internal keywords, for negations that JSON Schema cannot express.
inline constexpr std::string_view kNotEnum = "\x01notEnum";        // an array of values
inline constexpr std::string_view kNotPattern = "\x01notPattern";  // a pattern that must not match
inline constexpr std::string_view kNotMultipleOf = "\x01notMultipleOf";
inline constexpr std::string_view kNotFormat = "\x01notFormat";
// Beside "not": the negated schema fails by this keyword, in a way that no keyword expresses.
inline constexpr std::string_view kInexpressible =
    "\x01"
    "negation";
inline constexpr std::string_view kFractionType =
    "\x01"
    "fraction";  // numbers that are not integers
// A reference from a derived schema to a schema of the document, by its number
// (SchemaDocument::at).
inline constexpr std::string_view kAt =
    "\x01"
    "at";

// Where subschemas stand in the value of a keyword.
enum class Subschemas : uint8_t { kNone, kValue, kList, kMap, kValueOrList };

enum class Role : uint8_t {
  kAnnotation,  // no instance depends on it
  kIdentifier,  // names a schema, or says how to read it
  kReference,
  kApplicator,  // applies subschemas
  kAssertion,   // of the validation vocabulary, which a dialect may leave out
  kInternal,    // written by the compiler only
};

struct Keyword {
  std::string_view name;
  Role role = Role::kAnnotation;
  Subschemas subschemas = Subschemas::kNone;
  uint8_t types = 127;  // of ValueType: the types of instances that it constrains
  // Adds what the keyword requires to the constraints of its conjunction; null: nothing, or the
  // settler has expanded it (settler.h).
  Status (*lower)(const KeywordUse& use) = nullptr;
  // Adds schemas, any of which makes the keyword fail, and returns whether it has such a list;
  // null: the keyword never fails.
  bool (*negate)(NegationBuilder& out, std::string_view key,
                 const boost::json::value& value) = nullptr;
  // Returns whether the instance satisfies the keyword; null: always, or a sibling's row decides.
  bool (*validate)(const KeywordEvaluation& at) = nullptr;
};

// All keywords in the order in which they are validated: those that depend on what others have
// evaluated come last.
std::span<const Keyword> keywords();

// Returns the row of a keyword, or null for unknown keywords, which annotate.
const Keyword* find_keyword(std::string_view name);

}  // namespace espalier::grammar
