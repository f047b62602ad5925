// Settling of conjunctions: references, allOf, not, if and dependencies become elements of their
// own.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <utility>

#include "base/status.h"
#include "grammar/schema/elements.h"

namespace espalier::grammar {

// Borrows the document, to which it adds derived schemas. Not thread-safe.
class ConjunctionSettler {
 public:
  explicit ConjunctionSettler(SchemaDocument& document) : document_(document) {}

  enum class Mode : uint8_t { kExact, kApproximate };
  struct Outcome {
    bool possible = true;      // false: no value satisfies the conjunction
    bool needs_check = false;  // kApproximate: negations, conditions or dependencies were left out
  };
  Result<Outcome> settle(Conjunction& elements, Mode mode);

  // Returns the negation of an element, or {"not": element} where it has no negation of its own.
  Result<Element> negation_of(const Element& element);

 private:
  Status expand(const Element& element, Mode mode, Conjunction& out, bool& needs_check);
  Status expand_references(const Element& element, Element& rest, Conjunction& out, bool& alone);
  Status expand_negation(const Element& element, Element& rest, Conjunction& out);
  const boost::json::value* condition(const Element& element);
  const boost::json::value* dependency(const boost::json::value& dependencies,
                                       const Element& element);

  SchemaDocument& document_;
  std::map<std::pair<const boost::json::value*, uint8_t>, const boost::json::value*> derived_;
};

}  // namespace espalier::grammar
